// ggml's tensor types as the native core knows them: sizes, the grouped layout's descriptor, and exact dequantising.
//
// One row per type in types.cpp; a type without a row is unsupported here and runs on the reference executor.
// Block formats follow ggml-common.h; `gguf.quants` is the oracle in the tests.
#pragma once

#include <cstdint>
#include <cstring>

namespace ls {

enum Type : int32_t {
    TYPE_F32 = 0,
    TYPE_F16 = 1,
    TYPE_Q4_0 = 2,
    TYPE_Q4_1 = 3,
    TYPE_Q5_0 = 6,
    TYPE_Q5_1 = 7,
    TYPE_Q8_0 = 8,
    TYPE_Q2_K = 10,
    TYPE_Q3_K = 11,
    TYPE_Q4_K = 12,
    TYPE_Q5_K = 13,
    TYPE_Q6_K = 14,
    TYPE_IQ4_NL = 20,
    TYPE_IQ4_XS = 23,
    TYPE_I32 = 26,  // of indices only
    TYPE_BF16 = 30,
    TYPE_MXFP4 = 39,
};

constexpr int MAX_BLOCK_ELEMENTS = 256;
constexpr int MAX_BLOCK_BYTES = 256;

struct TypeInfo {
    int32_t type;
    int32_t block_elements;
    int32_t block_bytes;
    int32_t odd_offset;  // the bytes of a block that are not part of a whole dword: where they start
    int32_t odd_bytes;   // and how many they are (0, 1 or 2)
    bool groups;         // has a grouped layout
    int32_t support;     // ls_type_support's mask
    void (*dequantize)(const uint8_t *block, float *out);  // one plain block; exact
};

// The type's row, or null when the native core does not know the type.
const TypeInfo *type_info(int32_t type);

inline int64_t row_bytes(const TypeInfo &info, int64_t ne0) {
    return ne0 / info.block_elements * info.block_bytes;
}

// The signed values that IQ4_NL and IQ4_XS (first) and MXFP4 (second, doubled) look up by nibble.
extern const int8_t IQ4_VALUES[16];
extern const int8_t MXFP4_VALUES[16];

inline float bits_to_float(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

inline uint32_t float_to_bits(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

inline float bf16_to_float(uint16_t half) { return bits_to_float(uint32_t{half} << 16); }

// IEEE half to float, exact for every input.
inline float half_to_float(uint16_t half) {
    const uint32_t sign = uint32_t{half & 0x8000u} << 16;
    const uint32_t magnitude = uint32_t{half & 0x7fffu} << 13;
    const uint32_t exponent = magnitude & 0x0f800000u;
    if (exponent == 0) {
        // The subtraction normalises a subnormal half without touching a subnormal float.
        const float scaled = bits_to_float(magnitude + (113u << 23)) - bits_to_float(113u << 23);
        return bits_to_float(float_to_bits(scaled) | sign);
    }
    const uint32_t bias = exponent == 0x0f800000u ? 224u << 23 : 112u << 23;
    return bits_to_float((magnitude + bias) | sign);
}

inline uint16_t load_u16(const uint8_t *p) {
    uint16_t value;
    std::memcpy(&value, p, sizeof value);
    return value;
}

inline uint32_t load_u32(const uint8_t *p) {
    uint32_t value;
    std::memcpy(&value, p, sizeof value);
    return value;
}

// MXFP4's exponent byte to half of the power of two that it names (the values are doubled).
inline float e8m0_half_to_float(uint8_t e) {
    return bits_to_float(e < 2 ? 0x00200000u << e : uint32_t{e - 1u} << 23);
}

}  // namespace ls
