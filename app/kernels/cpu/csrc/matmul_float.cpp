// The product in floats, for every level: tokens by two vectors of rows in registers.
#include <algorithm>
#include <cstring>

#include "matmul.h"
#include "matvec_simd.h"

namespace ls {

namespace {

void nothing() {}

// Two vectors of rows by so many tokens are what the registers hold.
constexpr int MOST_TOKENS = LANES == 16 ? 8 : LANES == 8 ? 6 : 4;
constexpr int FEWER_TOKENS = LANES == 16 ? 4 : 2;
constexpr int VECTORS = 2;

LS_INLINE const uint8_t *panel_vector(const ProductBlock &block, int64_t row) {
    return block.panels + row / PANEL_ROWS * block.panel_stride + row % PANEL_ROWS * 4;
}

// T tokens from `acts` on, VECTORS * LANES rows from the two vectors of the panels on.
template <int T>
LS_INLINE void accumulate(const ProductBlock &block, const uint8_t *const *vectors, const uint8_t *acts,
                          F (*sums)[VECTORS]) {
    for (int64_t i = 0; i < block.k; ++i) {
        F weights[VECTORS];
        for (int v = 0; v < VECTORS; ++v) {
            weights[v] = reinterpret_cast<F>(load(vectors[v] + i * PANEL_ROWS * 4));
        }
        for (int t = 0; t < T; ++t) {
            const float act = bits_to_float(load_u32(acts + t * block.act_stride + 4 * i));
            for (int v = 0; v < VECTORS; ++v) {
                sums[t][v] += weights[v] * act;
            }
        }
    }
}

template <int T>
void multiply(const ProductBlock &block, int64_t token, int64_t row) {
    F sums[T][VECTORS] = {};
    // Rows past the last panel are multiplied as those before, and not stored.
    const int64_t second = row + LANES < block.n_rows ? row + LANES : row;
    const uint8_t *vectors[VECTORS] = {panel_vector(block, row), panel_vector(block, second)};
    accumulate<T>(block, vectors, block.acts + token * block.act_stride, sums);
    const auto bytes = static_cast<size_t>(std::min<int64_t>(VECTORS * LANES, block.n_rows - row)) * sizeof(float);
    for (int t = 0; t < T; ++t) {
        float values[VECTORS * LANES];
        store(values, sums[t][0]);
        store(values + LANES, sums[t][1]);
        std::memcpy(block.out + (token + t) * block.out_stride + row * 4, values, bytes);
    }
}

void product(const ProductBlock &block) {
    for (int64_t row = 0; row < block.n_rows; row += VECTORS * LANES) {
        int64_t token = 0;
        for (; token + MOST_TOKENS <= block.n_tokens; token += MOST_TOKENS) {
            multiply<MOST_TOKENS>(block, token, row);
        }
        for (; token + FEWER_TOKENS <= block.n_tokens; token += FEWER_TOKENS) {
            multiply<FEWER_TOKENS>(block, token, row);
        }
        for (; token < block.n_tokens; ++token) {
            multiply<1>(block, token, row);
        }
    }
}

}  // namespace

const MatmulPath FLOAT_PATH = {PanelForm::FLOATS, nothing, nothing, product};

}  // namespace ls
