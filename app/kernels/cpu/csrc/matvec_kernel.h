// The product of one group of rows with T tokens, for any decoder. The weights are decoded once for all T.
#pragma once

#include <array>
#include <utility>

#include "act.h"
#include "matvec_decode.h"
#include "repack.h"

namespace ls {

// out[t * out_stride + row] for the 16 rows of the group at `weights` and tokens 0..T-1 of `acts`; strides in bytes.
using GroupProduct = void (*)(const uint8_t *weights, int64_t n_blocks, const uint8_t *acts, int64_t act_stride,
                              uint8_t *out, int64_t out_stride);

// How many tokens a kernel takes at once. With 8 of them AVX512 is bound by arithmetic, no longer by reading.
#if defined(__AVX512VNNI__)
using TokenSteps = std::integer_sequence<int, 1, 2, 3, 4, 6, 8>;
#elif defined(__AVX2__)
using TokenSteps = std::integer_sequence<int, 1, 2, 3, 4>;
#else
using TokenSteps = std::integer_sequence<int, 1, 2, 4>;
#endif

template <int... T>
constexpr std::array<int, sizeof...(T)> as_array(std::integer_sequence<int, T...>) {
    return {T...};
}

constexpr auto TOKEN_STEPS = as_array(TokenSteps{});
constexpr int TOKENS_AT_ONCE = TOKEN_STEPS.back();

// Index of the largest step of tokens that fits.
inline size_t token_step(int64_t n_tokens) {
    size_t index = TOKEN_STEPS.size() - 1;
    while (TOKEN_STEPS[index] > n_tokens) {
        --index;
    }
    return index;
}

struct MatvecType {
    int32_t type;
    GroupProduct products[TokenSteps::size()];
};

// Rows of the tables in matvec_q.cpp and matvec_k.cpp; null when the type is not there.
const MatvecType *matvec_q_type(int32_t type);
const MatvecType *matvec_k_type(int32_t type);

inline const MatvecType *matvec_grouped_type(int32_t type) {
    const MatvecType *found = matvec_q_type(type);
    return found != nullptr ? found : matvec_k_type(type);
}

// One row of k elements in plain form times a row of quantised activations: slow, for rows that are in no group.
float plain_dot(const TypeInfo &info, const uint8_t *row, int64_t k, const ActBlock *acts);

constexpr int PARTS = GROUP_ROWS / LANES;

// Lines are fetched one stretch of PREFETCH_PAGES pages ahead, and from all its pages in turn: the processor's own
// prefetcher follows one stream per page, so that more reads are under way than with one page after the other. Measured
// on weights that do not fit the cache: 10 to 35 % faster than one stream 4 KiB ahead, and no slower on those that do.
constexpr uintptr_t PREFETCH_PAGES = 4;
constexpr uintptr_t PAGE = 4096;
constexpr uintptr_t LINE = 64;

// The line to fetch when the one at `address` is read: line n of a stretch goes to line n / PREFETCH_PAGES of page
// n % PREFETCH_PAGES of the next.
LS_INLINE const void *line_ahead(const uint8_t *address) {
    constexpr uintptr_t STRETCH = PREFETCH_PAGES * PAGE;
    const auto from = reinterpret_cast<uintptr_t>(address);
    const uintptr_t in_stretch = from % STRETCH / LINE;
    const uintptr_t target = from / STRETCH * STRETCH + STRETCH + in_stretch % PREFETCH_PAGES * PAGE +
                             in_stretch / PREFETCH_PAGES * LINE;
    return reinterpret_cast<const void *>(target);
}

// The parts of a group share its lines.
template <class D, int S>
LS_INLINE void prefetch_ahead(const uint8_t *column, int part) {
    constexpr int64_t BYTES = int64_t{D::BYTES} * GROUP_ROWS * ACT_ELEMENTS / D::ELEMENTS;
    const uint8_t *first = column + S * BYTES + 64 * part;
    for (int64_t line = 0; line < BYTES; line += 64 * PARTS) {
        __builtin_prefetch(line_ahead(first + line), 0, 3);
    }
}

template <Start START>
LS_INLINE I start_sum(const ActBlock &a, int half) {
    switch (START) {
        case Start::N8: return splat_i(a.n8);
        case Start::N16: return splat_i(a.n16);
        case Start::N32: return splat_i(a.n32[half]);
        case Start::N32_EIGHTH: return splat_i(a.n32[half] / 8);
        default: return I{};
    }
}

LS_INLINE const ActBlock &act_block(const uint8_t *acts, int64_t act_stride, int t) {
    return *reinterpret_cast<const ActBlock *>(acts + t * act_stride);
}

// One scale for the 32 elements.
template <class D, int S, int T>
LS_INLINE void add_whole(const D &d, const U *q, const uint8_t *acts, int64_t act_stride, F *sums) {
    I products[T];
    if constexpr (D::FORM == Form::SIGNED) {
        for (int t = 0; t < T; ++t) {
            products[t] = start_signed(act_block(acts, act_stride, t).n128);
        }
        dot_signed<T>(products, q, acts, act_stride);
    } else {
        for (int t = 0; t < T; ++t) {
            products[t] = start_sum<D::START>(act_block(acts, act_stride, t), 0);
        }
        dot<8, D::MAX_Q, T>(products, q, acts, act_stride);
    }
    const F scale = d.template scale<S>();
    for (int t = 0; t < T; ++t) {
        sums[t] += to_float(products[t]) * (scale * act_block(acts, act_stride, t).d);
    }
    if constexpr (D::HAS_MIN) {
        const F min = d.template min<S>();
        for (int t = 0; t < T; ++t) {
            sums[t] += min * act_block(acts, act_stride, t).ds;
        }
    }
}

// A scale for each 16 elements.
template <class D, int S, int T>
LS_INLINE void add_halves(const D &d, const U *q, const uint8_t *acts, int64_t act_stride, F *sums) {
    I low[T];
    I high[T];
    for (int t = 0; t < T; ++t) {
        low[t] = start_sum<D::START>(act_block(acts, act_stride, t), 0);
        high[t] = start_sum<D::START>(act_block(acts, act_stride, t), 1);
    }
    dot<4, D::MAX_Q, T>(low, q, acts, act_stride);
    dot<4, D::MAX_Q, T>(high, q + 4, acts + 16, act_stride);
    const F first = d.template scale<S, 0>();
    const F second = d.template scale<S, 1>();
    for (int t = 0; t < T; ++t) {
        sums[t] += (to_float(low[t]) * first + to_float(high[t]) * second) * act_block(acts, act_stride, t).d;
    }
    if constexpr (D::HAS_MIN) {
        const F first_min = d.template min<S, 0>();
        const F second_min = d.template min<S, 1>();
        for (int t = 0; t < T; ++t) {
            const ActBlock &a = act_block(acts, act_stride, t);
            sums[t] += first_min * a.ds_first + second_min * (a.ds - a.ds_first);
        }
    }
}

// One block of LANES rows: part `part` of a group.
template <class D, int T>
LS_INLINE void add_block(const uint8_t *column, int part, const uint8_t *acts, int64_t act_stride, F *sums) {
    const D decoder(column, part);
    unrolled<D::ELEMENTS / ACT_ELEMENTS>([&](auto s) LS_INLINE_LAMBDA {
        constexpr int S = decltype(s)::value;
        prefetch_ahead<D, S>(column, part);
        U q[8];
        decoder.template unpack<S>(q);
        const uint8_t *sub_acts = acts + S * sizeof(ActBlock);
        if constexpr (D::FORM == Form::HALVES) {
            add_halves<D, S, T>(decoder, q, sub_acts, act_stride, sums);
        } else {
            add_whole<D, S, T>(decoder, q, sub_acts, act_stride, sums);
        }
    });
}

template <class D, int T>
void group_product(const uint8_t *weights, int64_t n_blocks, const uint8_t *acts, int64_t act_stride, uint8_t *out,
                   int64_t out_stride) {
    F sums[PARTS][T] = {};
    for (int64_t block = 0; block < n_blocks; ++block) {
        if constexpr (PARTS == 1) {
            add_block<D, T>(weights, 0, acts, act_stride, sums[0]);
        } else {
#pragma GCC unroll 1
            for (int part = 0; part < PARTS; ++part) {
                add_block<D, T>(weights, part, acts, act_stride, sums[part]);
            }
        }
        weights += GROUP_ROWS * D::BYTES;
        acts += D::ELEMENTS / ACT_ELEMENTS * sizeof(ActBlock);
    }
    for (int t = 0; t < T; ++t) {
        for (int part = 0; part < PARTS; ++part) {
            store(reinterpret_cast<float *>(out + t * out_stride) + part * LANES, sums[part][t]);
        }
    }
}

template <class D, int... T>
constexpr MatvecType matvec_type_for(int32_t type, std::integer_sequence<int, T...>) {
    return {type, {group_product<D, T>...}};
}

template <class D>
constexpr MatvecType matvec_type(int32_t type) {
    return matvec_type_for<D>(type, TokenSteps{});
}

}  // namespace ls
