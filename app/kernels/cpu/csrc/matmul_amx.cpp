// The product on AMX tiles: 32 tokens by 32 rows in four accumulators, so that each tile loaded is used twice.
#include "amx.h"
#include "matmul.h"

#if defined(__AMX_BF16__) && defined(__linux__)
#include <immintrin.h>

#include <cstring>
#endif

namespace ls {

#if defined(__AMX_BF16__) && defined(__linux__)

namespace {

constexpr int LINE = 64;
constexpr int ACCUMULATOR_ROWS = 16;

struct Operands {
    const uint8_t *acts;
    int64_t act_stride;
    const uint8_t *panels;
    int64_t panel_stride;
    int64_t n_steps;
};

// Accumulators: 0 and 1 are the first tile of tokens with panels 0 and 1, 2 and 3 the second.
template <int TILES, int PANELS>
inline void accumulate(const Operands &in) {
    const uint8_t *a0 = in.acts;
    const uint8_t *a1 = in.acts + in.act_stride;
    const uint8_t *b0 = in.panels;
    const uint8_t *b1 = in.panels + in.panel_stride;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t offset = 0; offset < in.n_steps * PAIR_STEP_BYTES; offset += PAIR_STEP_BYTES) {
        _tile_loadd(4, a0 + offset, LINE);
        _tile_loadd(6, b0 + offset, LINE);
        _tile_dpbf16ps(0, 4, 6);
        if constexpr (PANELS == 2) {
            _tile_loadd(7, b1 + offset, LINE);
            _tile_dpbf16ps(1, 4, 7);
        }
        if constexpr (TILES == 2) {
            _tile_loadd(5, a1 + offset, LINE);
            _tile_dpbf16ps(2, 5, 6);
            if constexpr (PANELS == 2) {
                _tile_dpbf16ps(3, 5, 7);
            }
        }
    }
}

// The intrinsic wants a literal, which GCC pastes into the register's name.
template <int TILE>
inline void store_whole(uint8_t *out, int64_t out_stride) {
    if constexpr (TILE == 0) {
        _tile_stored(0, out, out_stride);
    } else if constexpr (TILE == 1) {
        _tile_stored(1, out, out_stride);
    } else if constexpr (TILE == 2) {
        _tile_stored(2, out, out_stride);
    } else {
        _tile_stored(3, out, out_stride);
    }
}

template <int TILE>
inline void store_tile(uint8_t *out, int64_t out_stride, int64_t n_tokens, int64_t n_rows) {
    if (n_tokens >= TILE_TOKENS && n_rows >= PANEL_ROWS) {
        store_whole<TILE>(out, out_stride);
        return;
    }
    alignas(LINE) uint8_t whole[ACCUMULATOR_ROWS * LINE];
    store_whole<TILE>(whole, LINE);
    for (int64_t token = 0; token < n_tokens && token < TILE_TOKENS; ++token) {
        std::memcpy(out + token * out_stride, whole + token * LINE,
                    static_cast<size_t>(n_rows < PANEL_ROWS ? n_rows : PANEL_ROWS) * sizeof(float));
    }
}

template <int TILES, int PANELS>
void multiply(const ProductBlock &block) {
    accumulate<TILES, PANELS>({block.acts, block.act_stride, block.panels, block.panel_stride, block.n_steps});
    store_tile<0>(block.out, block.out_stride, block.n_tokens, block.n_rows);
    if constexpr (PANELS == 2) {
        store_tile<1>(block.out + LINE, block.out_stride, block.n_tokens, block.n_rows - PANEL_ROWS);
    }
    if constexpr (TILES == 2) {
        uint8_t *second = block.out + TILE_TOKENS * block.out_stride;
        store_tile<2>(second, block.out_stride, block.n_tokens - TILE_TOKENS, block.n_rows);
        if constexpr (PANELS == 2) {
            store_tile<3>(second + LINE, block.out_stride, block.n_tokens - TILE_TOKENS, block.n_rows - PANEL_ROWS);
        }
    }
}

void product(const ProductBlock &block) {
    // The intrinsics that load tiles do not say that they read memory.
    __asm__ volatile("" ::: "memory");
    using Multiply = void (*)(const ProductBlock &);
    static constexpr Multiply MULTIPLY[2][2] = {{multiply<1, 1>, multiply<1, 2>}, {multiply<2, 1>, multiply<2, 2>}};
    MULTIPLY[block.n_tokens > TILE_TOKENS ? 1 : 0][block.n_rows > PANEL_ROWS ? 1 : 0](block);
}

constexpr MatmulPath PATH = {PanelForm::PAIRS, amx_begin, amx_end, product};

}  // namespace

const MatmulPath *amx_path() { return has_panels(PanelForm::PAIRS) && amx_permitted() ? &PATH : nullptr; }

#else

const MatmulPath *amx_path() { return nullptr; }

#endif

}  // namespace ls
