// Moving blocks between the plain and the grouped layout; driven by the descriptors in types.cpp alone.
#include "repack.h"

#include <cstring>
#include <memory>
#include <new>

#include "pool.h"

namespace ls {

namespace {

// The dwords of a plain block stand together: the odd bytes are either its first or its last.
inline int dwords_at(const TypeInfo &info) { return info.odd_offset == 0 ? info.odd_bytes : 0; }

inline int n_dwords(const TypeInfo &info) { return (info.block_bytes - info.odd_bytes) / 4; }

void scatter_block(const TypeInfo &info, uint8_t *column, int lane, const uint8_t *plain) {
    for (int i = 0; i < info.odd_bytes; ++i) {
        column[lane * info.odd_bytes + i] = plain[info.odd_offset + i];
    }
    const uint8_t *in = plain + dwords_at(info);
    uint8_t *out = column + GROUP_ROWS * info.odd_bytes + 4 * lane;
    const int n = n_dwords(info);
    for (int j = 0; j < n; ++j) {
        std::memcpy(out + j * 4 * GROUP_ROWS, in + 4 * j, 4);
    }
}

}  // namespace

void gather_block(const TypeInfo &info, const uint8_t *column, int lane, uint8_t *plain) {
    for (int i = 0; i < info.odd_bytes; ++i) {
        plain[info.odd_offset + i] = column[lane * info.odd_bytes + i];
    }
    const uint8_t *in = column + GROUP_ROWS * info.odd_bytes + 4 * lane;
    uint8_t *out = plain + dwords_at(info);
    const int n = n_dwords(info);
    for (int j = 0; j < n; ++j) {
        std::memcpy(out + 4 * j, in + j * 4 * GROUP_ROWS, 4);
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

namespace {

struct RepackJob {
    const TypeInfo *info;
    uint8_t *data;
    int64_t ne0;
    int64_t n_groups;
    bool forward;
    int n_threads;
    uint8_t *scratch;  // GROUP_ROWS rows for each thread
};

void repack_share(void *context, int ith) {
    const auto &job = *static_cast<const RepackJob *>(context);
    uint8_t *scratch = job.scratch + ith * GROUP_ROWS * row_bytes(*job.info, job.ne0);
    repack_groups(*job.info, job.data, job.ne0, job.n_groups * ith / job.n_threads,
                  job.n_groups * (ith + 1) / job.n_threads, job.forward, scratch);
}

}  // namespace

}  // namespace ls

extern "C" __attribute__((visibility("default"))) int32_t ls_repack(ls_pool *pool, int32_t type, uint8_t *data,
                                                                    int64_t ne0, int64_t n_rows, int32_t forward) {
    const ls::TypeInfo *info = ls::type_info(type);
    if (info == nullptr || !info->groups || ne0 % info->block_elements != 0) {
        return ls::UNSUPPORTED;
    }
    const int n_threads = pool == nullptr ? 1 : pool->size();
    const auto bytes = static_cast<size_t>(n_threads * ls::GROUP_ROWS * ls::row_bytes(*info, ne0));
    const std::unique_ptr<uint8_t[]> scratch(new (std::nothrow) uint8_t[bytes]);
    if (scratch == nullptr) {
        return ls::UNSUPPORTED;
    }
    ls::RepackJob job{info, data, ne0, n_rows / ls::GROUP_ROWS, forward != 0, n_threads, scratch.get()};
    if (pool == nullptr) {
        ls::repack_share(&job, 0);
    } else {
        pool->run(ls::repack_share, &job);
    }
    return ls::OK;
}
