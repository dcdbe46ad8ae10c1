// Random weights and activations for the native tests: valid blocks of any type, scales of every kind, seeded.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "types.h"

namespace ls_test {

using Bytes = std::vector<uint8_t>;
using Random = std::mt19937;

// Where a block has half floats, and how large they should be; -1 where there is none.
struct ScaleFields {
    int32_t type;
    int first;
    int second;
    bool is_float_type;
};

constexpr ScaleFields SCALE_FIELDS[] = {
    {ls::TYPE_Q4_0, 0, -1, false},   {ls::TYPE_Q4_1, 0, 2, false},    {ls::TYPE_Q5_0, 0, -1, false},
    {ls::TYPE_Q5_1, 0, 2, false},    {ls::TYPE_Q8_0, 0, -1, false},   {ls::TYPE_Q2_K, 80, 82, false},
    {ls::TYPE_Q3_K, 108, -1, false}, {ls::TYPE_Q4_K, 0, 2, false},    {ls::TYPE_Q5_K, 0, 2, false},
    {ls::TYPE_Q6_K, 208, -1, false}, {ls::TYPE_IQ4_NL, 0, -1, false}, {ls::TYPE_IQ4_XS, 0, -1, false},
    {ls::TYPE_MXFP4, -1, -1, false}, {ls::TYPE_F32, -1, -1, true},    {ls::TYPE_F16, -1, -1, true},
    {ls::TYPE_BF16, -1, -1, true},
};

inline uint32_t any_u32(Random &random) { return static_cast<uint32_t>(random()); }

// A half float of either sign between 2^-17 (subnormal) and 2^-3.
inline uint16_t random_half(Random &random) {
    const uint32_t bits = any_u32(random);
    const uint32_t exponent = bits % 12;
    const uint32_t mantissa = 1 + (bits >> 8) % 0x3ff;
    return static_cast<uint16_t>((bits >> 31) << 15 | exponent << 10 | mantissa);
}

inline void put_u16(uint8_t *at, uint16_t value) { std::memcpy(at, &value, sizeof value); }

inline void random_float_element(const ls::TypeInfo &info, Random &random, uint8_t *at) {
    const float value = std::normal_distribution<float>(0.0f, 0.05f)(random);
    if (info.type == ls::TYPE_F32) {
        std::memcpy(at, &value, 4);
    } else if (info.type == ls::TYPE_BF16) {
        put_u16(at, static_cast<uint16_t>(ls::float_to_bits(value) >> 16));
    } else {
        put_u16(at, random_half(random));
    }
}

inline void random_block(const ls::TypeInfo &info, Random &random, uint8_t *at) {
    for (const ScaleFields &fields : SCALE_FIELDS) {
        if (fields.type != info.type) {
            continue;
        }
        if (fields.is_float_type) {
            random_float_element(info, random, at);
            return;
        }
        for (int i = 0; i < info.block_bytes; ++i) {
            at[i] = static_cast<uint8_t>(any_u32(random) >> 13);
        }
        if (fields.first >= 0) {
            put_u16(at + fields.first, random_half(random));
        }
        if (fields.second >= 0) {
            put_u16(at + fields.second, random_half(random));
        }
        if (info.type == ls::TYPE_MXFP4) {
            at[0] = static_cast<uint8_t>(any_u32(random) % 4096 == 0 ? any_u32(random) % 3 : 118 + any_u32(random) % 8);
        }
    }
}

inline Bytes random_weights(const ls::TypeInfo &info, int64_t ne0, int64_t n_rows, Random &random) {
    Bytes bytes(static_cast<size_t>(ls::row_bytes(info, ne0) * n_rows));
    for (size_t at = 0; at < bytes.size(); at += static_cast<size_t>(info.block_bytes)) {
        random_block(info, random, bytes.data() + at);
    }
    return bytes;
}

// Sets all bytes but the float scales.
inline void fill_quants(const ls::TypeInfo &info, Bytes &weights, uint8_t fill) {
    for (const ScaleFields &fields : SCALE_FIELDS) {
        for (size_t i = 0; fields.type == info.type && i < weights.size(); ++i) {
            const auto at = static_cast<int>(i % static_cast<size_t>(info.block_bytes));
            const bool is_scale = at / 2 * 2 == fields.first || at / 2 * 2 == fields.second;
            weights[i] = is_scale || (at == 0 && info.type == ls::TYPE_MXFP4) ? weights[i] : fill;
        }
    }
}

inline std::vector<float> random_floats(int64_t n, Random &random) {
    std::normal_distribution<float> normal(0.1f, 1.0f);
    std::vector<float> values(static_cast<size_t>(n));
    for (float &value : values) {
        value = normal(random);
    }
    return values;
}

}  // namespace ls_test
