// Panels from any type and layout: grouped blocks are decoded where they are, plain ones are grouped first.
#include "dequant.h"

#include <algorithm>
#include <cstring>

#include "bf16_pairs.h"
#include "repack.h"

namespace ls {

static_assert(PANEL_ROWS == GROUP_ROWS, "a panel is a group of rows");

bool has_panels(PanelForm form) {
#if defined(LS_HAS_PAIRS)
    (void)form;
    return true;
#else
    return form == PanelForm::FLOATS;
#endif
}

namespace {

// Up to 16 plain rows from `first`, one block column at a time.
void fill_from_plain(const WeightMatrix &weights, int64_t first, FillBlocks fill, int64_t block_panel_bytes, uint8_t *panel) {
    const TypeInfo &info = *weights.info;
    const auto bytes = static_cast<size_t>(info.block_bytes);
    const int64_t n_rows = std::min<int64_t>(PANEL_ROWS, weights.n_rows - first);
    uint8_t column[PANEL_ROWS * MAX_BLOCK_BYTES] = {};
    uint8_t scratch[PANEL_ROWS * MAX_BLOCK_BYTES];
    for (int64_t block = 0; block < weights.k / info.block_elements; ++block) {
        const uint8_t *source = weights.data + first * weights.nb1 + block * info.block_bytes;
        for (int64_t row = 0; row < n_rows; ++row) {
            std::memcpy(column + static_cast<size_t>(row) * bytes, source + row * weights.nb1, bytes);
        }
        std::memset(column + static_cast<size_t>(n_rows) * bytes, 0, static_cast<size_t>(PANEL_ROWS - n_rows) * bytes);
        repack_groups(info, column, info.block_elements, 0, 1, true, scratch);
        fill(column, 1, panel);
        panel += block_panel_bytes;
    }
}

}  // namespace

bool fill_panel(const WeightMatrix &weights, int64_t group, PanelForm form, uint8_t *panel) {
    const TypeInfo &info = *weights.info;
    if (!info.groups) {
        fill_dense_panel(weights, group, form, panel);
        return true;
    }
    const DequantType *type = dequant_q_type(info.type);
    if (type == nullptr) {
        type = dequant_k_type(info.type);
    }
    const FillBlocks fill = type == nullptr ? nullptr : form == PanelForm::FLOATS ? type->floats : type->pairs;
    if (fill == nullptr) {
        return false;
    }
    if (weights.grouped && (group + 1) * PANEL_ROWS <= weights.n_rows) {
        fill(group_block(info, weights.data, weights.k, group, 0), weights.k / info.block_elements, panel);
    } else {
        fill_from_plain(weights, group * PANEL_ROWS, fill, panel_bytes(info.type, info.block_elements, form), panel);
    }
    return true;
}

}  // namespace ls
