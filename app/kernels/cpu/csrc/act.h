// Activations as the quantised products read them: per row, per 32 elements, int8 values with a float scale and sums.
//
// A QUANTIZE step writes them to its scratch (64-byte aligned for speed, not for correctness); MATVEC reads them. The
// sums are stored as the multiples that the weights' offsets need, so that a kernel only broadcasts them.
// Rounding is to nearest even with scale amax / 127. A NaN or infinity makes the block's scale so, hence the product.
#pragma once

#include <cstddef>
#include <cstdint>

#include "plan.h"

namespace ls {

constexpr int ACT_ELEMENTS = 32;

struct ActBlock {
    int8_t q[ACT_ELEMENTS];
    float d;         // value = d * q
    float ds;        // d * sum(q)
    float ds_first;  // d * sum(q[0..15])
    int32_t n8;      // -8 * sum(q)
    int32_t n16;     // -16 * sum(q)
    int32_t n128;    // -128 * sum(q)
    int32_t n32[2];  // -32 * sum of each half
};
static_assert(sizeof(ActBlock) == 64 && offsetof(ActBlock, q) == 0, "one cache line per block, which starts with its values");

// Bytes from one quantised row to the next; a line longer than needed, so that rows do not share cache sets.
inline int64_t act_row_bytes(int64_t ne0) {
    return (ne0 / ACT_ELEMENTS + 1) * static_cast<int64_t>(sizeof(ActBlock));
}

inline const ActBlock *act_row(const uint8_t *rows, int64_t ne0, int64_t row) {
    return reinterpret_cast<const ActBlock *>(rows + row * act_row_bytes(ne0));
}

// Quantises 32 * n_blocks floats.
void quantize_blocks(const float *x, int64_t n_blocks, ActBlock *out);

// Kernel of Kind::QUANTIZE: src[0] F32 [k, n_rows, ...] with nb[0] = 4 and any outer strides; rows in order to scratch.
int32_t quantize(const Step &step, int ith, int nth);

}  // namespace ls
