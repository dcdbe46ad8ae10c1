// Attention on AMX tiles: blocks of tokens against tiles of keys, with a running softmax.
//
// All factors are sums of two bf16 parts (dequant.h), one where the cache is BF16, so that 16 bits are kept. A block's keys and values become panels once per tile for all heads that share them;
// strips of up to 32 tokens of one head then go through logits, weights and results while these stay in the cache.
#include "attention_amx.h"

#include <cfloat>
#include <cmath>

#include "amx.h"
#include "amx_tiles.h"
#include "bf16_pairs.h"
#include "matmul.h"

namespace ls {

#if defined(LS_HAS_TILES) && defined(LS_HAS_PAIRS)

namespace {

constexpr int64_t KEYS = 128;   // of a tile
constexpr int64_t STRIP = 32;  // tokens of one head that are worked on together
constexpr int64_t KEY_STEPS = KEYS / STEP_ELEMENTS;
constexpr int64_t FEWEST_TOKENS = 6;
constexpr int64_t UNITS_PER_THREAD = 4;
constexpr int64_t MOST_ROWS = 512;
constexpr int64_t BLOCK_BYTES = 640 * 1024;  // of queries and results, to stay in a second-level cache

int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// Sizes in bytes that all threads share, and the block's height.
struct Sizes {
    Sizes(const Attention &a, int nth)
        : k_type(a.k_type.groups ? TYPE_F32 : a.k_type.type), k_parts(bf16_parts(k_type)),
          v_parts(bf16_parts(a.v_type.groups ? TYPE_F32 : a.v_type.type)), k_steps(n_steps(a.dk)),
          query_tile(k_steps * k_parts.activations * TILE_BYTES), k_panel(k_steps * k_parts.weights * TILE_BYTES),
          weight_tile(KEY_STEPS * v_parts.activations * TILE_BYTES), v_panel(KEY_STEPS * v_parts.weights * TILE_BYTES),
          result_row(round_up(a.dv_pad, 2 * PANEL_ROWS) * 4), float_row(std::max(result_row, a.dk_pad * 4)) {
        const int64_t token_bytes = a.group * (query_tile / TILE_TOKENS + result_row);
        const int64_t most = std::min(BLOCK_BYTES / token_bytes, MOST_ROWS / a.group);
        const int64_t enough_units = (UNITS_PER_THREAD * nth + a.pairs() - 1) / a.pairs();
        const int64_t blocks = std::max(a.n_tokens / std::max<int64_t>(most, 1), enough_units);
        tokens = round_up((a.n_tokens + blocks - 1) / blocks, STRIP);
        rows = tokens * a.group;
    }

    int64_t thread_bytes() const {
        const int64_t panels = KEYS / PANEL_ROWS * k_panel + result_row / TILE_LINE * v_panel;
        const int64_t strip = STRIP * KEYS * 4 + STRIP / TILE_TOKENS * weight_tile + KEYS * float_row;
        return rows / TILE_TOKENS * query_tile + rows * result_row + panels + strip + round_up(2 * rows * 4, TILE_LINE);
    }

    int32_t k_type;  // quantised keys are decoded to floats first
    Parts k_parts, v_parts;
    int64_t k_steps;      // of a product over the head's elements
    int64_t query_tile;   // 16 tokens of one head
    int64_t k_panel;      // 16 keys
    int64_t weight_tile;  // 16 tokens' weights of all keys of a tile
    int64_t v_panel;      // 16 elements of V's head over all keys of a tile
    int64_t result_row;
    int64_t float_row;  // of keys or values before they become panels
    int64_t tokens;  // of a block
    int64_t rows;    // tokens times heads
};

struct Workspace {
    Workspace(const Sizes &s, uint8_t *memory) : sizes(s) {
        queries = take(memory, s.rows / TILE_TOKENS * s.query_tile);
        results = take(memory, s.rows * s.result_row);
        keys = take(memory, KEYS / PANEL_ROWS * s.k_panel);
        values = take(memory, s.result_row / TILE_LINE * s.v_panel);
        logits = reinterpret_cast<float *>(take(memory, STRIP * KEYS * 4));
        weights = take(memory, STRIP / TILE_TOKENS * s.weight_tile);
        floats = reinterpret_cast<float *>(take(memory, KEYS * s.float_row));
        largest = reinterpret_cast<float *>(take(memory, 2 * s.rows * 4));
        total = largest + s.rows;
    }

