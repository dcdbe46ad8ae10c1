// What crosses from Python to the native core: steps with resolved addresses, run in order in one call.
//
// `app/kernels/cpu/layout.py` mirrors these structs field by field. Everything here was checked before
// (shapes, strides, bounds); only values that exist at run time (row indices) are checked by the kernels.
// Shapes and strides are ggml's: ne counts elements, nb counts bytes, fastest first.
#pragma once

#include <cstdint>

namespace ls {

constexpr int MAX_SOURCES = 5;
constexpr int N_PARAMS = 16;

enum class Layout : int32_t {
    PLAIN = 0,     // as the file and the wire have it
    GROUPED = 1,   // rows interleaved 16 at a time, see repack.h; a remainder of rows stays plain
};

struct TensorRef {
    uint8_t *data;
    int64_t ne[4];
    int64_t nb[4];
    int32_t type;     // ggml's number
    int32_t layout;   // Layout
};

enum class Kind : int32_t {
    NOP = 0,
    QUANTIZE = 1,    // F32 rows to int8 blocks of 32 with scales and sums, into scratch
    MATVEC = 2,      // grouped weights times few quantised rows
    MATMUL = 3,      // weights times many rows; params[0]: 1 when src[1].data is what CONVERT_BF16 wrote (matmul.h)
    BINARY = 4,      // params[0]: ggml op (ADD, SUB, MUL, DIV)
    SCALE = 5,
    RMS_NORM = 6,    // src[1], when present, is a weight to multiply with
    ROPE = 7,        // src[1] positions, src[2] frequency factors
    SET_ROWS = 8,    // src[0] rows, src[1] indices
    GET_ROWS = 9,
    ATTENTION = 10,  // FLASH_ATTN_EXT
    GLU = 11,        // params[0]: gate function, params[1]: swapped
    UNARY = 12,
    COPY = 13,       // CONT, CPY, DUP of F32 and F16
    SOFT_MAX = 14,
    ROPE_TABLE = 15,         // src[1] positions, src[2] factors; cosines and sines to scratch, for ROPE steps that share it
    ATTENTION_COMBINE = 16,  // joins the parts that the threads of an ATTENTION step with few query rows left in scratch
    CONVERT_BF16 = 17,       // src[0] F32 rows to what MATMUL reads for weights of type params[0], into scratch (matmul.h)
    MUL_MAT_ID = 18,         // src[0] experts, src[1] quantised rows, src[2] indices (experts.h)
    ADD_ID = 19,             // src[1] biases, src[2] indices
    ARGSORT = 20,            // params[0]: 1 for the greatest first
    SUM_ROWS = 21,
    CLAMP = 22,
    NORM = 23,
    N_KINDS = 24,
};

struct Step {
    int32_t kind;                // Kind
    int32_t node;                // index of the graph node, for messages
    int32_t params[N_PARAMS];    // ggml's op_params words, or as said at the kind
    TensorRef dst;
    TensorRef src[MAX_SOURCES];  // data is null where a source is absent
    uint8_t *scratch;            // memory that is this step's (or, for QUANTIZE and MATVEC, shared by address)
    int64_t scratch_bytes;
    int64_t flags;               // StepFlags
};

enum StepFlags : int64_t {
    SOLO = 1,     // too small to share: thread 0 runs it alone
    FREE_END = 2  // the next step may begin before all threads have ended this one
};

enum Status : int32_t { OK = 0, BAD_INDEX = 1, UNSUPPORTED = 2 };

// One thread's part of a step; `ith` of `nth`. Steps are separated by a barrier.
using Kernel = int32_t (*)(const Step &step, int ith, int nth);

// What a thread has of a step's scratch begins and ends with a cache line.
constexpr int64_t ALIGNMENT = 64;
inline int64_t aligned(int64_t bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

}  // namespace ls

extern "C" {
struct ls_pool;

// Sizes and offsets of the structs above, in the order that layout.py checks: TensorRef (size, then each field's
// offset), then Step. Writes at most `n` numbers and returns how many there are.
int32_t ls_layout(int64_t *out, int32_t n);

// Name of the level that this library was compiled for, and whether this machine can run it.
const char *ls_level();
int32_t ls_supported();

ls_pool *ls_pool_new(int32_t n_threads);
void ls_pool_free(ls_pool *pool);

// Runs `n` steps; 0, or the status of the first step that failed with its position in *failed. `times_ns`, when
// not null, gets the time of each step.
int32_t ls_run(ls_pool *pool, const ls::Step *steps, int64_t n, int64_t *failed, int64_t *times_ns);

// Turns `n_rows` rows of `ne0` elements from plain to grouped (forward != 0) or back, in place; nonzero when the type
// has no grouped layout.
int32_t ls_repack(ls_pool *pool, int32_t type, uint8_t *data, int64_t ne0, int64_t n_rows, int32_t forward);

// Bytes of scratch that a QUANTIZE step needs for n_rows rows of ne0 elements.
int64_t ls_quantize_bytes(int64_t ne0, int64_t n_rows);

// Bytes of scratch that a step of this kind needs with `n_threads` threads; 0 for most. For CONVERT_BF16 0 means that this
// machine multiplies such weights in floats: the step is left out and MATMUL reads the F32 rows.
int64_t ls_scratch_bytes(const ls::Step *step, int32_t n_threads);

// The fastest product that MATMUL and ATTENTION may use from now on, for tests: 0 floats, 1 AMX. Returns what is in
// effect, which is no more than the machine and the system allow. To be set before plans are compiled.
int32_t ls_matmul_limit(int32_t path);

// Bit mask of what a step can do for a type: 1 MATVEC, 2 MATMUL, 4 GET_ROWS, 8 SET_ROWS.
int32_t ls_type_support(int32_t type);
}
