// Moving blocks between the plain and the grouped layout; driven by the descriptors in types.cpp alone.
#include "repack.h"

#include <cstring>
#include <memory>
#include <new>

namespace ls {

namespace {

// Where byte `i` of a block without its odd bytes lies in the plain block.
inline int dword_offset(const TypeInfo &info, int dword) {
    const int offset = 4 * dword;
    return offset < info.odd_offset || info.odd_bytes == 0 ? offset : offset + info.odd_bytes;
}

inline int n_dwords(const TypeInfo &info) { return (info.block_bytes - info.odd_bytes) / 4; }

void scatter_block(const TypeInfo &info, uint8_t *column, int lane, const uint8_t *plain) {
    std::memcpy(column + lane * info.odd_bytes, plain + info.odd_offset, static_cast<size_t>(info.odd_bytes));
    uint8_t *out = column + GROUP_ROWS * info.odd_bytes + 4 * lane;
    for (int j = 0; j < n_dwords(info); ++j) {
        std::memcpy(out + j * 4 * GROUP_ROWS, plain + dword_offset(info, j), 4);
    }
}

}  // namespace

void gather_block(const TypeInfo &info, const uint8_t *column, int lane, uint8_t *plain) {
    std::memcpy(plain + info.odd_offset, column + lane * info.odd_bytes, static_cast<size_t>(info.odd_bytes));
    const uint8_t *in = column + GROUP_ROWS * info.odd_bytes + 4 * lane;
    for (int j = 0; j < n_dwords(info); ++j) {
        std::memcpy(plain + dword_offset(info, j), in + j * 4 * GROUP_ROWS, 4);
    }
}

void repack_groups(const TypeInfo &info, uint8_t *data, int64_t ne0, int64_t first, int64_t last, bool forward,
                   uint8_t *scratch) {
    const int64_t row = row_bytes(info, ne0);
    const int64_t n_blocks = ne0 / info.block_elements;
    for (int64_t group = first; group < last; ++group) {
        uint8_t *base = data + group * GROUP_ROWS * row;
        std::memcpy(scratch, base, static_cast<size_t>(GROUP_ROWS * row));
        for (int64_t block = 0; block < n_blocks; ++block) {
            const int64_t column = block * GROUP_ROWS * info.block_bytes;
            for (int lane = 0; lane < GROUP_ROWS; ++lane) {
                const int64_t plain = lane * row + block * info.block_bytes;
                if (forward) {
                    scatter_block(info, base + column, lane, scratch + plain);
                } else {
                    gather_block(info, scratch + column, lane, base + plain);
                }
            }
        }
    }
}

void dequantize_row(const TypeInfo &info, const TensorRef &weights, int64_t row, float *out) {
    const int64_t n_blocks = weights.ne[0] / info.block_elements;
    const int64_t group = row / GROUP_ROWS;
    const bool grouped = weights.layout == static_cast<int32_t>(Layout::GROUPED) && (group + 1) * GROUP_ROWS <= weights.ne[1];
    uint8_t plain[MAX_BLOCK_BYTES];
    for (int64_t block = 0; block < n_blocks; ++block, out += info.block_elements) {
        if (grouped) {
            gather_block(info, group_block(info, weights.data, weights.ne[0], group, block),
                         static_cast<int>(row % GROUP_ROWS), plain);
            info.dequantize(plain, out);
        } else {
            info.dequantize(weights.data + row * weights.nb[1] + block * info.block_bytes, out);
        }
    }
}

}  // namespace ls

extern "C" __attribute__((visibility("default"))) int32_t ls_repack(ls_pool *, int32_t type, uint8_t *data, int64_t ne0,
                                                                    int64_t n_rows, int32_t forward) {
    const ls::TypeInfo *info = ls::type_info(type);
    if (info == nullptr || !info->groups || ne0 % info->block_elements != 0) {
        return ls::UNSUPPORTED;
    }
    const auto bytes = static_cast<size_t>(ls::GROUP_ROWS * ls::row_bytes(*info, ne0));
    const std::unique_ptr<uint8_t[]> scratch(new (std::nothrow) uint8_t[bytes]);
    if (scratch == nullptr) {
        return ls::UNSUPPORTED;
    }
    ls::repack_groups(*info, data, ne0, 0, n_rows / ls::GROUP_ROWS, forward != 0, scratch.get());
    return ls::OK;
}
