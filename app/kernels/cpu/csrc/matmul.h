// Products of weights with many rows of activations. Each thread owns ranges of 32 rows of weights, decodes them once to
// panels (dequant.h) and multiplies them with all tokens; no two threads write the same result, so there is no barrier.
//
// MATMUL: src[0] weights [k, n_rows, b2, b3], any type of types.h, GROUPED or PLAIN, dense types with any strides.
// src[1] F32 [k, n_tokens, c2, c3], c2 a multiple of b2 and c3 of b3; nb[0] = 4 unless converted. dst F32
// [n_rows, n_tokens, c2, c3], nb[0] = 4. Scratch: ls_scratch_bytes of the step.
//
// CONVERT_BF16: params[0] the type of the weights that will be multiplied, src[0] F32 [k, n_tokens, c2, c3] with any
// strides. What it writes may serve all products with weights whose bf16_parts are the same (all quantised types).
// A MATMUL with params[0] = 1 has that in src[1].data, and the shape of the F32 tensor in src[1].ne.
// It is tiles of 16 tokens: [matrix][tile][step of 32 k][part][token][32 bf16], zero past k and past the last token.
#pragma once

#include "dequant.h"
#include "plan.h"

namespace ls {

int32_t matmul(const Step &step, int ith, int nth);
int64_t matmul_scratch(const Step &step, int nth);

int32_t convert_bf16(const Step &step, int ith, int nth);
int64_t convert_scratch(const Step &step);

constexpr int TILE_TOKENS = 16;
constexpr int BLOCK_TOKENS = 32;  // of one call of a product
constexpr int UNIT_ROWS = 32;     // likewise: two panels

inline int64_t token_tiles(int64_t n_tokens) { return (n_tokens + TILE_TOKENS - 1) / TILE_TOKENS; }

// Bytes of a converted tile of 16 tokens.
inline int64_t tile_bytes(int32_t weight_type, int64_t k) {
    return n_steps(k) * bf16_parts(weight_type).activations * TILE_TOKENS * STEP_ELEMENTS * 2;
}

// Up to 32 rows of weights times up to 32 tokens.
struct ProductBlock {
    const uint8_t *panels;  // n_rows / 16, rounded up, of them
    int64_t panel_stride;
    const uint8_t *acts;  // tiles, or F32 rows
    int64_t act_stride;   // from one tile to the next, or from one row
    int64_t k;            // for FLOATS
    int64_t n_steps;      // for PAIRS
    Parts parts;          // likewise
    int64_t n_rows;
    int64_t n_tokens;
    uint8_t *out;  // F32, rows next to each other
    int64_t out_stride;
};

// How a machine multiplies: what panels it wants and the inner product. begin and end surround a thread's products.
struct MatmulPath {
    PanelForm form;
    void (*begin)();
    void (*end)();
    void (*product)(const ProductBlock &block);
};

// Vectors of bf16 (vdpbf16ps) have no path: on the processor at hand they ran at half the speed of floats.
enum PathNumber : int32_t { PATH_FLOAT = 0, PATH_AMX = 1 };

extern const MatmulPath FLOAT_PATH;
const MatmulPath *amx_path();  // null where there is no AMX or the system refuses it

// The fastest path within ls_matmul_limit.
const MatmulPath &best_path();

}  // namespace ls
