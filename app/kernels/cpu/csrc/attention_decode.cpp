// Attention of few query rows: K and V are read in the order of memory, all heads of a key after one another.
//
// What a token gets depends on its own keys alone, to the last bit, and neither on who shares the step nor on the number
// of threads. So each token goes through the tiles of keys that it may see by itself; tile n belongs to split
// n % SPLITS, and the splits of all tokens are shared out over the threads. A split keeps, per head, the greatest logit,
// the sum of weights and the weighted sum of V rows; ATTENTION_COMBINE joins them in their order. Blocks of 16 keys that a
// token may not see are not read and do not count, so that a sequence which begins at a whole block finds the same
// tiles wherever it lies in the cache.
#include <cmath>

#include "attention.h"
#include "attention_rows.h"

namespace ls {

namespace {

constexpr int TILE_BLOCKS = 4;  // blocks whose weights are computed together
constexpr int TILE = KEYS * TILE_BLOCKS;
constexpr int SPLITS = 16;

// One head's part of a split: greatest logit, sum of weights, then the weighted sum of V.
int64_t part_floats(const Attention &a) { return a.dv_pad + VW; }
int64_t parts_floats(const Attention &a) { return a.n_seq * a.n_tokens * SPLITS * a.n_head * part_floats(a); }

int64_t workspace_floats(const Attention &a) {
    const int64_t tile = KEYS * std::max(a.dk_pad, a.dv_pad);
    const int64_t blocks = (a.n_kv + KEYS - 1) / KEYS;
    return a.n_head * (a.dk_pad + TILE) + tile + (blocks + VW - 1) / VW * VW;
}

// The part of head 0; those of the other heads follow.
float *split_parts(const Attention &a, const Step &step, int64_t seq, int64_t token, int64_t split) {
    const int64_t number = (seq * a.n_tokens + token) * SPLITS + split;
    return reinterpret_cast<float *>(step.scratch) + number * a.n_head * part_floats(a);
}

struct Workspace {
    Workspace(const Attention &a, const Step &step, int ith)
        : queries(reinterpret_cast<float *>(step.scratch) + parts_floats(a) + ith * workspace_floats(a)),
          weights(queries + a.n_head * a.dk_pad), tile(weights + a.n_head * TILE),
          blocks(reinterpret_cast<int32_t *>(tile + KEYS * std::max(a.dk_pad, a.dv_pad))) {}

    float *queries, *weights, *tile;
    int32_t *blocks;  // those that the token may see
};

bool all_masked(const uint16_t *mask, int64_t n) {
    constexpr uint16_t MINUS_INFINITY = 0xfc00;
    bool all = true;
    for (int64_t i = 0; i < n; ++i) {
        all &= mask[i] == MINUS_INFINITY;
    }
    return all;
}

bool sees(const Attention &a, int64_t block, int64_t token, int64_t seq) {
    if (a.mask.data == nullptr || a.mask.ne[2] != 1) {
        return true;
    }
    const int64_t first = block * KEYS;
    return !all_masked(a.mask_row(token, 0, seq) + first, std::min<int64_t>(KEYS, a.n_kv - first));
}

int64_t list_blocks(const Attention &a, int64_t seq, int64_t token, int32_t *out) {
    int64_t n = 0;
    for (int64_t block = 0; block * KEYS < a.n_kv; ++block) {
        if (sees(a, block, token, seq)) {
            out[n++] = static_cast<int32_t>(block);
        }
    }
    return n;
}

// Soft cap, mask, and minus infinity behind the last key.
void finish_logits(const Attention &a, const uint16_t *mask, float slope, int64_t count, float *logits) {
    for (int i = 0; i < KEYS; i += VW) {
        vf x = vload(logits + i);
        if (a.softcap != 0.0f) {
            x = vtanh(x) * a.softcap;
        }
        if (mask != nullptr && count == KEYS) {
            x = x + vload_f16(mask + i) * slope;
        }
        vstore(logits + i, x);
    }
    if (count == KEYS) {
        return;
    }
    for (int64_t i = 0; i < KEYS; ++i) {
        if (i >= count) {
            logits[i] = -INFINITY;
        } else if (mask != nullptr) {
            logits[i] += half_to_float(mask[i]) * slope;
        }
    }
}

// Turns logits into weights e^(x - greatest) and brings the row's part to that level.
void weigh(float *weights, int64_t n, float *part, int64_t dv) {
    vf best = vload(weights);
    for (int64_t i = VW; i < n; i += VW) {
        best = vmax(vload(weights + i), best);
    }
    const float largest = std::max(part[0], vlargest(best));
    if (largest == -INFINITY) {
        std::fill(weights, weights + n, 0.0f);
        return;
    }
    vf sum{};
    for (int64_t i = 0; i < n; i += VW) {
        const vf e = vexp(vload(weights + i) - largest);
        vstore(weights + i, e);
        sum += e;
    }
    const float shrink = std::exp(part[0] - largest);
    part[1] = part[1] * shrink + vsum(sum);
    if (shrink != 1.0f) {
        for (int64_t i = 0; i < dv; ++i) {
            part[VW + i] *= shrink;
        }
    }
    part[0] = largest;
}

// Rows [first, first + KEYS) of a head as the kernels read them; through `tile` where they cannot.
BlockRows block_rows(const TensorRef &t, const TypeInfo &info, bool direct, int64_t first, int64_t head, int64_t seq,
                     int64_t size, float *tile) {
    const int64_t count = std::min<int64_t>(KEYS, t.ne[1] - first);
    if (direct) {
        return {row_of(t, first, head, seq), t.nb[1], count, size};
    }
    load_heads(t, info, first, count, count, head, seq, tile, size);
    return {reinterpret_cast<const uint8_t *>(tile), size * static_cast<int64_t>(sizeof(float)), count, size};
}

// What reads rows of a cache: its own type where whole vectors follow one another, else floats.
struct Reader {
    Reader(const TensorRef &t, int64_t size)
        : own(t.ne[0] == size ? row_kernels(t.type) : nullptr), kernels(own != nullptr ? *own : ROW_KERNELS<RowF32>) {}

