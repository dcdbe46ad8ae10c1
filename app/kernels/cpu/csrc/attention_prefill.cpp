// Attention of many query rows: blocks of tokens against tiles of keys, with a running softmax.
//
// For each tile K is turned, so that logits are products of a row of queries with rows of the turned tile, vectors
// over keys; V rows then are vectors over the elements of the head. Tiles that no token of the block may see are
// skipped; a tile that all may see needs no mask.
#include <cfloat>
#include <cmath>

#include "attention.h"
#include "shuffle.h"

namespace ls {

namespace {

constexpr int TILE = 64;  // keys
static_assert(TILE % (4 * VW) == 0 || VW < 16, "whole panels of keys");

// Registers of a panel: ROWS x COLUMNS accumulators.
constexpr int ROWS = VW == 4 ? 4 : 6;
constexpr int COLUMNS = VW == 16 ? 4 : 2;

template <int M, int N>
void panel(const float *a, int64_t lda, const float *b, int64_t ldb, float *c, int64_t ldc, int64_t k, bool add) {
    vf acc[M][N];
    for (int i = 0; i < M; ++i) {
        for (int j = 0; j < N; ++j) {
            acc[i][j] = add ? vload(c + i * ldc + j * VW) : vf{};
        }
    }
    for (int64_t p = 0; p < k; ++p) {
        vf right[N];
        for (int j = 0; j < N; ++j) {
            right[j] = vload(b + p * ldb + j * VW);
        }
        for (int i = 0; i < M; ++i) {
            const float left = a[i * lda + p];
            for (int j = 0; j < N; ++j) {
                acc[i][j] += right[j] * left;
            }
        }
    }
    for (int i = 0; i < M; ++i) {
        for (int j = 0; j < N; ++j) {
            vstore(c + i * ldc + j * VW, acc[i][j]);
        }
    }
}

template <int N>
void panel_rows(const float *a, int64_t lda, const float *b, int64_t ldb, float *c, int64_t ldc, int64_t m, int64_t k, bool add) {
    int64_t i = 0;
    for (; i + ROWS <= m; i += ROWS) {
        panel<ROWS, N>(a + i * lda, lda, b, ldb, c + i * ldc, ldc, k, add);
    }
    for (; i + 2 <= m; i += 2) {
        panel<2, N>(a + i * lda, lda, b, ldb, c + i * ldc, ldc, k, add);
    }
    for (; i < m; ++i) {
        panel<1, N>(a + i * lda, lda, b, ldb, c + i * ldc, ldc, k, add);
    }
}

// C (m x n) = or += A (m x k) B (k x n), row-major, n a whole number of vectors.
void multiply(const float *a, int64_t lda, const float *b, int64_t ldb, float *c, int64_t ldc, int64_t m, int64_t n, int64_t k,
              bool add) {
    int64_t j = 0;
    for (; j + COLUMNS * VW <= n; j += COLUMNS * VW) {
        panel_rows<COLUMNS>(a, lda, b + j, ldb, c + j, ldc, m, k, add);
    }
    for (; j < n; j += VW) {
        panel_rows<1>(a, lda, b + j, ldb, c + j, ldc, m, k, add);
    }
}

// Tokens of a block, so that with all heads of a group there are about 96 rows.
int64_t block_tokens(const Attention &a) { return std::min(a.n_tokens, std::max<int64_t>(8, 96 / a.group)); }

struct Workspace {
    Workspace(const Attention &a, uint8_t *scratch, int64_t rows)
        : queries(reinterpret_cast<float *>(scratch)), sums(queries + rows * a.dk_pad), weights(sums + rows * a.dv_pad),
          turned(weights + rows * TILE), tile(turned + a.dk_pad * TILE), largest(tile + TILE * std::max(a.dk_pad, a.dv_pad)),
          total(largest + rows), shrink(total + rows) {}

    static int64_t floats(const Attention &a, int64_t rows) {
        const int64_t tiles = (a.dk_pad + std::max(a.dk_pad, a.dv_pad)) * TILE;
        return (rows * (a.dk_pad + a.dv_pad + TILE + 3) + tiles + VW - 1) / VW * VW;
    }

