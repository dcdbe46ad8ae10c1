// AVX512 with VNNI: a group's 16 rows are one register. vpdpbusd wants the weights unsigned, so signed ones are biased
// by 128 and the product starts from -128 * sum(activations).
#pragma once

#include <immintrin.h>

namespace ls {

constexpr uint32_t SIGNED_BIAS = 0x80808080u;

LS_INLINE __m512i broadcast_dword(const uint8_t *p) {
    int32_t dword;
    std::memcpy(&dword, p, sizeof dword);
    return _mm512_set1_epi32(dword);
}

// sums[t] += products of N dwords of unsigned weights of at most MAX_Q with 4 * N activations of token t, which start
// at `a`, `stride` bytes apart. Few tokens get two chains of sums each, to hide the latency of vpdpbusd.
template <int N, int MAX_Q, int T>
LS_INLINE void dot(I *sums, const U *q, const uint8_t *a, int64_t stride) {
    constexpr int CHAINS = T <= 2 ? 2 : 1;
    __m512i totals[CHAINS][T] = {};
    for (int t = 0; t < T; ++t) {
        totals[0][t] = reinterpret_cast<__m512i>(sums[t]);
    }
    for (int j = 0; j < N; ++j) {
        for (int t = 0; t < T; ++t) {
            __m512i &total = totals[j % CHAINS][t];
            total = _mm512_dpbusd_epi32(total, reinterpret_cast<__m512i>(q[j]), broadcast_dword(a + t * stride + 4 * j));
        }
    }
    for (int t = 0; t < T; ++t) {
        sums[t] = reinterpret_cast<I>(totals[0][t]);
        if (CHAINS == 2) {
            sums[t] += reinterpret_cast<I>(totals[CHAINS - 1][t]);
        }
    }
}

// The same for 8 dwords of signed weights biased by SIGNED_BIAS; sums start from what takes the bias away.
LS_INLINE I start_signed(int32_t n128) { return splat_i(n128); }

template <int T>
LS_INLINE void dot_signed(I *sums, const U *q, const uint8_t *a, int64_t stride) {
    dot<8, 255, T>(sums, q, a, stride);
}

LS_INLINE F halves(const uint8_t *p) {
    return reinterpret_cast<F>(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p))));
}

// The two half floats of every lane.
LS_INLINE void half_pair(U value, F *low, F *high) {
    const __m512i order = _mm512_set_epi16(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1, 30, 28, 26, 24, 22,
                                           20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i split = _mm512_permutexvar_epi16(order, reinterpret_cast<__m512i>(value));
    *low = reinterpret_cast<F>(_mm512_cvtph_ps(_mm512_castsi512_si256(split)));
    *high = reinterpret_cast<F>(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(split, 1)));
}

LS_INLINE U widen_bytes(const uint8_t *p) {
    return reinterpret_cast<U>(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))));
}

LS_INLINE U widen_halves(const uint8_t *p) {
    return reinterpret_cast<U>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p))));
}

// table[nibble] for every byte, biased.
LS_INLINE U lookup(const int8_t *table, U nibbles) {
    const __m512i values = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i *>(table)));
    const __m512i found = _mm512_shuffle_epi8(values, reinterpret_cast<__m512i>(nibbles));
    return reinterpret_cast<U>(found) ^ SIGNED_BIAS;
}

// Adds 16 to byte b of q[j] where bit 4 * j + b of the lane of `bits` is set; 8 dwords.
LS_INLINE void add_fifth_bits(U bits, U *q) {
    const __m512i sixteen = _mm512_set1_epi8(16);
    unrolled<8>([&](auto j) LS_INLINE_LAMBDA {
        const __m512i spread = _mm512_set4_epi32(0x0c0c0c0c + 0x01010101 * (j / 2), 0x08080808 + 0x01010101 * (j / 2),
                                                 0x04040404 + 0x01010101 * (j / 2), 0x01010101 * (j / 2));
        const __m512i byte = _mm512_shuffle_epi8(reinterpret_cast<__m512i>(bits), spread);
        const __mmask64 set = _mm512_test_epi8_mask(byte, _mm512_set1_epi32(j % 2 == 0 ? 0x08040201 : static_cast<int>(0x80402010)));
        const auto value = reinterpret_cast<__m512i>(q[j]);
        q[j] = reinterpret_cast<U>(_mm512_mask_add_epi8(value, set, value, sixteen));
    });
}

}  // namespace ls