    static uint8_t *take(uint8_t *&memory, int64_t bytes) {
        uint8_t *taken = memory;
        memory += bytes;
        return taken;
    }

    float *result(int64_t row) const { return reinterpret_cast<float *>(results + row * sizes.result_row); }

    const Sizes &sizes;
    uint8_t *queries, *results, *keys, *values, *weights;
    float *logits, *floats, *largest, *total;
};

struct Block {
    int64_t token, tokens, head_kv, seq;
};

// Tokens [token, token + tokens) of one head; `row` is its first row in the workspace.
struct Strip {
    int64_t token, tokens, head, seq, row;
};

struct KeyTile {
    int64_t first, count;
};

// ---- panels

// The lines of two keys for 16 elements of V; its low part is a tile further.
void put_value_pair(__m512 even, __m512 odd, int parts, uint8_t *line) {
    store_pairs(line, even, odd);
    if (parts == 2) {
        store_pairs(line + TILE_BYTES, _mm512_sub_ps(even, rounded(even)), _mm512_sub_ps(odd, rounded(odd)));
    }
}

void fill_values(const Attention &a, const Workspace &w, const Block &b, const KeyTile &tile) {
    const int64_t stride = w.sizes.result_row / 4;
    load_heads(a.v, a.v_type, tile.first, tile.count, KEYS, b.head_kv, b.seq, w.floats, stride);
    for (int64_t element = 0; element < stride; element += PANEL_ROWS) {
        uint8_t *panel = w.values + element / PANEL_ROWS * w.sizes.v_panel;
        for (int64_t key = 0; key < KEYS; key += 2) {
            const float *even = w.floats + key * stride + element;
            uint8_t *step = panel + key / STEP_ELEMENTS * w.sizes.v_parts.weights * TILE_BYTES;
            put_value_pair(_mm512_loadu_ps(even), _mm512_loadu_ps(even + stride), w.sizes.v_parts.weights,
                           step + key % STEP_ELEMENTS / 2 * TILE_LINE);
        }
    }
}

void fill_keys(const Attention &a, const Workspace &w, const Block &b, const KeyTile &tile) {
    WeightMatrix matrix{&a.k_type, row_of(a.k, tile.first, b.head_kv, b.seq), a.dk, tile.count, a.k.nb[0], a.k.nb[1], false};
    if (a.k_type.groups) {
        load_heads(a.k, a.k_type, tile.first, tile.count, tile.count, b.head_kv, b.seq, w.floats, a.dk_pad);
        matrix.info = type_info(TYPE_F32);
        matrix.data = reinterpret_cast<const uint8_t *>(w.floats);
        matrix.nb0 = sizeof(float);
        matrix.nb1 = a.dk_pad * matrix.nb0;
    }
    for (int64_t key = 0; key < tile.count; key += PANEL_ROWS) {
        fill_dense_panel(matrix, key / PANEL_ROWS, PanelForm::PAIRS, w.keys + key / PANEL_ROWS * w.sizes.k_panel);
    }
}

// One row of up to `n` floats to its place in a tile, part by part.
void put_row(const float *values, int64_t n, int parts, uint8_t *out) {
    for (int64_t i = 0; i < n; i += STEP_ELEMENTS, out += parts * TILE_BYTES) {
        put_parts(values + i, parts, out);
    }
}

// ---- masks

enum class Seen { NONE, SOME, ALL };

Seen visibility(const Attention &a, const Strip &s, const KeyTile &tile) {
    if (a.mask.data == nullptr) {
        return Seen::ALL;
    }
    const __m512i infinite = _mm512_set1_epi16(static_cast<int16_t>(0xfc00));
    bool none = true;
    bool all = true;
    for (int64_t t = 0; t < s.tokens && (none || all); ++t) {
        const uint16_t *row = a.mask_row(s.token + t, s.head, s.seq) + tile.first;
        for (int64_t key = 0; key < tile.count; key += 32) {
            const int64_t n = std::min<int64_t>(32, tile.count - key);
            const auto mask = static_cast<__mmask32>(n == 32 ? ~0u : (1u << n) - 1);
            const __m512i values = _mm512_maskz_loadu_epi16(mask, row + key);
            none &= _mm512_mask_cmpeq_epi16_mask(mask, values, infinite) == mask;
            all &= _mm512_test_epi16_mask(values, values) == 0;
        }
    }
    return none ? Seen::NONE : all ? Seen::ALL : Seen::SOME;
}

// ---- softmax

constexpr int64_t VECTORS = KEYS / VW;

// One row's logits, with softcap, mask and what lies past the last key taken into account.
void finish_logits(const Attention &a, const uint16_t *mask, float slope, int64_t count, float *row) {
    for (int64_t i = 0; i < KEYS; i += VW) {
        vf logits = vload(row + i);
        if (a.softcap != 0.0f) {
            logits = vtanh(logits) * a.softcap;
        }
        const int64_t n = std::clamp<int64_t>(count - i, 0, VW);
        const auto there = static_cast<__mmask16>((1u << n) - 1);
        if (mask != nullptr) {
            const __m256i halves = _mm256_maskz_loadu_epi16(there, mask + i);
            logits += reinterpret_cast<vf>(_mm512_cvtph_ps(halves)) * slope;
        }
        const __m512 nothing = _mm512_set1_ps(-INFINITY);
        _mm512_storeu_ps(row + i, _mm512_mask_blend_ps(there, nothing, reinterpret_cast<__m512>(logits)));
    }
}

// A row's level is raised only when a logit exceeds it by so much; until then its weights are at most e^8.
constexpr float LEVEL_STEP = 8.0f;

// Brings all rows of a strip to the levels that their new logits need, and what they have so far with them.
void raise_levels(const Workspace &w, const Strip &s) {
    alignas(TILE_LINE) float shrink[STRIP] = {};
    bool any = false;
    for (int64_t t = 0; t < s.tokens; ++t) {
        const float *logits = w.logits + t * KEYS;
        vf best = vload(logits);
        for (int64_t i = 1; i < VECTORS; ++i) {
            best = vmax(vload(logits + i * VW), best);
        }
        float &level = w.largest[s.row + t];
        const float greatest = vlargest(best);
        if (greatest > level + LEVEL_STEP || (level == -INFINITY && greatest > level)) {
            shrink[t] = level - greatest;
            level = greatest;
            any = true;
        }
    }
    if (!any) {
        return;
    }
    for (int64_t t = 0; t < STRIP; t += VW) {
        vstore(shrink + t, vexp(vload(shrink + t)));
    }
    for (int64_t t = 0; t < s.tokens; ++t) {
        if (shrink[t] != 1.0f) {
            w.total[s.row + t] *= shrink[t];
            float *result = w.result(s.row + t);
            for (int64_t i = 0; i < w.sizes.result_row / 4; i += VW) {
                vstore(result + i, vload(result + i) * shrink[t]);
            }
        }
    }
}

// e^x for x up to 88, within 2e-7; what is below -87 gives nearly nothing. NaN stays.
inline __m512 exp_of_weight(__m512 x) {
    const __m512 bounded = _mm512_max_ps(_mm512_set1_ps(-104.0f), x);  // in this order NaN goes through
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(bounded, _mm512_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT);
    const __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693147181f), bounded);
    __m512 p = _mm512_fmadd_ps(r, _mm512_set1_ps(1.0f / 720), _mm512_set1_ps(1.0f / 120));
    for (const float factor : {1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) {
        p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(factor));
    }
    return _mm512_scalef_ps(p, n);
}