    const RowKernels *own;
    const RowKernels &kernels;
};

// Calls `body(head, n)` for up to MAX_ROWS heads from `head` on, of those that share K head `head_kv`.
template <typename Body>
void for_heads(const Attention &a, int64_t head_kv, Body body) {
    const int64_t last = (head_kv + 1) * a.group;
    for (int64_t head = head_kv * a.group; head < last; head += MAX_ROWS) {
        body(head, std::min<int64_t>(MAX_ROWS, last - head));
    }
}

// One split of one token: its tiles, for all heads.
struct Split {
    const Attention &a;
    const Workspace &w;
    int64_t seq, token;
    float *parts;
    Reader k{a.k, a.dk_pad};
    Reader v{a.v, a.dv_pad};

    float *part(int64_t head) const { return parts + head * part_floats(a); }

    void clear() const {
        std::fill(parts, parts + a.n_head * part_floats(a), 0.0f);
        for (int64_t head = 0; head < a.n_head; ++head) {
            part(head)[0] = -INFINITY;
        }
    }

    void block_logits(int64_t first, float *out) const {
        for (int64_t head_kv = 0; head_kv < a.n_head_kv; ++head_kv) {
            const BlockRows keys = block_rows(a.k, a.k_type, k.own != nullptr, first, head_kv, seq, a.dk_pad, w.tile);
            for_heads(a, head_kv, [&](int64_t head, int64_t n) {
                k.kernels.dot[n - 1](keys, w.queries + head * a.dk_pad, a.dk_pad, out + head * TILE, TILE);
            });
            for (int64_t head = head_kv * a.group; head < (head_kv + 1) * a.group; ++head) {
                const uint16_t *mask = a.mask.data == nullptr ? nullptr : a.mask_row(token, head, seq) + first;
                finish_logits(a, mask, alibi_slope(head, a.n_head, a.max_bias), keys.count, out + head * TILE);
            }
        }
    }

    void mix_block(int64_t first, const float *weights) const {
        for (int64_t head_kv = 0; head_kv < a.n_head_kv; ++head_kv) {
            const BlockRows values = block_rows(a.v, a.v_type, v.own != nullptr, first, head_kv, seq, a.dv_pad, w.tile);
            for_heads(a, head_kv, [&](int64_t head, int64_t n) {
                v.kernels.mix[n - 1](values, weights + head * TILE, TILE, part(head) + VW, part_floats(a));
            });
        }
    }

