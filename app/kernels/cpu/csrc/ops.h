// The kernels of everything but products, one per Kind; see plan.h for their sources and parameters.
//
// Every kernel may be called by several threads with its share `ith` of `nth`. The result may be the memory of a
// source wherever ggml allows that. Elements of a row follow one another (nb[0] is the element's size) unless said.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "plan.h"
#include "types.h"

namespace ls {

int32_t binary(const Step &step, int ith, int nth);
int32_t scale(const Step &step, int ith, int nth);
int32_t glu(const Step &step, int ith, int nth);
int32_t unary(const Step &step, int ith, int nth);
int32_t norm(const Step &step, int ith, int nth);
int32_t rms_norm(const Step &step, int ith, int nth);
int32_t soft_max(const Step &step, int ith, int nth);
int32_t rope_table(const Step &step, int ith, int nth);
int32_t rope(const Step &step, int ith, int nth);
int32_t get_rows(const Step &step, int ith, int nth);
int32_t set_rows(const Step &step, int ith, int nth);
int32_t copy(const Step &step, int ith, int nth);  // any strides
int32_t attention(const Step &step, int ith, int nth);
int32_t attention_combine(const Step &step, int ith, int nth);
int32_t sum_rows(const Step &step, int ith, int nth);
int32_t clamp(const Step &step, int ith, int nth);
int32_t argsort(const Step &step, int ith, int nth);  // src[0] rows of F32 to rows of I32; equals in the order of their places

int64_t rope_table_scratch(const Step &step);
int64_t attention_scratch(const Step &step, int n_threads);
int64_t argsort_scratch(const Step &step, int n_threads);

inline float param_f32(const Step &step, int index) {
    float value;
    std::memcpy(&value, &step.params[index], sizeof value);
    return value;
}

inline uint8_t *row_of(const TensorRef &t, int64_t i1, int64_t i2, int64_t i3) {
    return t.data + i1 * t.nb[1] + i2 * t.nb[2] + i3 * t.nb[3];
}

inline float *f32_row(const TensorRef &t, int64_t i1, int64_t i2, int64_t i3) {
    return reinterpret_cast<float *>(row_of(t, i1, i2, i3));
}

// Reads an index of either width.
inline int64_t index_at(const TensorRef &indices, int64_t i0, int64_t i1, int64_t i2) {
    const uint8_t *p = indices.data + i0 * indices.nb[0] + i1 * indices.nb[1] + i2 * indices.nb[2];
    if (indices.type == TYPE_I32) {
        return static_cast<int32_t>(load_u32(p));
    }
    int64_t value;
    std::memcpy(&value, p, sizeof value);
    return value;
}

struct Range {
    int64_t first;
    int64_t last;
};

// Thread `ith`'s share of `n` things.
inline Range share(int64_t n, int ith, int nth) { return {n * ith / nth, n * (ith + 1) / nth}; }

// Where row number `row` of a tensor stands.
struct RowIndex {
    int64_t i1, i2, i3;
};

inline RowIndex row_index(const TensorRef &t, int64_t row) {
    return {row % t.ne[1], row / t.ne[1] % t.ne[2], row / (t.ne[1] * t.ne[2])};
}

inline int64_t n_rows(const TensorRef &t) { return t.ne[1] * t.ne[2] * t.ne[3]; }

// Calls `body(row, first, last)` for this thread's share of the rows of `t`; rows are cut in pieces when they are few.
template <typename Body>
void for_row_parts(const TensorRef &t, int ith, int nth, Body body) {
    constexpr int64_t PIECE = 512;
    const int64_t rows = n_rows(t);
    const int64_t pieces = rows >= 4 * nth ? 1 : std::max<int64_t>(1, t.ne[0] / PIECE);
    const Range mine = share(rows * pieces, ith, nth);
    for (int64_t unit = mine.first; unit < mine.last; ++unit) {
        const int64_t piece = unit % pieces;
        body(row_index(t, unit / pieces), t.ne[0] * piece / pieces, t.ne[0] * (piece + 1) / pieces);
    }
}

}  // namespace ls
