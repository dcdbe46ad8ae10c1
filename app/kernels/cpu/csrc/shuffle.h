// Moving lanes between vectors: transposing, and summing as many vectors as there are lanes into one.
#pragma once

#include "vec.h"

namespace ls {

// a0 b0 a1 b1 ... from the low halves, and the same from the high ones.
inline void interleave(vf a, vf b, vf *low, vf *high) {
#if defined(__clang__)
#if defined(__AVX512F__)
    *low = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    *high = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#elif defined(__AVX2__)
    *low = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
    *high = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#else
    *low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    *high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
#endif
#else
#if defined(__AVX512F__)
    constexpr vi LOW = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23};
#elif defined(__AVX2__)
    constexpr vi LOW = {0, 8, 1, 9, 2, 10, 3, 11};
#else
    constexpr vi LOW = {0, 4, 1, 5};
#endif
    *low = __builtin_shuffle(a, b, LOW);
    *high = __builtin_shuffle(a, b, LOW + VW / 2);
#endif
}

// Lane i of the result is the sum of vector i. The vectors are used up.
inline vf sum_lanes(vf *v) {
    for (int n = VW / 2; n >= 1; n /= 2) {
        for (int i = 0; i < n; ++i) {
            vf low;
            vf high;
            interleave(v[i], v[i + n], &low, &high);
            v[i] = low + high;
        }
    }
    return v[0];
}

// VW rows of VW floats with stride `from` to columns with stride `to`.
inline void transpose_square(const float *in, int64_t from, float *out, int64_t to) {
    vf rows[VW];
    vf turned[VW];
    for (int i = 0; i < VW; ++i) {
        rows[i] = vload(in + i * from);
    }
    for (int n = VW; n > 1; n /= 2) {
        for (int i = 0; i < VW / 2; ++i) {
            interleave(rows[i], rows[i + VW / 2], &turned[2 * i], &turned[2 * i + 1]);
        }
        for (int i = 0; i < VW; ++i) {
            rows[i] = turned[i];
        }
    }
    for (int i = 0; i < VW; ++i) {
        vstore(out + i * to, rows[i]);
    }
}

}  // namespace ls
