// Decoders of grouped blocks of 32 elements. A decoder looks at one block column of LANES rows (part `part` of a group)
// and says, for each 32 elements: the bytes (8 dwords), what kind of bytes they are, and the float scale of every row.
//
// Contract: ELEMENTS and BYTES of a block; FORM; MAX_Q where unsigned; HAS_MIN; `unpack<S>(q)`, `scale<S>()`,
// `min<S>()`; START: which sum of the activations (act.h) the integer product of unsigned bytes starts from.
#pragma once

#include "matvec_simd.h"

namespace ls {

enum class Form {
    UNSIGNED,  // bytes 0..MAX_Q, one scale per 32
    SIGNED,    // signed bytes (biased where the level wants it), one scale per 32
    HALVES,    // unsigned bytes, two scales per 32
};

enum class Start { ZERO, N8, N16, N32, N32_EIGHTH };

// What most decoders have.
template <int TYPE_BYTES, int ODD_BYTES>
struct Column {
    static constexpr int BYTES = TYPE_BYTES;
    const uint8_t *odd;
    const uint8_t *dwords;

    LS_INLINE Column(const uint8_t *column, int part)
        : odd(column + part * LANES * ODD_BYTES), dwords(column + 16 * ODD_BYTES + part * LANES * 4) {}

    LS_INLINE U dword(int j) const { return load(dwords + 64 * j); }

    // Dwords first..first + 3 as 32 nibbles: the low ones first.
    LS_INLINE void nibbles(int first, U *q) const {
        for (int j = 0; j < 4; ++j) {
            const U bytes = dword(first + j);
            q[j] = bytes & 0x0f0f0f0fu;
            q[j + 4] = (bytes >> 4) & 0x0f0f0f0fu;
        }
    }
};

// 32 elements and a half float before them.
template <int TYPE_BYTES>
struct ScaledColumn : Column<TYPE_BYTES, 2> {
    static constexpr int ELEMENTS = 32;
    static constexpr bool HAS_MIN = false;
    F d;

    LS_INLINE ScaledColumn(const uint8_t *column, int part) : Column<TYPE_BYTES, 2>(column, part), d(halves(this->odd)) {}

    template <int S>
    LS_INLINE F scale() const {
        return d;
    }
};

// 32 elements; the first dword is scale and minimum.
template <int TYPE_BYTES>
struct AffineColumn : Column<TYPE_BYTES, 0> {
    static constexpr int ELEMENTS = 32;
    static constexpr bool HAS_MIN = true;
    static constexpr Form FORM = Form::UNSIGNED;
    static constexpr Start START = Start::ZERO;
    F d;
    F m;

    LS_INLINE AffineColumn(const uint8_t *column, int part) : Column<TYPE_BYTES, 0>(column, part) {
        half_pair(this->dword(0), &d, &m);
    }

    template <int S>
    LS_INLINE F scale() const {
        return d;
    }

    template <int S>
    LS_INLINE F min() const {
        return m;
    }
};

struct DecodeQ4_0 : ScaledColumn<18> {
    static constexpr Form FORM = Form::UNSIGNED;
    static constexpr Start START = Start::N8;
    static constexpr int MAX_Q = 15;
    using ScaledColumn::ScaledColumn;

    template <int S>
    LS_INLINE void unpack(U *q) const {
        nibbles(0, q);
    }
};

struct DecodeQ4_1 : AffineColumn<20> {
    static constexpr int MAX_Q = 15;
    using AffineColumn::AffineColumn;

    template <int S>
    LS_INLINE void unpack(U *q) const {
        nibbles(1, q);
    }
};

struct DecodeQ5_0 : ScaledColumn<22> {
    static constexpr Form FORM = Form::UNSIGNED;
    static constexpr Start START = Start::N16;
    static constexpr int MAX_Q = 31;
    using ScaledColumn::ScaledColumn;

    template <int S>
    LS_INLINE void unpack(U *q) const {
        nibbles(1, q);
        add_fifth_bits(dword(0), q);
    }
};

struct DecodeQ5_1 : AffineColumn<24> {
    static constexpr int MAX_Q = 31;
    using AffineColumn::AffineColumn;

    template <int S>
    LS_INLINE void unpack(U *q) const {
        nibbles(2, q);
        add_fifth_bits(dword(1), q);
    }
};

struct DecodeQ8_0 : ScaledColumn<34> {
    static constexpr Form FORM = Form::SIGNED;
    using ScaledColumn::ScaledColumn;

    template <int S>
    LS_INLINE void unpack(U *q) const {
        for (int j = 0; j < 8; ++j) {
            q[j] = dword(j) ^ SIGNED_BIAS;
        }
    }
};

LS_INLINE void lookup_all(const int8_t *table, U *q) {
    for (int j = 0; j < 8; ++j) {
        q[j] = lookup(table, q[j]);
    }
}

struct DecodeIQ4_NL : ScaledColumn<18> {
    static constexpr Form FORM = Form::SIGNED;
    using ScaledColumn::ScaledColumn;

    template <int S>
    LS_INLINE void unpack(U *q) const {
        nibbles(0, q);
        lookup_all(IQ4_VALUES, q);
    }
};

struct DecodeMXFP4 : Column<17, 1> {
    static constexpr int ELEMENTS = 32;
    static constexpr bool HAS_MIN = false;
    static constexpr Form FORM = Form::SIGNED;
    using Column::Column;

    template <int S>
    LS_INLINE void unpack(U *q) const {
        nibbles(0, q);
        lookup_all(MXFP4_VALUES, q);
    }

    template <int S>
    LS_INLINE F scale() const {
        const U e = widen_bytes(odd);
        const U subnormal = splat_u(0x00200000u) << (e & 1u);
        const U is_subnormal = reinterpret_cast<U>(e < 2u);
        return reinterpret_cast<F>((is_subnormal & subnormal) | (~is_subnormal & ((e - 1u) << 23)));
    }
};

}  // namespace ls