    void attend_tile(const int32_t *blocks, int64_t n) const {
        for (int64_t b = 0; b < n; ++b) {
            block_logits(int64_t{blocks[b]} * KEYS, w.weights + b * KEYS);
        }
        for (int64_t head = 0; head < a.n_head; ++head) {
            weigh(w.weights + head * TILE, n * KEYS, part(head), a.dv_pad);
        }
        for (int64_t b = 0; b < n; ++b) {
            mix_block(int64_t{blocks[b]} * KEYS, w.weights + b * KEYS);
        }
    }
};

int64_t n_tiles(int64_t n_blocks) { return (n_blocks + TILE_BLOCKS - 1) / TILE_BLOCKS; }

// Tiles of split `split`, of a token that sees `tiles` of them.
int64_t tiles_of(int64_t tiles, int64_t split) { return split < tiles ? (tiles - split - 1) / SPLITS + 1 : 0; }

void attend(const Split &split, int64_t number, int64_t n_blocks) {
    split.clear();
    for (int64_t tile = number; tile < n_tiles(n_blocks); tile += SPLITS) {
        const int64_t first = tile * TILE_BLOCKS;
        split.attend_tile(split.w.blocks + first, std::min<int64_t>(TILE_BLOCKS, n_blocks - first));
    }
}

void load_queries(const Attention &a, int64_t seq, int64_t token, float *out) {
    for (int64_t head = 0; head < a.n_head; ++head) {
        a.load_query(token, head, seq, out + head * a.dk_pad);
    }
}

void join_part(const float *part, float *sum, int64_t dv) {
    if (part[0] == -INFINITY) {
        return;
    }
    const float largest = std::max(sum[0], part[0]);
    const float mine = std::exp(sum[0] - largest);
    const float other = std::exp(part[0] - largest);
    sum[0] = largest;
    sum[1] = sum[1] * mine + part[1] * other;
    for (int64_t i = 0; i < dv; ++i) {
        sum[VW + i] = sum[VW + i] * mine + part[VW + i] * other;
    }
}

}  // namespace

int64_t attention_decode_scratch(const Attention &a, int n_threads) {
    return (parts_floats(a) + n_threads * workspace_floats(a)) * static_cast<int64_t>(sizeof(float));
}

int32_t attention_decode(const Attention &a, const Step &step, int ith, int nth) {
    const Workspace w(a, step, ith);
    // Every thread counts all visible tiles: reading the masks costs less than telling one another.
    int64_t total = 0;
    for (int64_t i = 0; i < a.n_seq * a.n_tokens; ++i) {
        total += n_tiles(list_blocks(a, i / a.n_tokens, i % a.n_tokens, w.blocks));
    }
    // A split goes to the thread whose share its first tile is in; those without tiles are cleared with the last.
    const Range mine = share(total, ith, nth);
    int64_t at = 0;
    for (int64_t i = 0; i < a.n_seq * a.n_tokens; ++i) {
        const int64_t seq = i / a.n_tokens;
        const int64_t token = i % a.n_tokens;
        const int64_t n_blocks = list_blocks(a, seq, token, w.blocks);
        const int64_t tiles = n_tiles(n_blocks);
        bool is_loaded = false;
        for (int64_t number = 0; number < SPLITS; ++number) {
            const int64_t n = tiles_of(tiles, number);
            const bool is_mine = n == 0 ? ith == nth - 1 : mine.first <= at && at < mine.last;
            at += n;
            if (!is_mine) {
                continue;
            }
            if (!is_loaded && n > 0) {
                load_queries(a, seq, token, w.queries);
                is_loaded = true;
            }
            attend({a, w, seq, token, split_parts(a, step, seq, token, number)}, number, n_blocks);
        }
    }
    return OK;
}

int32_t attention_decode_combine(const Attention &a, const Step &step) {
    for (int64_t i = 0; i < a.n_seq * a.n_tokens; ++i) {
        const int64_t seq = i / a.n_tokens;
        const int64_t token = i % a.n_tokens;
        for (int64_t head = 0; head < a.n_head; ++head) {
            float *sum = split_parts(a, step, seq, token, 0) + head * part_floats(a);
            for (int64_t split = 1; split < SPLITS; ++split) {
                join_part(split_parts(a, step, seq, token, split) + head * part_floats(a), sum, a.dv_pad);
            }
            finish_row(a, token, head, seq, sum[0], sum[1], sum + VW);
        }
    }
    return OK;
}

}  // namespace ls
