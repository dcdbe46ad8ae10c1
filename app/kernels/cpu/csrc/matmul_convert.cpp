// Activations to tiles of bf16, written once for all products that read them and all threads.
#include <algorithm>
#include <cstring>

#include "bf16_pairs.h"
#include "matmul.h"

namespace ls {

int64_t convert_scratch(const Step &step) {
    const int32_t type = step.params[0];
    if (best_path().form != PanelForm::PAIRS) {
        return 0;
    }
    const TensorRef &x = step.src[0];
    return x.ne[2] * x.ne[3] * token_tiles(x.ne[1]) * tile_bytes(type, x.ne[0]);
}

#if defined(LS_HAS_PAIRS)

namespace {

constexpr int TOKEN_STEP_BYTES = STEP_ELEMENTS * 2;

// One token's row of k elements nb0 bytes apart; null for none, which is zeros.
void convert_row(const uint8_t *row, int64_t nb0, int64_t k, int parts, uint8_t *out) {
    const int64_t whole = row != nullptr && nb0 == sizeof(float) ? k / STEP_ELEMENTS * STEP_ELEMENTS : 0;
    for (int64_t i = 0; i < whole; i += STEP_ELEMENTS, out += parts * PAIR_STEP_BYTES) {
        put_parts(reinterpret_cast<const float *>(row) + i, parts, out);
    }
    for (int64_t i = whole; i < k; i += STEP_ELEMENTS, out += parts * PAIR_STEP_BYTES) {
        float values[STEP_ELEMENTS] = {};
        for (int64_t j = 0; row != nullptr && j < STEP_ELEMENTS && i + j < k; ++j) {
            std::memcpy(values + j, row + (i + j) * nb0, sizeof(float));
        }
        put_parts(values, parts, out);
    }
}

}  // namespace

int32_t convert_bf16(const Step &step, int ith, int nth) {
    const TensorRef &x = step.src[0];
    const int parts = bf16_parts(step.params[0]).activations;
    const int64_t bytes = tile_bytes(step.params[0], x.ne[0]);
    const int64_t tiles = token_tiles(x.ne[1]);
    const int64_t n_units = x.ne[2] * x.ne[3] * tiles;
    for (int64_t unit = n_units * ith / nth; unit < n_units * (ith + 1) / nth; ++unit) {
        const int64_t matrix = unit / tiles;
        const uint8_t *rows = x.data + matrix % x.ne[2] * x.nb[2] + matrix / x.ne[2] * x.nb[3];
        for (int64_t i = 0; i < TILE_TOKENS; ++i) {
            const int64_t token = unit % tiles * TILE_TOKENS + i;
            convert_row(token < x.ne[1] ? rows + token * x.nb[1] : nullptr, x.nb[0], x.ne[0], parts,
                        step.scratch + unit * bytes + i * TOKEN_STEP_BYTES);
        }
    }
    return OK;
}

#else

int32_t convert_bf16(const Step &, int, int) { return UNSUPPORTED; }

#endif

}  // namespace ls
