// The table of types and their exact dequantisers, one plain block at a time. Formats: ggml-common.h.
#include "types.h"

#include "plan.h"

namespace ls {

const int8_t IQ4_VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
const int8_t MXFP4_VALUES[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

namespace {

float half_at(const uint8_t *p) { return half_to_float(load_u16(p)); }

void f32_block(const uint8_t *block, float *out) { *out = bits_to_float(load_u32(block)); }
void f16_block(const uint8_t *block, float *out) { *out = half_at(block); }
void bf16_block(const uint8_t *block, float *out) { *out = bf16_to_float(load_u16(block)); }

// 16 bytes of nibbles: low ones are elements 0-15, high ones 16-31. `high` has bit i set when element i is 16 more.
void nibbles32(const uint8_t *qs, uint32_t high, float d, float m, float *out) {
    for (int i = 0; i < 16; ++i) {
        const int low_q = (qs[i] & 15) | static_cast<int>((high >> i) & 1) << 4;
        const int high_q = (qs[i] >> 4) | static_cast<int>((high >> (i + 16)) & 1) << 4;
        out[i] = d * static_cast<float>(low_q) + m;
        out[i + 16] = d * static_cast<float>(high_q) + m;
    }
}

void q4_0_block(const uint8_t *block, float *out) {
    const float d = half_at(block);
    nibbles32(block + 2, 0, d, -8 * d, out);
}

void q4_1_block(const uint8_t *block, float *out) { nibbles32(block + 4, 0, half_at(block), half_at(block + 2), out); }

void q5_0_block(const uint8_t *block, float *out) {
    const float d = half_at(block);
    nibbles32(block + 6, load_u32(block + 2), d, -16 * d, out);
}

void q5_1_block(const uint8_t *block, float *out) {
    nibbles32(block + 8, load_u32(block + 4), half_at(block), half_at(block + 2), out);
}

void q8_0_block(const uint8_t *block, float *out) {
    const float d = half_at(block);
    for (int i = 0; i < 32; ++i) {
        out[i] = d * static_cast<float>(static_cast<int8_t>(block[2 + i]));
    }
}

void table32(const uint8_t *qs, const int8_t *values, float d, float *out) {
    for (int i = 0; i < 16; ++i) {
        out[i] = d * static_cast<float>(values[qs[i] & 15]);
        out[i + 16] = d * static_cast<float>(values[qs[i] >> 4]);
    }
}

void iq4_nl_block(const uint8_t *block, float *out) { table32(block + 2, IQ4_VALUES, half_at(block), out); }
void mxfp4_block(const uint8_t *block, float *out) { table32(block + 1, MXFP4_VALUES, e8m0_half_to_float(*block), out); }

void iq4_xs_block(const uint8_t *block, float *out) {
    const float d = half_at(block);
    const uint32_t high = load_u16(block + 2);
    for (int s = 0; s < 8; ++s) {
        const int low = (block[4 + s / 2] >> (s % 2 * 4)) & 15;
        const int scale = (low | static_cast<int>((high >> (2 * s)) & 3) << 4) - 32;
        table32(block + 8 + 16 * s, IQ4_VALUES, d * static_cast<float>(scale), out + 32 * s);
    }
}

void q2_k_block(const uint8_t *block, float *out) {
    const float d = half_at(block + 80);
    const float dmin = half_at(block + 82);
    for (int i = 0; i < 256; ++i) {
        const int scale = block[i / 16];
        const int q = (block[16 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2)) & 3;
        out[i] = d * static_cast<float>(scale & 15) * static_cast<float>(q) - dmin * static_cast<float>(scale >> 4);
    }
}

// The 6-bit scale of sub-block s (of 16) in Q3_K's 12 bytes.
int q3_k_scale(const uint8_t *scales, int s) {
    const int low = (scales[s % 8] >> (s / 8 * 4)) & 15;
    const int high = (scales[8 + s % 4] >> (s / 4 * 2)) & 3;
    return (low | high << 4) - 32;
}

void q3_k_block(const uint8_t *block, float *out) {
    const float d = half_at(block + 108);
    for (int i = 0; i < 256; ++i) {
        const int low = (block[32 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2)) & 3;
        const int bit = (block[i % 32] >> (i / 32)) & 1;
        const float scale = d * static_cast<float>(q3_k_scale(block + 96, i / 16));
        out[i] = scale * static_cast<float>(low + 4 * bit - 4);
    }
}

// The 6-bit scale and minimum of sub-block s (of 8) in the 12 bytes of Q4_K and Q5_K.
void k_scale_min(const uint8_t *scales, int s, int *scale, int *min) {
    if (s < 4) {
        *scale = scales[s] & 63;
        *min = scales[s + 4] & 63;
    } else {
        *scale = (scales[s + 4] & 15) | (scales[s - 4] >> 6) << 4;
        *min = (scales[s + 4] >> 4) | (scales[s] >> 6) << 4;
    }
}

void q4_q5_k_block(const uint8_t *block, const uint8_t *high, const uint8_t *qs, float *out) {
    const float d = half_at(block);
    const float dmin = half_at(block + 2);
    for (int s = 0; s < 8; ++s) {
        int scale = 0;
        int min = 0;
        k_scale_min(block + 4, s, &scale, &min);
        for (int i = 0; i < 32; ++i) {
            const int bit = high != nullptr ? (high[i] >> s) & 1 : 0;
            const int q = ((qs[s / 2 * 32 + i] >> (s % 2 * 4)) & 15) | bit << 4;
            out[32 * s + i] = d * static_cast<float>(scale) * static_cast<float>(q) - dmin * static_cast<float>(min);
        }
    }
}

void q4_k_block(const uint8_t *block, float *out) { q4_q5_k_block(block, nullptr, block + 16, out); }
void q5_k_block(const uint8_t *block, float *out) { q4_q5_k_block(block, block + 16, block + 48, out); }

void q6_k_block(const uint8_t *block, float *out) {
    const float d = half_at(block + 208);
    for (int i = 0; i < 256; ++i) {
        const int half = i / 128;
        const int quarter = i % 128 / 32;
        const int low = (block[half * 64 + quarter % 2 * 32 + i % 32] >> (quarter / 2 * 4)) & 15;
        const int high = (block[128 + half * 32 + i % 32] >> (quarter * 2)) & 3;
        const float scale = d * static_cast<float>(static_cast<int8_t>(block[192 + i / 16]));
        out[i] = scale * static_cast<float>((low | high << 4) - 32);
    }
}

constexpr int32_t READ = 1 | 2 | 4;  // MATVEC, MATMUL, GET_ROWS
constexpr int32_t WRITE = 8;         // SET_ROWS

// type, elements, bytes, odd offset, odd bytes, groups, support, dequantiser
constexpr TypeInfo TYPES[] = {
    {TYPE_F32, 1, 4, 0, 0, false, READ | WRITE, f32_block},
    {TYPE_F16, 1, 2, 0, 0, false, READ | WRITE, f16_block},
    {TYPE_BF16, 1, 2, 0, 0, false, READ | WRITE, bf16_block},
    {TYPE_Q4_0, 32, 18, 0, 2, true, READ, q4_0_block},
    {TYPE_Q4_1, 32, 20, 0, 0, true, READ, q4_1_block},
    {TYPE_Q5_0, 32, 22, 0, 2, true, READ, q5_0_block},
    {TYPE_Q5_1, 32, 24, 0, 0, true, READ, q5_1_block},
    {TYPE_Q8_0, 32, 34, 0, 2, true, READ | WRITE, q8_0_block},
    {TYPE_Q2_K, 256, 84, 0, 0, true, READ, q2_k_block},
    {TYPE_Q3_K, 256, 110, 108, 2, true, READ, q3_k_block},
    {TYPE_Q4_K, 256, 144, 0, 0, true, READ, q4_k_block},
    {TYPE_Q5_K, 256, 176, 0, 0, true, READ, q5_k_block},
    {TYPE_Q6_K, 256, 210, 208, 2, true, READ, q6_k_block},
    {TYPE_IQ4_NL, 32, 18, 0, 2, true, READ, iq4_nl_block},
    {TYPE_IQ4_XS, 256, 136, 0, 0, true, READ, iq4_xs_block},
    {TYPE_MXFP4, 32, 17, 0, 1, true, READ, mxfp4_block},
};

}  // namespace

const TypeInfo *type_info(int32_t type) {
    for (const TypeInfo &info : TYPES) {
        if (info.type == type) {
            return &info;
        }
    }
    return nullptr;
}

}  // namespace ls

extern "C" __attribute__((visibility("default"))) int32_t ls_type_support(int32_t type) {
    const ls::TypeInfo *info = ls::type_info(type);
    return info == nullptr ? 0 : info->support;
}