    float *queries, *sums, *weights, *turned, *tile, *largest, *total, *shrink;
};

enum class Seen { NONE, SOME, ALL };

// What `tokens` rows of the mask say of keys [first, first + count).
Seen visibility(const Attention &a, int64_t token, int64_t tokens, int64_t seq, int64_t first, int64_t count) {
    if (a.mask.data == nullptr) {
        return Seen::ALL;
    }
    if (a.mask.ne[2] != 1) {
        return Seen::SOME;
    }
    constexpr uint16_t MINUS_INFINITY = 0xfc00;
    uint32_t masked = 0;
    uint32_t zero = 0;
    for (int64_t t = 0; t < tokens; ++t) {
        const uint16_t *row = a.mask_row(token + t, 0, seq) + first;
        for (int64_t i = 0; i < count; ++i) {
            masked += row[i] == MINUS_INFINITY;
            zero += row[i] == 0;
        }
    }
    const auto all = static_cast<uint32_t>(tokens * count);
    return masked == all ? Seen::NONE : (zero == all ? Seen::ALL : Seen::SOME);
}

void turn(const float *tile, int64_t d, float *out) {
    for (int64_t key = 0; key < TILE; key += VW) {
        for (int64_t i = 0; i < d; i += VW) {
            transpose_square(tile + key * d + i, d, out + i * TILE + key, TILE);
        }
    }
}

void finish_logits(const Attention &a, const uint16_t *mask, float slope, int64_t count, float *logits) {
    if (a.softcap != 0.0f) {
        for (int i = 0; i < TILE; i += VW) {
            vstore(logits + i, vtanh(vload(logits + i)) * a.softcap);
        }
    }
    if (mask != nullptr && count == TILE) {
        for (int i = 0; i < TILE; i += VW) {
            vstore(logits + i, vload(logits + i) + vload_f16(mask + i) * slope);
        }
    } else if (mask != nullptr) {
        for (int64_t i = 0; i < count; ++i) {
            logits[i] += half_to_float(mask[i]) * slope;
        }
    }
    std::fill(logits + count, logits + TILE, -INFINITY);
}

float tile_largest(const float *logits) {
    vf best = vload(logits);
    for (int i = VW; i < TILE; i += VW) {
        best = vmax(vload(logits + i), best);
    }
    return vlargest(best);
}

// Logits to weights e^(x - level); the row's sums so far are brought to that level by `shrink`.
void weigh(float *weights, float level, float shrink, float *total, float *sums, int64_t dv) {
    vf sum{};
    for (int i = 0; i < TILE; i += VW) {
        const vf e = vexp(vload(weights + i) - level);
        vstore(weights + i, e);
        sum += e;
    }
    *total = *total * shrink + vsum(sum);
    if (shrink != 1.0f) {
        for (int64_t i = 0; i < dv; i += VW) {
            vstore(sums + i, vload(sums + i) * shrink);
        }
    }
}

// All rows' levels for this tile, and what their sums shrink by; a row that has seen no key keeps its level.
void raise_levels(const float *weights, int64_t rows, float *levels, float *shrink) {
    for (int64_t row = 0; row < rows; ++row) {
        const float level = std::max(levels[row], tile_largest(weights + row * TILE));
        shrink[row] = levels[row] == level ? 0.0f : levels[row] - level;
        levels[row] = level;
    }
    int64_t i = 0;
    for (; i + VW <= rows; i += VW) {
        vstore(shrink + i, vexp(vload(shrink + i)));
    }
    for (; i < rows; ++i) {
        shrink[i] = std::exp(shrink[i]);
    }
}

struct Block {
    int64_t token, tokens, head_kv, seq;
};

void attend_tile(const Attention &a, const Workspace &w, const Block &b, int64_t first, int64_t count, bool masked) {
    const int64_t rows = a.group * b.tokens;
    load_heads(a.k, a.k_type, first, count, TILE, b.head_kv, b.seq, w.tile, a.dk_pad);
    turn(w.tile, a.dk_pad, w.turned);
    multiply(w.queries, a.dk_pad, w.turned, TILE, w.weights, TILE, rows, TILE, a.dk_pad, false);
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t head = b.head_kv * a.group + row / b.tokens;
        const uint16_t *mask = masked ? a.mask_row(b.token + row % b.tokens, head, b.seq) + first : nullptr;
        float *weights = w.weights + row * TILE;
        if (mask != nullptr || count < TILE || a.softcap != 0.0f) {
            finish_logits(a, mask, alibi_slope(head, a.n_head, a.max_bias), count, weights);
        }
    }
    raise_levels(w.weights, rows, w.largest, w.shrink);
    for (int64_t row = 0; row < rows; ++row) {
        // A row without keys so far has only logits of minus infinity, which any finite level turns to 0.
        const float level = std::max(w.largest[row], -FLT_MAX);
        weigh(w.weights + row * TILE, level, w.shrink[row], w.total + row, w.sums + row * a.dv_pad, a.dv_pad);
    }
    load_heads(a.v, a.v_type, first, count, TILE, b.head_kv, b.seq, w.tile, a.dv_pad);
    multiply(w.weights, TILE, w.tile, a.dv_pad, w.sums, a.dv_pad, rows, a.dv_pad, TILE, true);
}

void attend(const Attention &a, const Workspace &w, const Block &b) {
    const int64_t rows = a.group * b.tokens;
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t head = b.head_kv * a.group + row / b.tokens;
        a.load_query(b.token + row % b.tokens, head, b.seq, w.queries + row * a.dk_pad);
        w.largest[row] = -INFINITY;
        w.total[row] = 0.0f;
    }
    std::fill(w.sums, w.sums + rows * a.dv_pad, 0.0f);
    for (int64_t first = 0; first < a.n_kv; first += TILE) {
        const int64_t count = std::min<int64_t>(TILE, a.n_kv - first);
        const Seen seen = visibility(a, b.token, b.tokens, b.seq, first, count);
        if (seen != Seen::NONE) {
            attend_tile(a, w, b, first, count, seen == Seen::SOME);
        }
    }
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t head = b.head_kv * a.group + row / b.tokens;
        finish_row(a, b.token + row % b.tokens, head, b.seq, w.largest[row], w.total[row], w.sums + row * a.dv_pad);
    }
}

}  // namespace

int64_t attention_prefill_scratch(const Attention &a, int n_threads) {
    return n_threads * Workspace::floats(a, a.group * block_tokens(a)) * static_cast<int64_t>(sizeof(float));
}

int32_t attention_prefill(const Attention &a, const Step &step, int ith, int nth) {
    const int64_t height = block_tokens(a);
    const int64_t rows = a.group * height;
    const Workspace w(a, step.scratch + ith * Workspace::floats(a, rows) * static_cast<int64_t>(sizeof(float)), rows);
    const int64_t blocks = (a.n_tokens + height - 1) / height;
    // Strided, since later tokens of a text see more keys.
    for (int64_t unit = ith; unit < blocks * a.pairs(); unit += nth) {
        const int64_t token = unit % blocks * height;
        const int64_t pair = unit / blocks;
        attend(a, w, {token, std::min(height, a.n_tokens - token), pair % a.n_head_kv, pair / a.n_head_kv});
    }
    return OK;
}

}  // namespace ls
