// Products of F32, F16 and BF16 weights with few F32 rows. Four rows of weights at a time, several tokens at once,
// sums in float lanes: bound by reading the weights as they are, so they have no grouped layout.
#include <algorithm>
#include <iterator>

#include "matvec.h"
#include "matvec_simd.h"

namespace ls {

namespace {

LS_INLINE F load_floats(const uint8_t *p) { return reinterpret_cast<F>(load(p)); }

struct LoadF32 {
    static constexpr int BYTES = 4;
    static LS_INLINE F lanes(const uint8_t *p) { return load_floats(p); }
    static LS_INLINE float one(const uint8_t *p) { return bits_to_float(load_u32(p)); }
};

struct LoadF16 {
    static constexpr int BYTES = 2;
    static LS_INLINE F lanes(const uint8_t *p) { return halves(p); }
    static LS_INLINE float one(const uint8_t *p) { return half_to_float(load_u16(p)); }
};

struct LoadBF16 {
    static constexpr int BYTES = 2;
    static LS_INLINE F lanes(const uint8_t *p) {
        typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));
        Halves bits;
        std::memcpy(&bits, p, sizeof bits);
        return reinterpret_cast<F>(__builtin_convertvector(bits, U) << 16);
    }
    static LS_INLINE float one(const uint8_t *p) { return bf16_to_float(load_u16(p)); }
};

LS_INLINE float add_lanes(F value) {
    float lanes[LANES];
    store(lanes, value);
    float total = 0;
    for (float lane : lanes) {
        total += lane;
    }
    return total;
}

// R rows of weights, `row_stride` apart, with T rows of activations.
template <class L, int R, int T>
void product(const uint8_t *weights, int64_t row_stride, const uint8_t *x, int64_t x_stride, int64_t k, float *out) {
    F sums[R][T] = {};
    const int64_t whole = k / LANES * LANES;
    for (int64_t i = 0; i < whole; i += LANES) {
        F acts[T];
        for (int t = 0; t < T; ++t) {
            acts[t] = load_floats(x + t * x_stride + 4 * i);
        }
        for (int r = 0; r < R; ++r) {
            const uint8_t *at = weights + r * row_stride + i * L::BYTES;
            __builtin_prefetch(at + 1024, 0, 3);
            const F row = L::lanes(at);
            for (int t = 0; t < T; ++t) {
                sums[r][t] += row * acts[t];
            }
        }
    }
    for (int r = 0; r < R; ++r) {
        for (int t = 0; t < T; ++t) {
            float total = add_lanes(sums[r][t]);
            for (int64_t i = whole; i < k; ++i) {
                total += L::one(weights + r * row_stride + i * L::BYTES) * LoadF32::one(x + t * x_stride + 4 * i);
            }
            out[r * T + t] = total;
        }
    }
}

using Product = void (*)(const uint8_t *, int64_t, const uint8_t *, int64_t, int64_t, float *);

constexpr int ROWS = 4;
constexpr int TOKENS = 4;

struct DenseType {
    int32_t type;
    Product many_rows[2];  // ROWS rows with 1 token, with TOKENS
    Product one_row[2];
};

template <class L>
constexpr DenseType dense_type(int32_t type) {
    return {type, {product<L, ROWS, 1>, product<L, ROWS, TOKENS>}, {product<L, 1, 1>, product<L, 1, TOKENS>}};
}

constexpr DenseType TYPES[] = {
    dense_type<LoadF32>(TYPE_F32),
    dense_type<LoadF16>(TYPE_F16),
    dense_type<LoadBF16>(TYPE_BF16),
};

// Rows [row, row + n_rows) with all tokens, where n_rows is 1 or ROWS.
void multiply_rows(const Step &step, const Product *products, int64_t row, int n_rows) {
    const TensorRef &weights = step.src[0];
    const TensorRef &x = step.src[1];
    float out[ROWS * TOKENS];
    for (int64_t token = 0; token < x.ne[1];) {
        const bool many = x.ne[1] - token >= TOKENS;
        const int n_tokens = many ? TOKENS : 1;
        products[many ? 1 : 0](weights.data + row * weights.nb[1], weights.nb[1], x.data + token * x.nb[1], x.nb[1],
                               weights.ne[0], out);
        for (int r = 0; r < n_rows; ++r) {
            for (int t = 0; t < n_tokens; ++t) {
                std::memcpy(step.dst.data + (token + t) * step.dst.nb[1] + 4 * (row + r), out + r * n_tokens + t, 4);
            }
        }
        token += n_tokens;
    }
}

}  // namespace

int32_t matvec_dense(const Step &step, int ith, int nth) {
    const auto *found = std::find_if(std::begin(TYPES), std::end(TYPES),
                                     [&](const DenseType &row) { return row.type == step.src[0].type; });
    if (found == std::end(TYPES)) {
        return UNSUPPORTED;
    }
    const int64_t n_units = (step.src[0].ne[1] + ROWS - 1) / ROWS;
    const int64_t last = std::min(n_units * (ith + 1) / nth * ROWS, step.src[0].ne[1]);
    int64_t row = n_units * ith / nth * ROWS;
    for (; row + ROWS <= last; row += ROWS) {
        multiply_rows(step, found->many_rows, row, ROWS);
    }
    for (; row < last; ++row) {
        multiply_rows(step, found->one_row, row, 1);
    }
    return OK;
}

}  // namespace ls