// One row's logits to weights e^(x - level), added up and put in the strip's tile of weights.
void weigh(const Workspace &w, int64_t row, int64_t token) {
    const float *logits = w.logits + token * KEYS;
    // A row without keys so far has only logits of minus infinity, which any finite level turns to 0.
    const __m512 level = _mm512_set1_ps(std::max(w.largest[row], -FLT_MAX));
    alignas(TILE_LINE) float weights[KEYS];
    __m512 sum = _mm512_setzero_ps();
    for (int64_t i = 0; i < KEYS; i += 16) {
        const __m512 e = exp_of_weight(_mm512_sub_ps(_mm512_loadu_ps(logits + i), level));
        _mm512_store_ps(weights + i, e);
        sum = _mm512_add_ps(sum, e);
    }
    w.total[row] += _mm512_reduce_add_ps(sum);
    put_row(weights, KEYS, w.sizes.v_parts.activations,
            w.weights + token / TILE_TOKENS * w.sizes.weight_tile + token % TILE_TOKENS * TILE_LINE);
}

// ---- strips

using Product = void (*)(const TileOperands &in, const TileResult &c);

// For up to 16 tokens and for up to 32, by the parts of the cached type.
template <bool ADD>
Product strip_product(const Strip &s, const Parts &parts) {
    const bool two = s.tokens > TILE_TOKENS;
    if (parts.weights == 1) {
        return two ? multiply_whole<2, 2, ADD, 2, 1> : multiply_whole<1, 2, ADD, 2, 1>;
    }
    return two ? multiply_whole<2, 2, ADD, 2, 2> : multiply_whole<1, 2, ADD, 2, 2>;
}

