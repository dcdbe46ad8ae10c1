// Vectors of floats as wide as the level has them, by the compilers' vector extension, so that one text serves
// AVX512, AVX2, SSE2 and NEON; intrinsics only where the extension has no word for it.
#pragma once

#include <cstdint>
#include <cstring>

#include "types.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace ls {

#if defined(__AVX512F__)
constexpr int VW = 16;
#elif defined(__AVX2__)
constexpr int VW = 8;
#else
constexpr int VW = 4;
#endif

typedef float vf __attribute__((vector_size(4 * VW)));
typedef int32_t vi __attribute__((vector_size(4 * VW)));
typedef uint16_t vh __attribute__((vector_size(2 * VW)));

inline vf vload(const float *p) {
    vf v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

inline void vstore(float *p, vf v) { std::memcpy(p, &v, sizeof v); }
inline vf vset(float x) { return x - vf{}; }
inline vf vmax(vf a, vf b) { return a > b ? a : b; }
inline vf vmin(vf a, vf b) { return a < b ? a : b; }

// The first n < VW elements, the others zero; and back.
inline vf vload_part(const float *p, int64_t n) {
    vf v{};
    std::memcpy(&v, p, static_cast<size_t>(n) * sizeof(float));
    return v;
}

inline void vstore_part(float *p, vf v, int64_t n) { std::memcpy(p, &v, static_cast<size_t>(n) * sizeof(float)); }

inline float vsum(vf v) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps(reinterpret_cast<__m512>(v));
#else
    float sum = 0;
    for (int i = 0; i < VW; ++i) {
        sum += v[i];
    }
    return sum;
#endif
}

inline float vlargest(vf v) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps(reinterpret_cast<__m512>(v));
#else
    float largest = v[0];
    for (int i = 1; i < VW; ++i) {
        largest = v[i] > largest ? v[i] : largest;
    }
    return largest;
#endif
}

inline vf vload_f16(const uint16_t *p) {
#if defined(__AVX512F__)
    return reinterpret_cast<vf>(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p))));
#elif defined(__AVX2__)
    return reinterpret_cast<vf>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))));
#else
    vf v;
    for (int i = 0; i < VW; ++i) {
        v[i] = half_to_float(p[i]);
    }
    return v;
#endif
}

inline vf vload_bf16(const uint16_t *p) {
    vh v;
    std::memcpy(&v, p, sizeof v);
    const vi wide = __builtin_convertvector(v, vi) << 16;
    return reinterpret_cast<vf>(wide);
}

// To the nearest half, ties to even; what is too large becomes infinity, NaN stays NaN.
inline uint16_t float_to_half(float value) {
    const uint32_t bits = float_to_bits(value);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return static_cast<uint16_t>(sign | 0x7e00u);
    }
    if (magnitude >= 0x477ff000u) {
        return static_cast<uint16_t>(sign | 0x7c00u);
    }
    if (magnitude < 0x38800000u) {
        // Adding 0.5 leaves the bits of a subnormal half at the low end, rounded by the processor.
        return static_cast<uint16_t>(sign | (float_to_bits(bits_to_float(magnitude) + 0.5f) - 0x3f000000u));
    }
    const uint32_t odd = (magnitude >> 13) & 1;
    return static_cast<uint16_t>(sign | ((magnitude + 0xfffu + odd - (112u << 23)) >> 13));
}

inline uint16_t float_to_bf16(float value) {
    const uint32_t bits = float_to_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return static_cast<uint16_t>((bits >> 16) | 0x40u);
    }
    return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

inline void store_f16(uint16_t *p, vf v) {
#if defined(__AVX512F__)
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(p),
                        _mm512_cvtps_ph(reinterpret_cast<__m512>(v), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(__AVX2__)
    _mm_storeu_si128(reinterpret_cast<__m128i *>(p),
                     _mm256_cvtps_ph(reinterpret_cast<__m256>(v), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#else
    for (int i = 0; i < VW; ++i) {
        p[i] = float_to_half(v[i]);
    }
#endif
}

// e^x within 1e-7 relative; exactly 0 below the least float, infinity above the greatest, NaN for NaN.
inline vf vexp(vf x) {
    constexpr float ROUND = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
    const vf low = vset(-104.0f);
    const vf high = vset(89.0f);
    const vf bounded = x < low ? low : (x > high ? high : x);
    const vf shifted = bounded * 1.44269504f + ROUND;
    const vf n = shifted - ROUND;
    const vf r = (bounded - n * 0.693359375f) + n * 2.12194440e-4f;
    vf p = r * (1.0f / 5040) + (1.0f / 720);
    p = p * r + (1.0f / 120);
    p = p * r + (1.0f / 24);
    p = p * r + (1.0f / 6);
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
#if defined(__AVX512F__)
    return reinterpret_cast<vf>(_mm512_scalef_ps(reinterpret_cast<__m512>(p), reinterpret_cast<__m512>(n)));
#else
    // In two factors, so that neither overflows where the product does not.
    const vi whole = reinterpret_cast<vi>(shifted) - 0x4b400000;
    const vi half = whole >> 1;
    const vf first = reinterpret_cast<vf>((half + 127) << 23);
    const vf second = reinterpret_cast<vf>((whole - half + 127) << 23);
    return p * first * second;
#endif
}

inline vf vsigmoid(vf x) { return 1.0f / (1.0f + vexp(-x)); }

// GELU by tanh: x / (1 + e^-2u), which loses nothing near 0.
inline vf vgelu(vf x) {
    const vf u = x * (0.79788456f + 0.03567740814f * x * x);
    return x * vsigmoid(u + u);
}

inline vf vtanh(vf x) {
    const vf s = x * x;
    vf p = s * -0.0014558343870513183f + 0.003592128036572481f;
    p = p * s - 0.008863235529902197f;
    p = p * s + 0.021869488536155203f;
    p = p * s - 0.05396825396825397f;
    p = p * s + 0.13333333333333333f;
    p = p * s - 0.3333333333333333f;
    const vf near = x + x * s * p;
    const vf far = 1.0f - 2.0f / (vexp(x + x) + 1.0f);
    return s < 0.25f ? near : far;
}

}  // namespace ls
