// The grouped layout of weights: 16 rows side by side, so that one 64-byte load holds one dword of each.
//
// A group is 16 consecutive rows. For each block column it holds the 16 blocks of that column, in as many bytes as
// before: first the odd bytes (types.h) of the 16 rows one after the other, then dword 0 of the 16 rows, dword 1 of
// the 16 rows, and so on, where the dwords are the block's bytes without the odd ones. Block columns follow one
// another, then groups. The n_rows % 16 last rows stay plain, at the place where they were.
#pragma once

#include "plan.h"
#include "types.h"

namespace ls {

constexpr int GROUP_ROWS = 16;

// Address of row `row`'s block `block` parts in grouped data; both in elements of the layout above.
inline const uint8_t *group_block(const TypeInfo &info, const uint8_t *data, int64_t ne0, int64_t group, int64_t block) {
    return data + group * GROUP_ROWS * row_bytes(info, ne0) + block * GROUP_ROWS * info.block_bytes;
}

// Copies one row's block out of a grouped block column (16 blocks at `column`) into plain form.
void gather_block(const TypeInfo &info, const uint8_t *column, int lane, uint8_t *plain);

// Turns groups [first, last) in place, from plain to grouped or back. `scratch` holds 16 rows.
void repack_groups(const TypeInfo &info, uint8_t *data, int64_t ne0, int64_t first, int64_t last, bool forward,
                   uint8_t *scratch);

// One row of a matrix in either layout as floats. `weights.ne[1]` rows with stride nb[1] when plain.
void dequantize_row(const TypeInfo &info, const TensorRef &weights, int64_t row, float *out);

}  // namespace ls
