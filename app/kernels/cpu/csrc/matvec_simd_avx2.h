// AVX2: a group is two registers. vpmaddubsw adds pairs in 16 bits, so small weights add up several dwords there, and
// signed ones go in as magnitudes with the sign moved to the activations.
#pragma once

#include <immintrin.h>

namespace ls {

constexpr uint32_t SIGNED_BIAS = 0;

LS_INLINE __m256i broadcast_dword(const uint8_t *p) {
    int32_t dword;
    std::memcpy(&dword, p, sizeof dword);
    return _mm256_set1_epi32(dword);
}

LS_INLINE I add_pairs(I sum, __m256i products) {
    return sum + reinterpret_cast<I>(_mm256_madd_epi16(products, _mm256_set1_epi16(1)));
}

// The contract of these three is in matvec_simd_avx512.h.
template <int N, int MAX_Q, int T>
LS_INLINE void dot(I *sums, const U *q, const uint8_t *a, int64_t stride) {
    constexpr int STEP = dwords_per_sum(MAX_Q) < N ? dwords_per_sum(MAX_Q) : N;
    for (int j = 0; j < N; j += STEP) {
        __m256i products[T];
        for (int i = j; i < j + STEP; ++i) {
            for (int t = 0; t < T; ++t) {
                const __m256i pairs =
                    _mm256_maddubs_epi16(reinterpret_cast<__m256i>(q[i]), broadcast_dword(a + t * stride + 4 * i));
                products[t] = i == j ? pairs : _mm256_add_epi16(products[t], pairs);
            }
        }
        for (int t = 0; t < T; ++t) {
            sums[t] = add_pairs(sums[t], products[t]);
        }
    }
}

LS_INLINE I start_signed(int32_t) { return I{}; }

template <int T>
LS_INLINE void dot_signed(I *sums, const U *q, const uint8_t *a, int64_t stride) {
    for (int j = 0; j < 8; ++j) {
        const auto weights = reinterpret_cast<__m256i>(q[j]);
        const __m256i magnitudes = _mm256_abs_epi8(weights);
        for (int t = 0; t < T; ++t) {
            const __m256i turned = _mm256_sign_epi8(broadcast_dword(a + t * stride + 4 * j), weights);
            sums[t] = add_pairs(sums[t], _mm256_maddubs_epi16(magnitudes, turned));
        }
    }
}

LS_INLINE F halves(const uint8_t *p) {
    return reinterpret_cast<F>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))));
}

LS_INLINE void half_pair(U value, F *low, F *high) {
    const __m256i order = _mm256_broadcastsi128_si256(_mm_set_epi8(15, 14, 11, 10, 7, 6, 3, 2, 13, 12, 9, 8, 5, 4, 1, 0));
    const __m256i split =
        _mm256_permute4x64_epi64(_mm256_shuffle_epi8(reinterpret_cast<__m256i>(value), order), 0xd8);
    *low = reinterpret_cast<F>(_mm256_cvtph_ps(_mm256_castsi256_si128(split)));
    *high = reinterpret_cast<F>(_mm256_cvtph_ps(_mm256_extracti128_si256(split, 1)));
}

LS_INLINE U widen_bytes(const uint8_t *p) {
    return reinterpret_cast<U>(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p))));
}

LS_INLINE U widen_halves(const uint8_t *p) {
    return reinterpret_cast<U>(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))));
}

LS_INLINE U lookup(const int8_t *table, U nibbles) {
    const __m256i values = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i *>(table)));
    return reinterpret_cast<U>(_mm256_shuffle_epi8(values, reinterpret_cast<__m256i>(nibbles)));
}

LS_INLINE void add_fifth_bits(U bits, U *q) {
    unrolled<8>([&](auto j) LS_INLINE_LAMBDA {
        constexpr int STEP = 0x01010101 * (j / 2);
        const __m256i spread = _mm256_broadcastsi128_si256(
            _mm_set_epi32(0x0c0c0c0c + STEP, 0x08080808 + STEP, 0x04040404 + STEP, STEP));
        const __m256i chosen = _mm256_set1_epi32(j % 2 == 0 ? 0x08040201 : static_cast<int>(0x80402010));
        const __m256i byte = _mm256_shuffle_epi8(reinterpret_cast<__m256i>(bits), spread);
        const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(byte, chosen), chosen);
        q[j] |= reinterpret_cast<U>(set) & 0x10101010u;
    });
}

}  // namespace ls
