// Panels of F32, F16 and BF16 matrices with any strides, which attention without a fused kernel multiplies with too.
#include <algorithm>
#include <cstring>

#include "bf16_pairs.h"
#include "dequant.h"
#include "matvec_simd.h"

namespace ls {

namespace {

float element(int32_t type, const uint8_t *at) {
    switch (type) {
        case TYPE_F32: return bits_to_float(load_u32(at));
        case TYPE_F16: return half_to_float(load_u16(at));
        default: return bf16_to_float(load_u16(at));
    }
}

// 32 elements of a row that stand next to each other.
void read_step(int32_t type, const uint8_t *at, float *out) {
    if (type == TYPE_F32) {
        std::memcpy(out, at, STEP_ELEMENTS * sizeof(float));
    } else if (type == TYPE_F16) {
        for (int i = 0; i < STEP_ELEMENTS; i += LANES) {
            store(out + i, halves(at + 2 * i));
        }
    } else {
        for (int i = 0; i < STEP_ELEMENTS; ++i) {
            out[i] = bf16_to_float(load_u16(at + 2 * i));
        }
    }
}

bool is_whole(const WeightMatrix &weights, int64_t row, int64_t step) {
    return row < weights.n_rows && (step + 1) * STEP_ELEMENTS <= weights.k && weights.nb0 == weights.info->block_bytes;
}

const uint8_t *row_step(const WeightMatrix &weights, int64_t row, int64_t step) {
    return weights.data + row * weights.nb1 + step * STEP_ELEMENTS * weights.nb0;
}

// Step `step` of row `row` as 32 floats, zero past the matrix.
void read_row_step(const WeightMatrix &weights, int64_t row, int64_t step, float *out) {
    const uint8_t *at = row_step(weights, row, step);
    if (is_whole(weights, row, step)) {
        read_step(weights.info->type, at, out);
        return;
    }
    const int64_t n = row < weights.n_rows ? weights.k - step * STEP_ELEMENTS : 0;
    for (int64_t i = 0; i < STEP_ELEMENTS; ++i) {
        out[i] = i < n ? element(weights.info->type, at + i * weights.nb0) : 0.0f;
    }
}

void fill_floats(const WeightMatrix &weights, int64_t first, uint8_t *panel) {
    for (int64_t step = 0; step < n_steps(weights.k); ++step) {
        auto *lines = reinterpret_cast<float *>(panel + step * FLOAT_STEP_BYTES);
        for (int row = 0; row < PANEL_ROWS; ++row) {
            float values[STEP_ELEMENTS];
            read_row_step(weights, first + row, step, values);
            for (int i = 0; i < STEP_ELEMENTS; ++i) {
                lines[i * PANEL_ROWS + row] = values[i];
            }
        }
    }
}

#if defined(LS_HAS_PAIRS)

// 16 registers of 16 dwords, turned so that register i has dword i of each.
void transpose(__m512i *rows) {
    __m512i pairs[16];
    for (int i = 0; i < 16; i += 2) {
        pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    __m512i fours[16];  // [4 q + c]: in 128-bit lane l, dwords 4 l + c of rows 4 q to 4 q + 3
    for (int q = 0; q < 4; ++q) {
        for (int high = 0; high < 2; ++high) {
            fours[4 * q + 2 * high] = _mm512_unpacklo_epi64(pairs[4 * q + high], pairs[4 * q + 2 + high]);
            fours[4 * q + 2 * high + 1] = _mm512_unpackhi_epi64(pairs[4 * q + high], pairs[4 * q + 2 + high]);
        }
    }
    for (int c = 0; c < 4; ++c) {
        const __m512i low01 = _mm512_shuffle_i32x4(fours[c], fours[4 + c], 0x44);
        const __m512i high01 = _mm512_shuffle_i32x4(fours[c], fours[4 + c], 0xee);
        const __m512i low23 = _mm512_shuffle_i32x4(fours[8 + c], fours[12 + c], 0x44);
        const __m512i high23 = _mm512_shuffle_i32x4(fours[8 + c], fours[12 + c], 0xee);
        rows[c] = _mm512_shuffle_i32x4(low01, low23, 0x88);
        rows[4 + c] = _mm512_shuffle_i32x4(low01, low23, 0xdd);
        rows[8 + c] = _mm512_shuffle_i32x4(high01, high23, 0x88);
        rows[12 + c] = _mm512_shuffle_i32x4(high01, high23, 0xdd);
    }
}

void store_lines(const __m512i *lines, uint8_t *step) {
    for (int i = 0; i < 16; ++i) {
        _mm512_store_si512(step + 64 * i, lines[i]);
    }
}

// Rows are read side by side, a line of each at a time, which is too many streams for the processor to foresee.
void fetch_ahead(const WeightMatrix &weights, const uint8_t *at) {
    constexpr int64_t STEPS_AHEAD = 6;
    const int64_t bytes = STEP_ELEMENTS * weights.info->block_bytes;
    for (int64_t line = 0; line < bytes; line += 64) {
        __builtin_prefetch(at + STEPS_AHEAD * bytes + line, 0, 3);
    }
}

// The two parts of 32 elements of a row; for BF16 the first is exact and the second not needed.
void row_parts(const WeightMatrix &weights, int64_t row, int64_t step, __m512i *high, __m512i *low) {
    fetch_ahead(weights, row_step(weights, row, step));
    if (weights.info->type == TYPE_BF16 && is_whole(weights, row, step)) {
        *high = _mm512_loadu_si512(row_step(weights, row, step));
        return;
    }
    alignas(64) float values[STEP_ELEMENTS];
    read_row_step(weights, row, step, values);
    split(_mm512_load_ps(values), _mm512_load_ps(values + 16), high, low);
}

void fill_pairs(const WeightMatrix &weights, int64_t first, uint8_t *panel) {
    const bool exact = weights.info->type == TYPE_BF16;
    for (int64_t step = 0; step < n_steps(weights.k); ++step) {
        __m512i high[PANEL_ROWS];
        __m512i low[PANEL_ROWS];
        for (int row = 0; row < PANEL_ROWS; ++row) {
            row_parts(weights, first + row, step, high + row, low + row);
        }
        transpose(high);
        store_lines(high, panel);
        panel += PAIR_STEP_BYTES;
        if (!exact) {
            transpose(low);
            store_lines(low, panel);
            panel += PAIR_STEP_BYTES;
        }
    }
}

#endif

}  // namespace

void fill_dense_panel(const WeightMatrix &weights, int64_t group, PanelForm form, uint8_t *panel) {
#if defined(LS_HAS_PAIRS)
    if (form == PanelForm::PAIRS) {
        fill_pairs(weights, group * PANEL_ROWS, panel);
        return;
    }
#endif
    (void)form;
    fill_floats(weights, group * PANEL_ROWS, panel);
}

}  // namespace ls