void strip_logits(const Workspace &w, const Strip &s, const KeyTile &tile) {
    const Product product = strip_product<false>(s, w.sizes.k_parts);
    const uint8_t *queries = w.queries + s.row / TILE_TOKENS * w.sizes.query_tile;
    for (int64_t key = 0; key < tile.count; key += 2 * PANEL_ROWS) {
        const TileOperands in{queries, w.sizes.query_tile, w.keys + key / PANEL_ROWS * w.sizes.k_panel, w.sizes.k_panel,
                              w.sizes.k_steps};
        product(in, {reinterpret_cast<uint8_t *>(w.logits + key), KEYS * 4});
    }
}

void strip_results(const Workspace &w, const Strip &s) {
    const Product product = strip_product<true>(s, w.sizes.v_parts);
    for (int64_t element = 0; element < w.sizes.result_row / 4; element += 2 * PANEL_ROWS) {
        const TileOperands in{w.weights, w.sizes.weight_tile, w.values + element / PANEL_ROWS * w.sizes.v_panel, w.sizes.v_panel,
                              KEY_STEPS};
        product(in, {reinterpret_cast<uint8_t *>(w.result(s.row) + element), w.sizes.result_row});
    }
}

void attend_strip(const Attention &a, const Workspace &w, const Strip &s, const KeyTile &tile, bool masked) {
    strip_logits(w, s, tile);
    const float slope = alibi_slope(s.head, a.n_head, a.max_bias);
    if (masked || tile.count < KEYS || a.softcap != 0.0f) {
        for (int64_t t = 0; t < s.tokens; ++t) {
            const uint16_t *mask = masked ? a.mask_row(s.token + t, s.head, s.seq) + tile.first : nullptr;
            finish_logits(a, mask, slope, tile.count, w.logits + t * KEYS);
        }
    }
    raise_levels(w, s);
    for (int64_t t = 0; t < s.tokens; ++t) {
        weigh(w, s.row + t, t);
    }
    strip_results(w, s);
}

Strip strip_at(const Attention &a, const Workspace &w, const Block &b, int64_t offset, int64_t head) {
    return {b.token + offset, std::min(STRIP, b.tokens - offset), b.head_kv * a.group + head, b.seq,
            head * w.sizes.tokens + offset};
}

