// The two products of decoding over a block of keys, straight from the cache's type: logits of up to 4 query rows, and
// the weighted sum of V rows. Each row of K or V is converted once for all query rows that share it.
#pragma once

#include "shuffle.h"
#include "types.h"
#include "vec.h"

namespace ls {

constexpr int KEYS = 16;    // of a block
constexpr int MAX_ROWS = 4; // query rows at a time
constexpr int CHUNK = 4;    // vectors of a row that stay in registers
constexpr int64_t AHEAD = 32;  // rows: what comes next in a cache is wanted next, and takes so long to come
static_assert(KEYS % VW == 0, "whole vectors of keys");

// How to read VW elements of a row from element `i` on, a multiple of VW.
struct RowF32 {
    static vf at(const uint8_t *row, int64_t i) { return vload(reinterpret_cast<const float *>(row) + i); }
    static int64_t bytes(int64_t i) { return 4 * i; }
};

struct RowF16 {
    static vf at(const uint8_t *row, int64_t i) { return vload_f16(reinterpret_cast<const uint16_t *>(row) + i); }
    static int64_t bytes(int64_t i) { return 2 * i; }
};

struct RowBF16 {
    static vf at(const uint8_t *row, int64_t i) { return vload_bf16(reinterpret_cast<const uint16_t *>(row) + i); }
    static int64_t bytes(int64_t i) { return 2 * i; }
};

struct RowQ8_0 {
    static vf at(const uint8_t *row, int64_t i) {
        typedef int8_t vb __attribute__((vector_size(VW)));
        const uint8_t *block = row + i / 32 * 34;
        vb q;
        std::memcpy(&q, block + 2 + i % 32, sizeof q);
        return __builtin_convertvector(__builtin_convertvector(q, vi), vf) * half_to_float(load_u16(block));
    }
    static int64_t bytes(int64_t i) { return i / 32 * 34; }
};

// Rows of a block: row j stands at `data + j * stride`; behind `count` the last one is read again.
struct BlockRows {
    const uint8_t *data;
    int64_t stride;
    int64_t count;
    int64_t size;  // elements, whole vectors

    const uint8_t *row(int64_t j) const { return data + (j < count ? j : count - 1) * stride; }
};

template <typename Row, int N>
inline void load_chunk(const BlockRows &rows, int64_t j, int64_t i, vf *out) {
    const uint8_t *row = rows.row(j);
    const uint8_t *next = row + AHEAD * rows.stride + Row::bytes(i);
    for (int64_t at = 0; at < Row::bytes(N * VW); at += 64) {
        __builtin_prefetch(next + at);
    }
    for (int n = 0; n < N; ++n) {
        out[n] = Row::at(row, i + n * VW);
    }
}

// Adds the products of N vectors from element i on to R partial sums per key.
template <typename Row, int R, int N>
inline void dot_chunk(const BlockRows &keys, const float *queries, int64_t query_stride, int64_t i, vf (*sums)[KEYS]) {
    vf q[R][N];
    for (int r = 0; r < R; ++r) {
        for (int n = 0; n < N; ++n) {
            q[r][n] = vload(queries + r * query_stride + i + n * VW);
        }
    }
    for (int j = 0; j < KEYS; ++j) {
        vf k[N];
        load_chunk<Row, N>(keys, j, i, k);
        for (int r = 0; r < R; ++r) {
            vf sum = i == 0 ? vf{} : sums[r][j];
            for (int n = 0; n < N; ++n) {
                sum += q[r][n] * k[n];
            }
            sums[r][j] = sum;
        }
    }
}

template <typename Row, int R>
void dot_rows(const BlockRows &keys, const float *queries, int64_t query_stride, float *out, int64_t out_stride) {
    vf sums[R][KEYS];
    int64_t i = 0;
    for (; i + CHUNK * VW <= keys.size; i += CHUNK * VW) {
        dot_chunk<Row, R, CHUNK>(keys, queries, query_stride, i, sums);
    }
    for (; i < keys.size; i += VW) {
        dot_chunk<Row, R, 1>(keys, queries, query_stride, i, sums);
    }
    for (int r = 0; r < R; ++r) {
        for (int j = 0; j < KEYS; j += VW) {
            vstore(out + r * out_stride + j, sum_lanes(sums[r] + j));
        }
    }
}

template <typename Row, int R, int N>
inline void mix_chunk(const BlockRows &values, const float *weights, int64_t weight_stride, int64_t i, float *out,
                      int64_t out_stride) {
    vf acc[R][N];
    for (int r = 0; r < R; ++r) {
        for (int n = 0; n < N; ++n) {
            acc[r][n] = vload(out + r * out_stride + i + n * VW);
        }
    }
    for (int j = 0; j < KEYS; ++j) {
        vf v[N];
        load_chunk<Row, N>(values, j, i, v);
        for (int r = 0; r < R; ++r) {
            for (int n = 0; n < N; ++n) {
                acc[r][n] += v[n] * weights[r * weight_stride + j];
            }
        }
    }
    for (int r = 0; r < R; ++r) {
        for (int n = 0; n < N; ++n) {
            vstore(out + r * out_stride + i + n * VW, acc[r][n]);
        }
    }
}

template <typename Row, int R>
void mix_rows(const BlockRows &values, const float *weights, int64_t weight_stride, float *out, int64_t out_stride) {
    int64_t i = 0;
    for (; i + CHUNK * VW <= values.size; i += CHUNK * VW) {
        mix_chunk<Row, R, CHUNK>(values, weights, weight_stride, i, out, out_stride);
    }
    for (; i < values.size; i += VW) {
        mix_chunk<Row, R, 1>(values, weights, weight_stride, i, out, out_stride);
    }
}

// Both products for one type, by the number of query rows less one.
struct RowKernels {
    using Dot = void (*)(const BlockRows &, const float *, int64_t, float *, int64_t);
    using Mix = void (*)(const BlockRows &, const float *, int64_t, float *, int64_t);
    Dot dot[MAX_ROWS];
    Mix mix[MAX_ROWS];
};

template <typename Row>
constexpr RowKernels ROW_KERNELS = {
    {dot_rows<Row, 1>, dot_rows<Row, 2>, dot_rows<Row, 3>, dot_rows<Row, 4>},
    {mix_rows<Row, 1>, mix_rows<Row, 2>, mix_rows<Row, 3>, mix_rows<Row, 4>},
};

// Null for a type that has to be decoded to floats first.
inline const RowKernels *row_kernels(int32_t type) {
    switch (type) {
        case TYPE_F32:
            return &ROW_KERNELS<RowF32>;
        case TYPE_F16:
            return &ROW_KERNELS<RowF16>;
        case TYPE_BF16:
            return &ROW_KERNELS<RowBF16>;
        case TYPE_Q8_0:
            return &ROW_KERNELS<RowQ8_0>;
        default:
            return nullptr;
    }
}

}  // namespace ls
