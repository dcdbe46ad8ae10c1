// Plain C++ on 16-byte vector types: SSE2 on x86-64, NEON on ARM. Byte products are formed in 16 bits, even and odd
// bytes apart, and widened once per few dwords. 64-bit ARM adds its look-up, its conversion of half floats and, where
// the compiler's target has it, the product of bytes.
#pragma once

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace ls {

constexpr uint32_t SIGNED_BIAS = 0;

typedef int16_t S16 __attribute__((vector_size(16)));
typedef uint16_t HalfBits __attribute__((vector_size(8)));
typedef uint8_t FourBytes __attribute__((vector_size(4)));

LS_INLINE S16 broadcast_dword(const uint8_t *p) {
    return reinterpret_cast<S16>(splat_u(load_u32(p)));
}

LS_INLINE S16 even_signed(S16 bytes) { return (bytes << 8) >> 8; }
LS_INLINE S16 odd_signed(S16 bytes) { return bytes >> 8; }

LS_INLINE I add_pairs(I sum, S16 products) {
    const auto pairs = reinterpret_cast<I>(products);
    return sum + ((pairs << 16) >> 16) + (pairs >> 16);
}

// The contract of these three is in matvec_simd_avx512.h.
LS_INLINE I start_signed(int32_t) { return I{}; }

#if defined(__ARM_FEATURE_DOTPROD)

template <int N, int MAX_Q, int T>
LS_INLINE void dot(I *sums, const U *q, const uint8_t *a, int64_t stride) {
    static_assert(MAX_Q <= 127, "both operands are signed");
    for (int j = 0; j < N; ++j) {
        for (int t = 0; t < T; ++t) {
            const S16 bytes = broadcast_dword(a + t * stride + 4 * j);
            sums[t] = reinterpret_cast<I>(vdotq_s32(reinterpret_cast<int32x4_t>(sums[t]), reinterpret_cast<int8x16_t>(q[j]),
                                                    reinterpret_cast<int8x16_t>(bytes)));
        }
    }
}

template <int T>
LS_INLINE void dot_signed(I *sums, const U *q, const uint8_t *a, int64_t stride) {
    dot<8, 127, T>(sums, q, a, stride);
}

#else

template <int N, int MAX_Q, int T>
LS_INLINE void dot(I *sums, const U *q, const uint8_t *a, int64_t stride) {
    constexpr int STEP = dwords_per_sum(MAX_Q) < N ? dwords_per_sum(MAX_Q) : N;
    for (int t = 0; t < T; ++t) {
        for (int j = 0; j < N; j += STEP) {
            S16 products{};
            for (int i = j; i < j + STEP; ++i) {
                const S16 bytes = broadcast_dword(a + t * stride + 4 * i);
                products += reinterpret_cast<S16>(q[i] & 0x00ff00ffu) * even_signed(bytes);
                products += reinterpret_cast<S16>((q[i] >> 8) & 0x00ff00ffu) * odd_signed(bytes);
            }
            sums[t] = add_pairs(sums[t], products);
        }
    }
}

template <int T>
LS_INLINE void dot_signed(I *sums, const U *q, const uint8_t *a, int64_t stride) {
    for (int t = 0; t < T; ++t) {
        for (int j = 0; j < 8; ++j) {
            const auto weights = reinterpret_cast<S16>(q[j]);
            const S16 bytes = broadcast_dword(a + t * stride + 4 * j);
            const S16 even = even_signed(weights) * even_signed(bytes);
            sums[t] = add_pairs(sums[t], even + odd_signed(weights) * odd_signed(bytes));
        }
    }
}

#endif

// Half floats in the low 16 bits of every lane to floats; subnormal ones by the subtraction that normalises them.
LS_INLINE F half_bits_to_float(U bits) {
    const U sign = (bits & 0x8000u) << 16;
    const U magnitude = (bits & 0x7fffu) << 13;
    const U exponent = magnitude & 0x0f800000u;
    const U bias = splat_u(112u << 23) + (reinterpret_cast<U>(exponent == 0x0f800000u) & (112u << 23));
    const F smallest = reinterpret_cast<F>(splat_u(113u << 23));
    const U subnormal = reinterpret_cast<U>(reinterpret_cast<F>(magnitude + (113u << 23)) - smallest);
    const U is_subnormal = reinterpret_cast<U>(exponent == 0u);
    return reinterpret_cast<F>((is_subnormal & subnormal) | (~is_subnormal & (magnitude + bias)) | sign);
}

LS_INLINE U widen_halves(const uint8_t *p) {
    HalfBits bits;
    std::memcpy(&bits, p, sizeof bits);
    return __builtin_convertvector(bits, U);
}

LS_INLINE F halves(const uint8_t *p) {
#if defined(__aarch64__)
    uint16x4_t bits;
    std::memcpy(&bits, p, sizeof bits);
    return reinterpret_cast<F>(vcvt_f32_f16(vreinterpret_f16_u16(bits)));
#else
    return half_bits_to_float(widen_halves(p));
#endif
}

LS_INLINE void half_pair(U value, F *low, F *high) {
    *low = half_bits_to_float(value & 0xffffu);
    *high = half_bits_to_float(value >> 16);
}

LS_INLINE U widen_bytes(const uint8_t *p) {
    FourBytes bytes;
    std::memcpy(&bytes, p, sizeof bytes);
    return __builtin_convertvector(bytes, U);
}

LS_INLINE U lookup(const int8_t *table, U nibbles) {
#if defined(__aarch64__)
    return reinterpret_cast<U>(vqtbl1q_s8(vld1q_s8(table), reinterpret_cast<uint8x16_t>(nibbles)));
#else
    uint8_t bytes[4 * LANES];
    std::memcpy(bytes, &nibbles, sizeof bytes);
    for (uint8_t &byte : bytes) {
        byte = static_cast<uint8_t>(table[byte]);
    }
    U found;
    std::memcpy(&found, bytes, sizeof found);
    return found;
#endif
}

LS_INLINE void add_fifth_bits(U bits, U *q) {
    unrolled<8>([&](auto j) LS_INLINE_LAMBDA {
        const U four = (bits >> (4 * j)) & 15u;
        q[j] |= ((four << 4) | (four << 11) | (four << 18) | (four << 25)) & 0x10101010u;
    });
}

}  // namespace ls