void attend_tile(const Attention &a, const Workspace &w, const Block &b, const KeyTile &tile) {
    const bool same_mask = a.mask.data == nullptr || a.mask.ne[2] == 1;
    bool filled = false;
    for (int64_t offset = 0; offset < b.tokens; offset += STRIP) {
        Seen seen = Seen::NONE;
        for (int64_t head = 0; head < a.group; ++head) {
            const Strip strip = strip_at(a, w, b, offset, head);
            if (head == 0 || !same_mask) {
                seen = visibility(a, strip, tile);
            }
            if (seen == Seen::NONE) {
                continue;
            }
            if (!filled) {
                fill_values(a, w, b, tile);
                fill_keys(a, w, b, tile);
                filled = true;
            }
            attend_strip(a, w, strip, tile, seen == Seen::SOME);
        }
    }
}

// ---- blocks

void load_queries(const Attention &a, const Workspace &w, const Block &b) {
    float query[MAX_BLOCK_ELEMENTS * 4] = {};
    for (int64_t head = 0; head < a.group; ++head) {
        for (int64_t t = 0; t < b.tokens; ++t) {
            const int64_t row = head * w.sizes.tokens + t;
            a.load_query(b.token + t, b.head_kv * a.group + head, b.seq, query);
            put_row(query, a.dk, w.sizes.k_parts.activations,
                    w.queries + row / TILE_TOKENS * w.sizes.query_tile + row % TILE_TOKENS * TILE_LINE);
        }
    }
}

void attend(const Attention &a, const Workspace &w, const Block &b) {
    load_queries(a, w, b);
    std::fill(w.largest, w.largest + w.sizes.rows, -INFINITY);
    std::fill(w.total, w.total + w.sizes.rows, 0.0f);
    std::memset(w.results, 0, static_cast<size_t>(w.sizes.rows * w.sizes.result_row));
    for (int64_t first = 0; first < a.n_kv; first += KEYS) {
        attend_tile(a, w, b, {first, std::min(KEYS, a.n_kv - first)});
    }
    for (int64_t head = 0; head < a.group; ++head) {
        for (int64_t t = 0; t < b.tokens; ++t) {
            const int64_t row = head * w.sizes.tokens + t;
            finish_row(a, b.token + t, b.head_kv * a.group + head, b.seq, w.largest[row], w.total[row], w.result(row));
        }
    }
}

constexpr int64_t MOST_ELEMENTS = MAX_BLOCK_ELEMENTS * 4 - STEP_ELEMENTS;  // of a head: load_queries' room

}  // namespace

bool has_amx_attention(const Attention &a) {
    return a.n_tokens >= FEWEST_TOKENS && a.dk <= MOST_ELEMENTS && a.group <= MOST_ROWS / STRIP &&
           &best_path() == amx_path();
}

int64_t attention_amx_scratch(const Attention &a, int n_threads) {
    // A small step is run by one thread, which then takes larger blocks.
    return std::max(n_threads * Sizes(a, n_threads).thread_bytes(), Sizes(a, 1).thread_bytes()) + TILE_LINE;
}

int32_t attention_amx(const Attention &a, const Step &step, int ith, int nth) {
    const Sizes sizes(a, nth);
    const auto base = reinterpret_cast<uintptr_t>(step.scratch);
    uint8_t *memory = step.scratch + (TILE_LINE - base % TILE_LINE) % TILE_LINE + ith * sizes.thread_bytes();
    const Workspace w(sizes, memory);
    const int64_t blocks = (a.n_tokens + sizes.tokens - 1) / sizes.tokens;
    amx_begin();
    // Later tokens of a text see more keys: every other round of units is dealt in the opposite order.
    for (int64_t round = 0; round * nth < blocks * a.pairs(); ++round) {
        const int64_t unit = round * nth + (round % 2 == 0 ? ith : nth - 1 - ith);
        if (unit >= blocks * a.pairs()) {
            continue;
        }
        const int64_t token = unit % blocks * sizes.tokens;
        const int64_t pair = unit / blocks;
        attend(a, w, {token, std::min(sizes.tokens, a.n_tokens - token), pair % a.n_head_kv, pair / a.n_head_kv});
    }
    amx_end();
    return OK;
}

#else

bool has_amx_attention(const Attention &) { return false; }
int64_t attention_amx_scratch(const Attention &, int) { return 0; }
int32_t attention_amx(const Attention &, const Step &, int, int) { return UNSUPPORTED; }

#endif

}  // namespace ls
