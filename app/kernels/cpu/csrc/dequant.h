// Panels: 16 rows of weights of any type and layout, decoded for a product with many tokens.
//
// A panel covers all k of its rows in steps of 32 elements; what lies past k, and rows past n_rows, are zero.
// FLOATS: per step 32 lines of 16 floats, one per row. PAIRS: per step 16 lines of 16 dwords, each two consecutive
// bf16 elements of one row, as AMX reads its second operand. Values are exact floats before the rounding.
//
// Types that are not quantised keep more than one bf16 holds. Their panels, and the activations that meet them (matmul.h),
// are sums of two parts, high and low, which follow one another step by step; BF16 is exact in one. The product of two
// low parts is left out.
#pragma once

#include "plan.h"
#include "types.h"

namespace ls {

constexpr int PANEL_ROWS = 16;
constexpr int STEP_ELEMENTS = 32;
constexpr int PAIR_STEP_BYTES = 64 * STEP_ELEMENTS / 2;
constexpr int FLOAT_STEP_BYTES = 64 * STEP_ELEMENTS;

enum class PanelForm { FLOATS, PAIRS };

// How many bf16 numbers stand for one weight of a type, and for one activation that is multiplied with it.
struct Parts {
    int weights;
    int activations;
};

inline Parts bf16_parts(int32_t type) {
    switch (type) {
        case TYPE_F32:
        case TYPE_F16: return {2, 2};
        case TYPE_BF16: return {1, 2};
        default: return {1, 1};
    }
}

inline int64_t n_steps(int64_t k) { return (k + STEP_ELEMENTS - 1) / STEP_ELEMENTS; }

inline int64_t panel_bytes(int32_t type, int64_t k, PanelForm form) {
    return form == PanelForm::FLOATS ? n_steps(k) * FLOAT_STEP_BYTES : n_steps(k) * PAIR_STEP_BYTES * bf16_parts(type).weights;
}

// One matrix [k, n_rows]; nb in bytes, as in TensorRef.
struct WeightMatrix {
    const TypeInfo *info;
    const uint8_t *data;
    int64_t k;
    int64_t n_rows;
    int64_t nb0;
    int64_t nb1;
    bool grouped;
};

// Whether fill_panel can make this form at this level.
bool has_panels(PanelForm form);

// Decodes rows [16 * group, 16 * group + 16) to a 64-byte aligned panel. false when the type is unknown here.
bool fill_panel(const WeightMatrix &weights, int64_t group, PanelForm form, uint8_t *panel);

// Decodes `n_blocks` block columns of one grouped group; one row of the tables in dequant_q.cpp and dequant_k.cpp.
using FillBlocks = void (*)(const uint8_t *columns, int64_t n_blocks, uint8_t *panel);

struct DequantType {
    int32_t type;
    FillBlocks floats;
    FillBlocks pairs;  // null at levels without bf16
};

const DequantType *dequant_q_type(int32_t type);
const DequantType *dequant_k_type(int32_t type);

// The same for F32, F16 and BF16 with any strides (dequant_dense.cpp).
void fill_dense_panel(const WeightMatrix &weights, int64_t group, PanelForm form, uint8_t *panel);

}  // namespace ls
