// Quantising activations: by hand for AVX512, else in loops without branches that compilers vectorise.
#include "act.h"

#include <algorithm>

#include "types.h"

#if defined(__AVX512VNNI__)
#include <immintrin.h>
#endif

namespace ls {

namespace {

// Below this a block counts as zero: 127 / amax must not overflow.
constexpr uint32_t TINY_BITS = 0x0da24260u;  // 1e-30f
constexpr uint32_t INFINITY_BITS = 0x7f800000u;

struct HalfSums {
    int32_t first;
    int32_t second;
};

#if defined(__AVX512VNNI__)

uint32_t largest_magnitude(const float *x) {
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    const __m512i first = _mm512_and_si512(_mm512_loadu_si512(x), magnitude);
    const __m512i second = _mm512_and_si512(_mm512_loadu_si512(x + 16), magnitude);
    return _mm512_reduce_max_epu32(_mm512_max_epu32(first, second));
}

HalfSums round_to_bytes(const float *x, float inverse, int8_t *q) {
    const __m512 scale = _mm512_set1_ps(inverse);
    const __m512i first = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), scale));
    const __m512i second = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16), scale));
    const __m256i bytes = _mm256_set_m128i(_mm512_cvtepi32_epi8(second), _mm512_cvtepi32_epi8(first));
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(q), bytes);
    __m256i sums = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), bytes);
    sums = _mm256_hadd_epi32(sums, sums);
    sums = _mm256_hadd_epi32(sums, sums);
    return {_mm256_extract_epi32(sums, 0), _mm256_extract_epi32(sums, 4)};
}

#else

uint32_t largest_magnitude(const float *x) {
    uint32_t largest = 0;
    for (int i = 0; i < ACT_ELEMENTS; ++i) {
        largest = std::max(largest, float_to_bits(x[i]) & 0x7fffffffu);  // as integers, so that NaN is the largest
    }
    return largest;
}

// Adding and taking away 1.5 * 2^23 rounds to the nearest even integer, which then stands in the low bits.
constexpr float ROUND = 12582912.0f;
constexpr uint32_t ROUND_BITS = 0x4b400000u;

int32_t round_half(const float *x, float inverse, int8_t *q) {
    int32_t sum = 0;
    for (int i = 0; i < 16; ++i) {
        q[i] = static_cast<int8_t>(float_to_bits(x[i] * inverse + ROUND) - ROUND_BITS);
        sum += q[i];
    }
    return sum;
}

HalfSums round_to_bytes(const float *x, float inverse, int8_t *q) {
    return {round_half(x, inverse, q), round_half(x + 16, inverse, q + 16)};
}

#endif

void quantize_block(const float *x, ActBlock *out) {
    const uint32_t largest = largest_magnitude(x);
    const bool usable = largest > TINY_BITS && largest < INFINITY_BITS;
    const float amax = bits_to_float(largest);
    const HalfSums sums = round_to_bytes(x, usable ? 127.0f / amax : 0.0f, out->q);
    const int32_t sum = sums.first + sums.second;
    out->d = largest > TINY_BITS ? amax / 127.0f : 0.0f;
    out->ds = out->d * static_cast<float>(sum);
    out->ds_first = out->d * static_cast<float>(sums.first);
    out->n8 = -8 * sum;
    out->n16 = -16 * sum;
    out->n128 = -128 * sum;
    out->n32[0] = -32 * sums.first;
    out->n32[1] = -32 * sums.second;
}

}  // namespace

void quantize_blocks(const float *x, int64_t n_blocks, ActBlock *out) {
    for (int64_t i = 0; i < n_blocks; ++i) {
        quantize_block(x + i * ACT_ELEMENTS, out + i);
    }
}

int32_t quantize(const Step &step, int ith, int nth) {
    const TensorRef &x = step.src[0];
    const int64_t row_blocks = x.ne[0] / ACT_ELEMENTS;
    const int64_t n_units = row_blocks * x.ne[1] * x.ne[2] * x.ne[3];
    const int64_t last = n_units * (ith + 1) / nth;
    for (int64_t unit = n_units * ith / nth; unit < last;) {
        const int64_t row = unit / row_blocks;
        const int64_t block = unit % row_blocks;
        const int64_t n = std::min(row_blocks - block, last - unit);
        const int64_t i1 = row % x.ne[1];
        const int64_t i2 = row / x.ne[1] % x.ne[2];
        const int64_t i3 = row / x.ne[1] / x.ne[2];
        const uint8_t *source = x.data + i1 * x.nb[1] + i2 * x.nb[2] + i3 * x.nb[3];
        uint8_t *target = step.scratch + row * act_row_bytes(x.ne[0]);
        quantize_blocks(reinterpret_cast<const float *>(source) + block * ACT_ELEMENTS, n,
                        reinterpret_cast<ActBlock *>(target) + block);
        unit += n;
    }
    return OK;
}

}  // namespace ls

extern "C" __attribute__((visibility("default"))) int64_t ls_quantize_bytes(int64_t ne0, int64_t n_rows) {
    return n_rows * ls::act_row_bytes(ne0);
}
