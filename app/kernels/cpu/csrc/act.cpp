// Quantising activations. Written so that compilers vectorise it at every level: no branches inside the 32 elements.
#include "act.h"

#include <algorithm>

#include "types.h"

namespace ls {

namespace {

// Adding and taking away 1.5 * 2^23 rounds to the nearest even integer, which then stands in the low bits.
constexpr float ROUND = 12582912.0f;
constexpr uint32_t ROUND_BITS = 0x4b400000u;
// Below this a block counts as zero: 127 / amax must not overflow.
constexpr uint32_t TINY_BITS = 0x0da24260u;  // 1e-30f
constexpr uint32_t INFINITY_BITS = 0x7f800000u;

uint32_t largest_magnitude(const float *x) {
    uint32_t largest = 0;
    for (int i = 0; i < ACT_ELEMENTS; ++i) {
        largest = std::max(largest, float_to_bits(x[i]) & 0x7fffffffu);  // as integers, so that NaN is the largest
    }
    return largest;
}

void quantize_block(const float *x, ActBlock *out) {
    const uint32_t largest = largest_magnitude(x);
    const bool usable = largest > TINY_BITS && largest < INFINITY_BITS;
    const float amax = bits_to_float(largest);
    const float inverse = usable ? 127.0f / amax : 0.0f;
    int32_t sums[2] = {0, 0};
    for (int half = 0; half < 2; ++half) {
        int32_t sum = 0;
        for (int i = 16 * half; i < 16 * half + 16; ++i) {
            const auto q = static_cast<int32_t>(float_to_bits(x[i] * inverse + ROUND) - ROUND_BITS);
            out->q[i] = static_cast<int8_t>(q);
            sum += out->q[i];
        }
        sums[half] = sum;
    }
    const int32_t sum = sums[0] + sums[1];
    out->d = largest > TINY_BITS ? amax / 127.0f : 0.0f;
    out->ds = out->d * static_cast<float>(sum);
    out->ds_first = out->d * static_cast<float>(sums[0]);
    out->n8 = -8 * sum;
    out->n16 = -16 * sum;
    out->n128 = -128 * sum;
    out->n32[0] = -32 * sums[0];
    out->n32[1] = -32 * sums[1];
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
