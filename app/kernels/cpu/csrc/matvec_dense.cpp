// Products of F32, F16 and BF16 weights with few F32 rows, summed in float lanes. Bound by reading the
// weights as they are, so they have no grouped layout.
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
    static LS_INLINE F lanes(const uint8_t *p) { return reinterpret_cast<F>(widen_halves(p) << 16); }
    static LS_INLINE float one(const uint8_t *p) { return bf16_to_float(load_u16(p)); }
};

LS_INLINE float add_lanes(F value) {
    float lanes[LANES];
    store(lanes, value);
    for (int width = LANES / 2; width > 0; width /= 2) {
        for (int i = 0; i < width; ++i) {
            lanes[i] += lanes[i + width];
        }
    }
    return lanes[0];
}

// What the registers hold as sums: ROWS * TOKENS.
constexpr int ROWS = LANES == 16 ? 4 : 2;
constexpr int TOKENS = 4;
constexpr int64_t PREFETCH_BYTES = 2048;

// A row of weights with one row of activations. One linear stream, so that fetching ahead also covers the rows to come.
template <class L>
float row_product(const uint8_t *weights, const uint8_t *x, int64_t k) {
    constexpr int CHAINS = 4;
    F sums[CHAINS] = {};
    int64_t i = 0;
    for (; i + CHAINS * LANES <= k; i += CHAINS * LANES) {
        for (int line = 0; line < CHAINS * LANES * L::BYTES; line += 64) {
            __builtin_prefetch(weights + i * L::BYTES + line + PREFETCH_BYTES, 0, 3);
        }
        for (int chain = 0; chain < CHAINS; ++chain) {
            const int64_t at = i + chain * LANES;
            sums[chain] += L::lanes(weights + at * L::BYTES) * LoadF32::lanes(x + 4 * at);
        }
    }
    float total = add_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
    for (; i < k; ++i) {
        total += L::one(weights + i * L::BYTES) * LoadF32::one(x + 4 * i);
    }
    return total;
}

// ROWS rows of weights with TOKENS rows of activations to out[row][token].
template <class L>
void tile_product(const uint8_t *weights, int64_t row_stride, const uint8_t *x, int64_t x_stride, int64_t k, float *out) {
    F sums[ROWS][TOKENS] = {};
    const int64_t whole = k / LANES * LANES;
    for (int64_t i = 0; i < whole; i += LANES) {
        F acts[TOKENS];
        for (int t = 0; t < TOKENS; ++t) {
            acts[t] = LoadF32::lanes(x + t * x_stride + 4 * i);
        }
        for (int r = 0; r < ROWS; ++r) {
            const F row = L::lanes(weights + r * row_stride + i * L::BYTES);
            for (int t = 0; t < TOKENS; ++t) {
                sums[r][t] += row * acts[t];
            }
        }
    }
    for (int r = 0; r < ROWS; ++r) {
        for (int t = 0; t < TOKENS; ++t) {
            float total = add_lanes(sums[r][t]);
            for (int64_t i = whole; i < k; ++i) {
                total += L::one(weights + r * row_stride + i * L::BYTES) * LoadF32::one(x + t * x_stride + 4 * i);
            }
            out[r * TOKENS + t] = total;
        }
    }
}

struct DenseType {
    int32_t type;
    float (*row)(const uint8_t *, const uint8_t *, int64_t);
    void (*tile)(const uint8_t *, int64_t, const uint8_t *, int64_t, int64_t, float *);
};

template <class L>
constexpr DenseType dense_type(int32_t type) {
    return {type, row_product<L>, tile_product<L>};
}

constexpr DenseType TYPES[] = {
    dense_type<LoadF32>(TYPE_F32),
    dense_type<LoadF16>(TYPE_F16),
    dense_type<LoadBF16>(TYPE_BF16),
};

void put(const Step &step, int64_t token, int64_t row, float value) {
    std::memcpy(step.dst.data + token * step.dst.nb[1] + 4 * row, &value, sizeof value);
}

void multiply_tile(const Step &step, const DenseType &kernels, int64_t row, int64_t token) {
    const TensorRef &weights = step.src[0];
    const TensorRef &x = step.src[1];
    float out[ROWS * TOKENS];
    kernels.tile(weights.data + row * weights.nb[1], weights.nb[1], x.data + token * x.nb[1], x.nb[1], weights.ne[0], out);
    for (int i = 0; i < ROWS * TOKENS; ++i) {
        put(step, token + i % TOKENS, row + i / TOKENS, out[i]);
    }
}

// Rows [first, last) with tokens [from, n_tokens), one at a time.
void multiply_singly(const Step &step, const DenseType &kernels, int64_t first, int64_t last, int64_t from) {
    const TensorRef &weights = step.src[0];
    const TensorRef &x = step.src[1];
    for (int64_t row = first; row < last; ++row) {
        for (int64_t token = from; token < x.ne[1]; ++token) {
            put(step, token, row,
                kernels.row(weights.data + row * weights.nb[1], x.data + token * x.nb[1], weights.ne[0]));
        }
    }
}

}  // namespace

int32_t matvec_dense(const Step &step, int ith, int nth) {
    const auto *found = std::find_if(std::begin(TYPES), std::end(TYPES),
                                     [&](const DenseType &row) { return row.type == step.src[0].type; });
    if (found == std::end(TYPES)) {
        return UNSUPPORTED;
    }
    const int64_t n_rows = step.src[0].ne[1];
    const int64_t last = n_rows * (ith + 1) / nth;
    const int64_t tiled_tokens = step.src[1].ne[1] / TOKENS * TOKENS;
    int64_t row = n_rows * ith / nth;
    for (; row + ROWS <= last; row += ROWS) {
        for (int64_t token = 0; token < tiled_tokens; token += TOKENS) {
            multiply_tile(step, *found, row, token);
        }
        multiply_singly(step, *found, row, row + ROWS, tiled_tokens);
    }
    multiply_singly(step, *found, row, last, 0);
    return OK;
}

}  // namespace ls
