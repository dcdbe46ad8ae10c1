// Vectors of 32-bit lanes for the quantised products: 16, 8 or 4 lanes by level, on GCC's and Clang's vector types, so
// that the decoders are written once. Each level's header adds what the operators do not say: products of bytes,
// half floats, table look-ups, and the spreading of a fifth bit.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#include "types.h"

#define LS_INLINE inline __attribute__((always_inline))
#define LS_INLINE_LAMBDA __attribute__((always_inline))

namespace ls {

#if defined(__AVX512VNNI__)
constexpr int LANES = 16;
#elif defined(__AVX2__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

typedef uint32_t U __attribute__((vector_size(4 * LANES)));
typedef int32_t I __attribute__((vector_size(4 * LANES)));
typedef float F __attribute__((vector_size(4 * LANES)));

LS_INLINE U load(const uint8_t *p) {
    U value;
    std::memcpy(&value, p, sizeof value);
    return value;
}

LS_INLINE void store(float *p, F value) { std::memcpy(p, &value, sizeof value); }

LS_INLINE U splat_u(uint32_t value) { return U{} + value; }
LS_INLINE I splat_i(int32_t value) { return I{} + value; }

LS_INLINE F to_float(I value) { return __builtin_convertvector(value, F); }

// Byte B of every lane as a number.
template <int B>
LS_INLINE F byte_to_float(U value) {
    return to_float(reinterpret_cast<I>((value >> (8 * B)) & 0xffu));
}

template <int B>
LS_INLINE F signed_byte_to_float(U value) {
    return to_float(reinterpret_cast<I>(value << (24 - 8 * B)) >> 24);
}

// Calls f with 0, 1, ... N - 1 as compile-time constants.
template <class Function, int... S>
LS_INLINE void for_each_constant(Function &&f, std::integer_sequence<int, S...>) {
    (f(std::integral_constant<int, S>{}), ...);
}

template <int N, class Function>
LS_INLINE void unrolled(Function &&f) {
    for_each_constant(f, std::make_integer_sequence<int, N>{});
}

// How many dwords' byte products (each at most max_q * 128) a 16-bit lane can add up, two per dword.
constexpr int dwords_per_sum(int max_q) { return max_q <= 15 ? 8 : max_q <= 31 ? 4 : max_q <= 63 ? 2 : 1; }

}  // namespace ls

#if defined(__AVX512VNNI__)
#include "matvec_simd_avx512.h"
#elif defined(__AVX2__)
#include "matvec_simd_avx2.h"
#else
#include "matvec_simd_portable.h"
#endif
