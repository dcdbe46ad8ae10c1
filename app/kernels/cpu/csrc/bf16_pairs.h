// Rounding floats to bf16 in registers, where the level has the instruction (Intel SDM, VCVTNE2PS2BF16: to nearest even,
// subnormals to zero).
#pragma once

#if defined(__AVX512BF16__)
#define LS_HAS_PAIRS

#include <immintrin.h>

#include <cstdint>

namespace ls {

// 32 consecutive floats to 32 consecutive bf16.
inline __m512i to_bf16(__m512 first, __m512 second) {
    return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));
}

// The nearest float that is a bf16; ties go away from zero.
inline __m512 rounded(__m512 value) {
    const __m512i bits = _mm512_add_epi32(_mm512_castps_si512(value), _mm512_set1_epi32(0x8000));
    return _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

// Two floats of every lane to a dword of two bf16, the even one in its low half. Rounds ties away from zero: integer
// operations run on both of the processor's vector ports, the conversion instruction and a shuffle on one.
inline void store_pairs(uint8_t *line, __m512 even, __m512 odd) {
    const __m512i half = _mm512_set1_epi32(0x8000);
    const __m512i high_halves = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    const __m512i low = _mm512_srli_epi32(_mm512_add_epi32(_mm512_castps_si512(even), half), 16);
    const __m512i high = _mm512_add_epi32(_mm512_castps_si512(odd), half);
    constexpr int LOW_OR_HIGH_AND_MASK = 0xf8;
    _mm512_store_si512(line, _mm512_ternarylogic_epi32(low, high, high_halves, LOW_OR_HIGH_AND_MASK));
}

// 32 floats as the sum of two bf16 each. The conversion is the slow part, so what it rounds is made exact before.
inline void split(__m512 first, __m512 second, __m512i *high, __m512i *low) {
    const __m512 first_high = rounded(first);
    const __m512 second_high = rounded(second);
    *high = to_bf16(first_high, second_high);
    *low = to_bf16(_mm512_sub_ps(first, first_high), _mm512_sub_ps(second, second_high));
}

// The bf16 parts (dequant.h) of 32 floats of the activations, each in its tile of 1 KiB.
inline void put_parts(const float *values, int parts, uint8_t *out) {
    constexpr int PART_BYTES = 1024;
    const __m512 front = _mm512_loadu_ps(values);
    const __m512 back = _mm512_loadu_ps(values + 16);
    if (parts == 1) {
        _mm512_storeu_si512(out, to_bf16(front, back));
        return;
    }
    __m512i high;
    __m512i low;
    split(front, back, &high, &low);
    _mm512_storeu_si512(out, high);
    _mm512_storeu_si512(out + PART_BYTES, low);
}

}  // namespace ls

#endif
