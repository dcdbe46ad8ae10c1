// The product on vectors of bf16 pairs (vdpbf16ps), for processors with AVX512-BF16 and no AMX.
#include "bf16_pairs.h"
#include "cpu_features.h"
#include "matmul.h"

#include <algorithm>
#include <cstring>

namespace ls {

#if defined(LS_HAS_PAIRS)

namespace {

void nothing() {}

constexpr int TOKENS = 8;  // of one pass: with two panels 16 accumulators

// T tokens of one tile from `acts` on, with P panels, the last of `last_rows` rows.
template <int T, int P>
void multiply(const ProductBlock &block, const uint8_t *acts, uint8_t *out, int64_t last_rows) {
    __m512 sums[P][T];
    for (auto &panel : sums) {
        for (__m512 &sum : panel) {
            sum = _mm512_setzero_ps();
        }
    }
    for (int64_t step = 0; step < block.n_steps; ++step) {
        const uint8_t *panel = block.panels + step * PAIR_STEP_BYTES;
        const uint8_t *tile = acts + step * PAIR_STEP_BYTES;
        for (int pair = 0; pair < STEP_ELEMENTS / 2; ++pair) {
            __m512i weights[P];
            for (int p = 0; p < P; ++p) {
                weights[p] = _mm512_load_si512(panel + p * block.panel_stride + 64 * pair);
            }
            for (int t = 0; t < T; ++t) {
                int32_t dword;
                std::memcpy(&dword, tile + 64 * t + 4 * pair, sizeof dword);
                const __m512i act = _mm512_set1_epi32(dword);
                for (int p = 0; p < P; ++p) {
                    sums[p][t] = _mm512_dpbf16_ps(sums[p][t], reinterpret_cast<__m512bh>(weights[p]),
                                                  reinterpret_cast<__m512bh>(act));
                }
            }
        }
    }
    const auto mask = static_cast<__mmask16>((1u << last_rows) - 1);
    for (int t = 0; t < T; ++t) {
        for (int p = 0; p < P; ++p) {
            _mm512_mask_storeu_ps(out + t * block.out_stride + 64 * p, p == P - 1 ? mask : 0xffff, sums[p][t]);
        }
    }
}

template <int P>
void product_of(const ProductBlock &block) {
    const int64_t last_rows = block.n_rows - PANEL_ROWS * (P - 1);
    for (int64_t token = 0; token < block.n_tokens;) {
        const uint8_t *acts = block.acts + token / TILE_TOKENS * block.act_stride + token % TILE_TOKENS * 64;
        uint8_t *out = block.out + token * block.out_stride;
        if (block.n_tokens - token >= TOKENS) {
            multiply<TOKENS, P>(block, acts, out, last_rows);
            token += TOKENS;
        } else {
            multiply<1, P>(block, acts, out, last_rows);
            token += 1;
        }
    }
}

void product(const ProductBlock &block) { block.n_rows > PANEL_ROWS ? product_of<2>(block) : product_of<1>(block); }

constexpr MatmulPath PATH = {PanelForm::PAIRS, nothing, nothing, product};

}  // namespace

const MatmulPath *bf16_path() { return has_avx512_bf16() ? &PATH : nullptr; }

#else

const MatmulPath *bf16_path() { return nullptr; }

#endif

}  // namespace ls
