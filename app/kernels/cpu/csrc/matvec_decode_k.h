// Decoders of grouped blocks of 256 elements; the contract is in matvec_decode.h. Element order follows ggml-common.h.
#pragma once

#include "matvec_decode.h"

namespace ls {

// Q4_K and Q5_K: dword 0 is scale and minimum, dwords 1-3 are eight 6-bit scales and minima.
template <int TYPE_BYTES>
struct ScaleMinColumn : Column<TYPE_BYTES, 0> {
    static constexpr int ELEMENTS = 256;
    static constexpr bool HAS_MIN = true;
    static constexpr Form FORM = Form::UNSIGNED;
    static constexpr Start START = Start::ZERO;
    F d;
    F dmin;
    U scales[2];
    U mins[2];

    LS_INLINE ScaleMinColumn(const uint8_t *column, int part) : Column<TYPE_BYTES, 0>(column, part) {
        half_pair(this->dword(0), &d, &dmin);
        dmin = -dmin;
        const U a = this->dword(1);
        const U b = this->dword(2);
        const U c = this->dword(3);
        scales[0] = a & 0x3f3f3f3fu;
        scales[1] = (c & 0x0f0f0f0fu) | ((a >> 2) & 0x30303030u);
        mins[0] = b & 0x3f3f3f3fu;
        mins[1] = ((c >> 4) & 0x0f0f0f0fu) | ((b >> 2) & 0x30303030u);
    }

    template <int S>
    LS_INLINE F scale() const {
        return d * byte_to_float<S % 4>(scales[S / 4]);
    }

    template <int S>
    LS_INLINE F min() const {
        return dmin * byte_to_float<S % 4>(mins[S / 4]);
    }

    // Sub-block S's 32 nibbles: low or high ones of the eight dwords it shares with its neighbour.
    template <int S>
    LS_INLINE U nibble(int first, int j) const {
        return (this->dword(first + S / 2 * 8 + j) >> (S % 2 * 4)) & 0x0f0f0f0fu;
    }
};

struct DecodeQ4_K : ScaleMinColumn<144> {
    static constexpr int MAX_Q = 15;
    using ScaleMinColumn::ScaleMinColumn;

    template <int S>
    LS_INLINE void unpack(U *q) const {
        for (int j = 0; j < 8; ++j) {
            q[j] = nibble<S>(4, j);
        }
    }
};

// Bit `from` of every byte at bit `to`, in place among other bits.
template <int FROM, int TO>
LS_INLINE U move_bits(U value) {
    if constexpr (FROM > TO) {
        return value >> (FROM - TO);
    } else {
        return value << (TO - FROM);
    }
}

struct DecodeQ5_K : ScaleMinColumn<176> {
    static constexpr int MAX_Q = 31;
    using ScaleMinColumn::ScaleMinColumn;

    template <int S>
    LS_INLINE void unpack(U *q) const {
        for (int j = 0; j < 8; ++j) {
            q[j] = nibble<S>(12, j) | (move_bits<S, 4>(dword(4 + j)) & 0x10101010u);
        }
    }
};

struct DecodeQ6_K : Column<210, 2> {
    static constexpr int ELEMENTS = 256;
    static constexpr bool HAS_MIN = false;
    static constexpr Form FORM = Form::HALVES;
    static constexpr Start START = Start::N32;
    static constexpr int MAX_Q = 63;
    F d;

    LS_INLINE DecodeQ6_K(const uint8_t *column, int part) : Column(column, part), d(halves(odd)) {}

    template <int S>
    LS_INLINE void unpack(U *q) const {
        constexpr int QUARTER = S % 4;
        for (int j = 0; j < 8; ++j) {
            const U low = dword(S / 4 * 16 + QUARTER % 2 * 8 + j) >> (QUARTER / 2 * 4);
            const U high = move_bits<2 * QUARTER, 4>(dword(32 + S / 4 * 8 + j));
            q[j] = (low & 0x0f0f0f0fu) | (high & 0x30303030u);
        }
    }

    template <int S, int HALF>
    LS_INLINE F scale() const {
        return d * signed_byte_to_float<(2 * S + HALF) % 4>(dword(48 + S / 2));
    }
};

struct DecodeQ2_K : Column<84, 0> {
    static constexpr int ELEMENTS = 256;
    static constexpr bool HAS_MIN = true;
    static constexpr Form FORM = Form::HALVES;
    static constexpr Start START = Start::ZERO;
    static constexpr int MAX_Q = 3;
    F d;
    F dmin;

    LS_INLINE DecodeQ2_K(const uint8_t *column, int part) : Column(column, part) {
        half_pair(dword(20), &d, &dmin);
        dmin = -dmin;
    }

    template <int S>
    LS_INLINE void unpack(U *q) const {
        for (int j = 0; j < 8; ++j) {
            q[j] = (dword(4 + S / 4 * 8 + j) >> (S % 4 * 2)) & 0x03030303u;
        }
    }

    template <int S, int HALF>
    LS_INLINE F scale() const {
        return d * byte_to_float<(2 * S + HALF) % 4>(dword(S / 2) & 0x0f0f0f0fu);
    }

    template <int S, int HALF>
    LS_INLINE F min() const {
        return dmin * byte_to_float<(2 * S + HALF) % 4>((dword(S / 2) >> 4) & 0x0f0f0f0fu);
    }
};

struct DecodeQ3_K : Column<110, 2> {
    static constexpr int ELEMENTS = 256;
    static constexpr bool HAS_MIN = false;
    static constexpr Form FORM = Form::HALVES;
    static constexpr Start START = Start::N32_EIGHTH;
    static constexpr int MAX_Q = 7;
    F d;

    LS_INLINE DecodeQ3_K(const uint8_t *column, int part) : Column(column, part), d(halves(odd)) {}

    template <int S>
    LS_INLINE void unpack(U *q) const {
        for (int j = 0; j < 8; ++j) {
            const U low = dword(8 + S / 4 * 8 + j) >> (S % 4 * 2);
            q[j] = (low & 0x03030303u) | (move_bits<S, 2>(dword(j)) & 0x04040404u);
        }
    }

    template <int S, int HALF>
    LS_INLINE F scale() const {
        constexpr int QUARTER = S / 2;  // of the 16 scales
        const U low = dword(24 + QUARTER % 2) >> (QUARTER / 2 * 4);
        const U high = move_bits<2 * QUARTER, 4>(dword(26));
        const U bytes = (low & 0x0f0f0f0fu) | (high & 0x30303030u);
        return d * (byte_to_float<(2 * S + HALF) % 4>(bytes) - 32.0f);
    }
};

struct DecodeIQ4_XS : Column<136, 0> {
    static constexpr int ELEMENTS = 256;
    static constexpr bool HAS_MIN = false;
    static constexpr Form FORM = Form::SIGNED;
    U header;
    F d;

    LS_INLINE DecodeIQ4_XS(const uint8_t *column, int part) : Column(column, part), header(dword(0)) {
        F unused;
        half_pair(header, &d, &unused);
    }

    template <int S>
    LS_INLINE void unpack(U *q) const {
        nibbles(2 + 4 * S, q);
        lookup_all(IQ4_VALUES, q);
    }

    template <int S>
    LS_INLINE F scale() const {
        const U low = (dword(1) >> (4 * S)) & 15u;
        const U high = (header >> (16 + 2 * S)) & 3u;
        return d * (to_float(reinterpret_cast<I>(low | (high << 4))) - 32.0f);
    }
};

}  // namespace ls
