// The inner product on AMX tiles: up to 32 rows of A by up to 32 columns of B in four accumulators, so that each tile
// that is loaded is used twice. Both operands are lists of tiles of 1 KiB, a step of 32 k after another: 16 rows of 32
// bf16 for A, 16 lines of 16 pairs for B (dequant.h).
//
// Only between amx_begin and amx_end. The intrinsics want literal numbers of tiles.
#pragma once

#if defined(__AMX_BF16__) && defined(__linux__)
#define LS_HAS_TILES

#include <immintrin.h>

#include <cstdint>

namespace ls {

constexpr int TILE_BYTES = 1024;
constexpr int TILE_LINE = 64;

struct TileOperands {
    const uint8_t *a;
    int64_t a_stride;  // from the first 16 rows to the next, in bytes
    const uint8_t *b;
    int64_t b_stride;  // from the first 16 columns to the next
    int64_t n_steps;
};

// Where the accumulators come from and go to: F32 rows.
struct TileResult {
    uint8_t *out;
    int64_t stride;
};

// Accumulators: 0 and 1 are the first 16 rows, 2 and 3 the second.
template <int ROWS16, int COLUMNS16>
inline void load_accumulators(const TileResult &c) {
    _tile_loadd(0, c.out, c.stride);
    if constexpr (COLUMNS16 == 2) {
        _tile_loadd(1, c.out + TILE_LINE, c.stride);
    }
    if constexpr (ROWS16 == 2) {
        uint8_t *second = c.out + 16 * c.stride;
        _tile_loadd(2, second, c.stride);
        if constexpr (COLUMNS16 == 2) {
            _tile_loadd(3, second + TILE_LINE, c.stride);
        }
    }
}

inline void clear_accumulators() {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

template <int ROWS16>
inline void load_rows(const uint8_t *a, int64_t stride) {
    _tile_loadd(4, a, TILE_LINE);
    if constexpr (ROWS16 == 2) {
        _tile_loadd(5, a + stride, TILE_LINE);
    }
}

// Past the first-level cache, so that A stays there for the columns that follow.
template <int COLUMNS16>
inline void load_columns(const uint8_t *b, int64_t stride) {
    _tile_stream_loadd(6, b, TILE_LINE);
    if constexpr (COLUMNS16 == 2) {
        _tile_stream_loadd(7, b + stride, TILE_LINE);
    }
}

template <int ROWS16, int COLUMNS16>
inline void add_products() {
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (COLUMNS16 == 2) {
        _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (ROWS16 == 2) {
        _tile_dpbf16ps(2, 5, 6);
        if constexpr (COLUMNS16 == 2) {
            _tile_dpbf16ps(3, 5, 7);
        }
    }
}

// Each step of A has A_PARTS tiles, of B B_PARTS; all pairs of parts but the two low ones are multiplied.
template <int ROWS16, int COLUMNS16, int A_PARTS, int B_PARTS>
inline void accumulate(const TileOperands &in) {
    const uint8_t *a = in.a;
    const uint8_t *b = in.b;
    for (int64_t step = 0; step < in.n_steps; ++step) {
        load_rows<ROWS16>(a, in.a_stride);
        load_columns<COLUMNS16>(b, in.b_stride);
        add_products<ROWS16, COLUMNS16>();
        if constexpr (B_PARTS == 2) {
            load_columns<COLUMNS16>(b + TILE_BYTES, in.b_stride);
            add_products<ROWS16, COLUMNS16>();
        }
        if constexpr (A_PARTS == 2) {
            load_rows<ROWS16>(a + TILE_BYTES, in.a_stride);
            if constexpr (B_PARTS == 2) {
                load_columns<COLUMNS16>(b, in.b_stride);
            }
            add_products<ROWS16, COLUMNS16>();
        }
        a += A_PARTS * TILE_BYTES;
        b += B_PARTS * TILE_BYTES;
    }
}

template <int TILE>
inline void store_accumulator(uint8_t *out, int64_t stride) {
    if constexpr (TILE == 0) {
        _tile_stored(0, out, stride);
    } else if constexpr (TILE == 1) {
        _tile_stored(1, out, stride);
    } else if constexpr (TILE == 2) {
        _tile_stored(2, out, stride);
    } else {
        _tile_stored(3, out, stride);
    }
}

// C = A B, or C += A B, where all rows and columns of C are there to be written.
template <int ROWS16, int COLUMNS16, bool ADD, int A_PARTS, int B_PARTS>
void multiply_whole(const TileOperands &in, const TileResult &c) {
    // The intrinsics that load tiles do not say that they read memory.
    __asm__ volatile("" ::: "memory");
    if constexpr (ADD) {
        load_accumulators<ROWS16, COLUMNS16>(c);
    } else {
        clear_accumulators();
    }
    accumulate<ROWS16, COLUMNS16, A_PARTS, B_PARTS>(in);
    store_accumulator<0>(c.out, c.stride);
    if constexpr (COLUMNS16 == 2) {
        store_accumulator<1>(c.out + TILE_LINE, c.stride);
    }
    if constexpr (ROWS16 == 2) {
        uint8_t *second = c.out + 16 * c.stride;
        store_accumulator<2>(second, c.stride);
        if constexpr (COLUMNS16 == 2) {
            store_accumulator<3>(second + TILE_LINE, c.stride);
        }
    }
}

}  // namespace ls

#endif
