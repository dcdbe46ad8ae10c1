// The product on AMX tiles, with results of any size.
#include "amx.h"
#include "amx_tiles.h"
#include "cpu_features.h"
#include "matmul.h"

#if defined(LS_HAS_TILES)
#include <cstring>
#endif

namespace ls {

#if defined(LS_HAS_TILES)

namespace {

template <int TILE>
inline void store_tile(uint8_t *out, int64_t out_stride, int64_t n_tokens, int64_t n_rows) {
    if (n_tokens >= TILE_TOKENS && n_rows >= PANEL_ROWS) {
        store_accumulator<TILE>(out, out_stride);
        return;
    }
    alignas(TILE_LINE) uint8_t whole[TILE_BYTES];
    store_accumulator<TILE>(whole, TILE_LINE);
    for (int64_t token = 0; token < n_tokens && token < TILE_TOKENS; ++token) {
        std::memcpy(out + token * out_stride, whole + token * TILE_LINE,
                    static_cast<size_t>(n_rows < PANEL_ROWS ? n_rows : PANEL_ROWS) * sizeof(float));
    }
}

template <int TILES, int PANELS, int ACT_PARTS, int WEIGHT_PARTS>
void multiply(const ProductBlock &block) {
    // The intrinsics that load tiles do not say that they read memory.
    __asm__ volatile("" ::: "memory");
    clear_accumulators();
    accumulate<TILES, PANELS, ACT_PARTS, WEIGHT_PARTS>(
        {block.acts, block.act_stride, block.panels, block.panel_stride, block.n_steps});
    store_tile<0>(block.out, block.out_stride, block.n_tokens, block.n_rows);
    if constexpr (PANELS == 2) {
        store_tile<1>(block.out + TILE_LINE, block.out_stride, block.n_tokens, block.n_rows - PANEL_ROWS);
    }
    if constexpr (TILES == 2) {
        uint8_t *second = block.out + TILE_TOKENS * block.out_stride;
        store_tile<2>(second, block.out_stride, block.n_tokens - TILE_TOKENS, block.n_rows);
        if constexpr (PANELS == 2) {
            store_tile<3>(second + TILE_LINE, block.out_stride, block.n_tokens - TILE_TOKENS, block.n_rows - PANEL_ROWS);
        }
    }
}

template <int ACT_PARTS, int WEIGHT_PARTS>
void product_of(const ProductBlock &block) {
    using Multiply = void (*)(const ProductBlock &);
    static constexpr Multiply MULTIPLY[2][2] = {
        {multiply<1, 1, ACT_PARTS, WEIGHT_PARTS>, multiply<1, 2, ACT_PARTS, WEIGHT_PARTS>},
        {multiply<2, 1, ACT_PARTS, WEIGHT_PARTS>, multiply<2, 2, ACT_PARTS, WEIGHT_PARTS>},
    };
    MULTIPLY[block.n_tokens > TILE_TOKENS ? 1 : 0][block.n_rows > PANEL_ROWS ? 1 : 0](block);
}

void product(const ProductBlock &block) {
    if (block.parts.activations == 1) {
        product_of<1, 1>(block);
    } else if (block.parts.weights == 1) {
        product_of<2, 1>(block);
    } else {
        product_of<2, 2>(block);
    }
}

constexpr MatmulPath PATH = {PanelForm::PAIRS, amx_begin, amx_end, product};

}  // namespace

const MatmulPath *amx_path() {
    return has_panels(PanelForm::PAIRS) && has_avx512_bf16() && amx_permitted() ? &PATH : nullptr;
}

#else

const MatmulPath *amx_path() { return nullptr; }

#endif

}  // namespace ls
