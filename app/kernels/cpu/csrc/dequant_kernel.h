// From a decoder of grouped blocks (matvec_decode.h) to the filling of panels.
//
// The float operations are those of the block's definition, or give the same result because what they leave out is
// exact: scale * q has at most 24 bits for the types with a minimum, and an offset times the scale is a shift.
#pragma once

#include "bf16_pairs.h"
#include "dequant.h"
#include "matvec_decode.h"

namespace ls {

struct FloatSink {
    static constexpr int STEP_BYTES = FLOAT_STEP_BYTES;

    // Elements `element` and the next of LANES rows from row part * LANES.
    static LS_INLINE void put(uint8_t *step, int part, int element, F even, F odd) {
        auto *line = reinterpret_cast<float *>(step) + element * PANEL_ROWS + part * LANES;
        store(line, even);
        store(line + PANEL_ROWS, odd);
    }
};

#if defined(LS_HAS_PAIRS)
struct PairSink {
    static constexpr int STEP_BYTES = PAIR_STEP_BYTES;

    static LS_INLINE void put(uint8_t *step, int, int element, F even, F odd) {
        store_pairs(step + element / 2 * 64, reinterpret_cast<__m512>(even), reinterpret_cast<__m512>(odd));
    }
};
#endif

// What the unsigned numbers of a decoder are too large by.
template <class D>
constexpr float number_offset() {
    if constexpr (D::FORM == Form::SIGNED) {
        return 0;
    } else {
        switch (D::START) {
            case Start::N8: return 8;
            case Start::N16: return 16;
            case Start::N32: return 32;
            case Start::N32_EIGHTH: return 4;
            default: return 0;
        }
    }
}

// Byte B of every lane as the float that it stands for.
template <class D, int B>
LS_INLINE F number(U q, F scale, F min) {
    if constexpr (D::FORM == Form::SIGNED) {
        return signed_byte_to_float<B>(q ^ SIGNED_BIAS) * scale;
    } else if constexpr (D::HAS_MIN) {
        return byte_to_float<B>(q) * scale + min;
    } else {
#if defined(__FMA__)
        return byte_to_float<B>(q) * scale + min;
#else
        return (byte_to_float<B>(q) - number_offset<D>()) * scale;
#endif
    }
}

template <class D, class Sink, int FIRST, int LAST>
LS_INLINE void put_numbers(const U *q, F scale, F min, int part, uint8_t *step) {
    unrolled<LAST - FIRST>([&](auto i) LS_INLINE_LAMBDA {
        constexpr int J = FIRST + decltype(i)::value;
        Sink::put(step, part, 4 * J, number<D, 0>(q[J], scale, min), number<D, 1>(q[J], scale, min));
        Sink::put(step, part, 4 * J + 2, number<D, 2>(q[J], scale, min), number<D, 3>(q[J], scale, min));
    });
}

template <class D, class Sink, int S>
LS_INLINE void put_sub_block(const D &decoder, int part, uint8_t *step) {
    U q[8];
    decoder.template unpack<S>(q);
    if constexpr (D::FORM == Form::HALVES) {
        const F first = decoder.template scale<S, 0>();
        const F second = decoder.template scale<S, 1>();
        F first_min = first * -number_offset<D>();
        F second_min = second * -number_offset<D>();
        if constexpr (D::HAS_MIN) {
            first_min = decoder.template min<S, 0>();
            second_min = decoder.template min<S, 1>();
        }
        put_numbers<D, Sink, 0, 4>(q, first, first_min, part, step);
        put_numbers<D, Sink, 4, 8>(q, second, second_min, part, step);
    } else {
        const F scale = decoder.template scale<S>();
        F min = scale * -number_offset<D>();
        if constexpr (D::HAS_MIN) {
            min = decoder.template min<S>();
        }
        put_numbers<D, Sink, 0, 8>(q, scale, min, part, step);
    }
}

// Weights of the block so far ahead are fetched while this one is decoded; it may be in the next group, which is next.
constexpr int64_t FETCH_AHEAD_BYTES = 3072;

template <class D>
LS_INLINE void fetch_ahead(const uint8_t *columns) {
    for (int64_t line = 0; line < PANEL_ROWS * D::BYTES; line += 64) {
        __builtin_prefetch(columns + FETCH_AHEAD_BYTES + line, 0, 3);
    }
}

template <class D, class Sink>
void fill_blocks(const uint8_t *columns, int64_t n_blocks, uint8_t *panel) {
    constexpr int SUB_BLOCKS = D::ELEMENTS / STEP_ELEMENTS;
    for (int64_t block = 0; block < n_blocks; ++block) {
        fetch_ahead<D>(columns);
        unrolled<PANEL_ROWS / LANES>([&](auto part) LS_INLINE_LAMBDA {
            const D decoder(columns, part);
            unrolled<SUB_BLOCKS>([&](auto s) LS_INLINE_LAMBDA {
                constexpr int S = decltype(s)::value;
                put_sub_block<D, Sink, S>(decoder, part, panel + S * Sink::STEP_BYTES);
            });
        });
        columns += PANEL_ROWS * D::BYTES;
        panel += SUB_BLOCKS * Sink::STEP_BYTES;
    }
}

template <class D>
constexpr DequantType dequant_type(int32_t type) {
#if defined(LS_HAS_PAIRS)
    return {type, fill_blocks<D, FloatSink>, fill_blocks<D, PairSink>};
#else
    return {type, fill_blocks<D, FloatSink>, nullptr};
#endif
}

}  // namespace ls
