// The MATMUL step: which thread multiplies what, and in which order, so that panels and tokens stay in the cache.
//
// Work is a line of cells: for every matrix of weights, for every unit of 32 rows, every block of 32 tokens. A thread owns a
// range of that line, so that threads are equally busy whatever the shapes; only a unit that two threads share is
// decoded twice.
#include "matmul.h"

#include <algorithm>

namespace ls {

namespace {

// Panels that a thread decodes before it multiplies: as much as stays in a second-level cache beside the tokens.
constexpr int64_t PANEL_BUDGET = 512 * 1024;

struct Plan {
    const Step &step;
    const TypeInfo &info;
    const MatmulPath &path;
    bool converted;
    int64_t panel_stride;
    int64_t unit_bytes;
    int64_t units;          // of 32 rows, of one matrix of weights
    int64_t blocks;         // of 32 tokens, of one matrix of activations
    int64_t copies;         // matrices of activations that share one of weights
    int64_t units_at_once;
    uint8_t *panels;
};

// Cells of one matrix: units [unit, unit + n_units) with blocks [first, last) of copies * blocks.
struct Piece {
    int64_t matrix;
    int64_t unit;
    int64_t n_units;
    int64_t first;
    int64_t last;
};

int64_t n_units(int64_t n_rows) { return (n_rows + UNIT_ROWS - 1) / UNIT_ROWS; }

int64_t units_at_once(const TensorRef &weights, int64_t unit_bytes) {
    return std::max<int64_t>(1, std::min(PANEL_BUDGET / std::max<int64_t>(unit_bytes, 1), n_units(weights.ne[1])));
}

const MatmulPath &path_of(const Step &step) {
    return step.params[0] == 1 ? best_path() : FLOAT_PATH;
}

int64_t unit_bytes(const Step &step) {
    constexpr int64_t PANELS = UNIT_ROWS / PANEL_ROWS;
    return PANELS * panel_bytes(step.src[0].type, step.src[0].ne[0], path_of(step).form);
}

WeightMatrix weight_matrix(const Plan &plan, int64_t matrix) {
    const TensorRef &w = plan.step.src[0];
    const bool grouped = w.layout == static_cast<int32_t>(Layout::GROUPED);
    return {&plan.info, w.data + matrix % w.ne[2] * w.nb[2] + matrix / w.ne[2] * w.nb[3], w.ne[0], w.ne[1], w.nb[0],
            w.nb[1],    grouped};
}

bool decode_units(const Plan &plan, const Piece &piece) {
    const WeightMatrix weights = weight_matrix(plan, piece.matrix);
    constexpr int64_t PANELS = UNIT_ROWS / PANEL_ROWS;
    const int64_t last = std::min((piece.unit + piece.n_units) * PANELS, (weights.n_rows + PANEL_ROWS - 1) / PANEL_ROWS);
    uint8_t *panel = plan.panels;
    for (int64_t group = piece.unit * PANELS; group < last; ++group, panel += plan.panel_stride) {
        if (!fill_panel(weights, group, plan.path.form, panel)) {
            return false;
        }
    }
    return true;
}

// The matrix (i2, i3) of activations that is copy `copy` for matrix `matrix` of weights.
void copy_position(const Plan &plan, int64_t matrix, int64_t copy, int64_t *i2, int64_t *i3) {
    const TensorRef &w = plan.step.src[0];
    const int64_t share2 = plan.step.src[1].ne[2] / w.ne[2];
    const int64_t share3 = plan.step.src[1].ne[3] / w.ne[3];
    *i2 = matrix % w.ne[2] * share2 + copy % share2;
    *i3 = matrix / w.ne[2] * share3 + copy / share2;
}

// A block of tokens with everything but its panels.
ProductBlock token_block(const Plan &plan, int64_t matrix, int64_t index) {
    const TensorRef &x = plan.step.src[1];
    const TensorRef &dst = plan.step.dst;
    const int64_t token = index % plan.blocks * BLOCK_TOKENS;
    int64_t i2 = 0;
    int64_t i3 = 0;
    copy_position(plan, matrix, index / plan.blocks, &i2, &i3);
    ProductBlock block{};
    block.k = x.ne[0];
    block.n_steps = n_steps(x.ne[0]);
    block.parts = bf16_parts(plan.info.type);
    block.n_tokens = std::min<int64_t>(BLOCK_TOKENS, x.ne[1] - token);
    block.panel_stride = plan.panel_stride;
    block.out = dst.data + token * dst.nb[1] + i2 * dst.nb[2] + i3 * dst.nb[3];
    block.out_stride = dst.nb[1];
    if (plan.converted) {
        block.act_stride = tile_bytes(plan.info.type, x.ne[0]);
        block.acts = x.data + ((i3 * x.ne[2] + i2) * token_tiles(x.ne[1]) + token / TILE_TOKENS) * block.act_stride;
    } else {
        block.act_stride = x.nb[1];
        block.acts = x.data + token * x.nb[1] + i2 * x.nb[2] + i3 * x.nb[3];
    }
    return block;
}

void multiply_piece(const Plan &plan, const Piece &piece) {
    const int64_t n_rows = plan.step.src[0].ne[1];
    for (int64_t index = piece.first; index < piece.last; ++index) {
        ProductBlock block = token_block(plan, piece.matrix, index);
        uint8_t *out = block.out;
        for (int64_t unit = 0; unit < piece.n_units; ++unit) {
            const int64_t row = (piece.unit + unit) * UNIT_ROWS;
            block.n_rows = std::min<int64_t>(UNIT_ROWS, n_rows - row);
            block.panels = plan.panels + unit * plan.unit_bytes;
            block.out = out + row * static_cast<int64_t>(sizeof(float));
            plan.path.product(block);
        }
    }
}

// The longest piece that starts at `cell` and ends before `last`.
Piece piece_at(const Plan &plan, int64_t cell, int64_t last) {
    const int64_t row_cells = plan.copies * plan.blocks;
    const int64_t line = cell / row_cells;
    Piece piece{line / plan.units, line % plan.units, 1, cell % row_cells, 0};
    piece.last = std::min(row_cells, piece.first + last - cell);
    if (piece.first == 0 && piece.last == row_cells) {
        piece.n_units = std::min({plan.units_at_once, plan.units - piece.unit, (last - cell) / row_cells});
    }
    return piece;
}

int32_t run(const Plan &plan, int ith, int nth) {
    const TensorRef &w = plan.step.src[0];
    const int64_t cells = w.ne[2] * w.ne[3] * plan.units * plan.copies * plan.blocks;
    const int64_t last = cells * (ith + 1) / nth;
    int32_t status = OK;
    plan.path.begin();
    for (int64_t cell = cells * ith / nth; cell < last && status == OK;) {
        const Piece piece = piece_at(plan, cell, last);
        status = decode_units(plan, piece) ? OK : UNSUPPORTED;
        if (status == OK) {
            multiply_piece(plan, piece);
        }
        cell += piece.n_units * (piece.last - piece.first);
    }
    plan.path.end();
    return status;
}

bool acceptable(const Step &step, const TypeInfo *info, const MatmulPath &path) {
    const TensorRef &w = step.src[0];
    const bool grouped = w.layout == static_cast<int32_t>(Layout::GROUPED);
    const bool converted = step.params[0] == 1;
    return info != nullptr && (path.form == PanelForm::PAIRS) == converted && (converted || step.src[1].nb[0] == 4) &&
           (!grouped || w.ne[2] * w.ne[3] == 1 || w.ne[1] % PANEL_ROWS == 0);
}

}  // namespace

int64_t matmul_scratch(const Step &step, int nth) {
    const int64_t unit = unit_bytes(step);
    return nth * aligned(units_at_once(step.src[0], unit) * unit) + ALIGNMENT;
}

int32_t matmul(const Step &step, int ith, int nth) {
    const TensorRef &w = step.src[0];
    const TensorRef &x = step.src[1];
    const TypeInfo *info = type_info(w.type);
    const MatmulPath &path = path_of(step);
    if (!acceptable(step, info, path)) {
        return UNSUPPORTED;
    }
    const int64_t unit = unit_bytes(step);
    const int64_t at_once = units_at_once(w, unit);
    const auto base = reinterpret_cast<uintptr_t>(step.scratch);
    const auto start = static_cast<int64_t>((ALIGNMENT - base % ALIGNMENT) % ALIGNMENT);
    const Plan plan{step,
                    *info,
                    path,
                    step.params[0] == 1,
                    unit * PANEL_ROWS / UNIT_ROWS,
                    unit,
                    n_units(w.ne[1]),
                    (x.ne[1] + BLOCK_TOKENS - 1) / BLOCK_TOKENS,
                    x.ne[2] / w.ne[2] * (x.ne[3] / w.ne[3]),
                    at_once,
                    step.scratch + start + ith * aligned(at_once * unit)};
    return run(plan, ith, nth);
}

}  // namespace ls
