// Attention of few query rows: K and V are read once and in the order of memory, all heads of a key after one another,
// and the keys are shared out evenly over the threads.
//
// Each thread keeps, per query row, the greatest logit, the sum of weights and the weighted sum of V rows over its keys;
// ATTENTION_COMBINE joins them. Blocks of 16 keys that no row may see are not read, and a block is worked on only for the
// tokens that may see it: the tokens of several streams see different ones.
#include <cmath>

#include "attention.h"
#include "attention_rows.h"

namespace ls {

namespace {

constexpr int TILE_BLOCKS = 16;  // blocks whose weights are computed together
constexpr int TILE = KEYS * TILE_BLOCKS;
constexpr int64_t HEADER = 64;  // bytes: how many threads left parts

// Query rows of one sequence: heads times tokens.
int64_t seq_rows(const Attention &a) { return a.n_head * a.n_tokens; }

// One row's part: greatest logit, sum of weights, then the weighted sum of V.
int64_t part_floats(const Attention &a) { return a.dv_pad + VW; }
int64_t parts_floats(const Attention &a) { return a.n_seq * seq_rows(a) * part_floats(a); }

int64_t workspace_floats(const Attention &a) {
    const int64_t tile = KEYS * std::max(a.dk_pad, a.dv_pad);
    const int64_t blocks = (a.n_kv + KEYS - 1) / KEYS;
    return seq_rows(a) * (a.dk_pad + TILE) + tile + (blocks + VW - 1) / VW * VW;
}

struct Workspace {
    Workspace(const Attention &a, const Step &step, int ith)
        : parts(reinterpret_cast<float *>(step.scratch + HEADER) + ith * (parts_floats(a) + workspace_floats(a))),
          queries(parts + parts_floats(a)), weights(queries + seq_rows(a) * a.dk_pad), tile(weights + seq_rows(a) * TILE),
          blocks(reinterpret_cast<int32_t *>(tile + KEYS * std::max(a.dk_pad, a.dv_pad))) {}

    float *part(const Attention &a, int64_t seq, int64_t row) const {
        return parts + (seq * seq_rows(a) + row) * part_floats(a);
    }

    float *parts, *queries, *weights, *tile;
    int32_t *blocks;  // those that some row may see
};

bool all_masked(const uint16_t *mask, int64_t n) {
    constexpr uint16_t MINUS_INFINITY = 0xfc00;
    bool all = true;
    for (int64_t i = 0; i < n; ++i) {
        all &= mask[i] == MINUS_INFINITY;
    }
    return all;
}

uint32_t everybody(const Attention &a) { return (uint32_t{1} << a.n_tokens) - 1; }

// Bit t: token t may see some key of the block.
uint32_t who_sees(const Attention &a, int64_t first, int64_t seq) {
    if (a.mask.data == nullptr || a.mask.ne[2] != 1) {
        return everybody(a);
    }
    const int64_t count = std::min<int64_t>(KEYS, a.n_kv - first);
    uint32_t seen = 0;
    for (int64_t token = 0; token < a.n_tokens; ++token) {
        seen |= uint32_t{!all_masked(a.mask_row(token, 0, seq) + first, count)} << token;
    }
    return seen;
}

int64_t list_blocks(const Attention &a, int64_t seq, int32_t *out) {
    int64_t n = 0;
    for (int64_t block = 0; block * KEYS < a.n_kv; ++block) {
        if (who_sees(a, block * KEYS, seq) != 0) {
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

// Calls `body(row, n, apart)` for up to MAX_ROWS rows, `apart` from one another, of those that share K head `head_kv` and belong to the
// tokens in `seen`: all rows as they stand, or the heads of one token after another.
template <typename Body>
void for_rows(const Attention &a, int64_t head_kv, uint32_t seen, Body body) {
    const int64_t first = head_kv * a.rows();
    const int64_t last = first + a.rows();
    if (seen == everybody(a)) {
        for (int64_t row = first; row < last; row += MAX_ROWS) {
            body(row, std::min<int64_t>(MAX_ROWS, last - row), int64_t{1});
        }
        return;
    }
    for (int64_t token = 0; token < a.n_tokens; ++token) {
        for (int64_t head = 0; (seen >> token & 1) != 0 && head < a.group; head += MAX_ROWS) {
            body(first + head * a.n_tokens + token, std::min<int64_t>(MAX_ROWS, a.group - head), a.n_tokens);
        }
    }
}

void block_logits(const Attention &a, const Workspace &w, const Reader &reader, int64_t seq, int64_t first, uint32_t seen,
                  float *out) {
    for (int64_t head_kv = 0; head_kv < a.n_head_kv; ++head_kv) {
        const BlockRows keys = block_rows(a.k, a.k_type, reader.own != nullptr, first, head_kv, seq, a.dk_pad, w.tile);
        for_rows(a, head_kv, seen, [&](int64_t row, int64_t n, int64_t apart) {
            reader.kernels.dot[n - 1](keys, w.queries + row * a.dk_pad, apart * a.dk_pad, out + row * TILE, apart * TILE);
        });
        for (int64_t row = head_kv * a.rows(); row < (head_kv + 1) * a.rows(); ++row) {
            const int64_t head = row / a.n_tokens;
            const int64_t token = row % a.n_tokens;
            if ((seen >> token & 1) == 0) {
                std::fill(out + row * TILE, out + row * TILE + KEYS, -INFINITY);
                continue;
            }
            const uint16_t *mask = a.mask.data == nullptr ? nullptr : a.mask_row(token, head, seq) + first;
            finish_logits(a, mask, alibi_slope(head, a.n_head, a.max_bias), keys.count, out + row * TILE);
        }
    }
}

void mix_block(const Attention &a, const Workspace &w, const Reader &reader, int64_t seq, int64_t first, uint32_t seen,
               const float *weights) {
    for (int64_t head_kv = 0; head_kv < a.n_head_kv; ++head_kv) {
        const BlockRows values = block_rows(a.v, a.v_type, reader.own != nullptr, first, head_kv, seq, a.dv_pad, w.tile);
        for_rows(a, head_kv, seen, [&](int64_t row, int64_t n, int64_t apart) {
            reader.kernels.mix[n - 1](values, weights + row * TILE, apart * TILE, w.part(a, seq, row) + VW,
                                      apart * part_floats(a));
        });
    }
}

void attend_tile(const Attention &a, const Workspace &w, int64_t seq, const int32_t *blocks, int64_t n) {
    const Reader k(a.k, a.dk_pad);
    const Reader v(a.v, a.dv_pad);
    const auto first_key = [&](int64_t b) { return static_cast<int64_t>(blocks[b]) * KEYS; };
    uint32_t seen[TILE_BLOCKS];
    for (int64_t b = 0; b < n; ++b) {
        seen[b] = who_sees(a, first_key(b), seq);
        block_logits(a, w, k, seq, first_key(b), seen[b], w.weights + b * KEYS);
    }
    for (int64_t row = 0; row < seq_rows(a); ++row) {
        weigh(w.weights + row * TILE, n * KEYS, w.part(a, seq, row), a.dv_pad);
    }
    for (int64_t b = 0; b < n; ++b) {
        mix_block(a, w, v, seq, first_key(b), seen[b], w.weights + b * KEYS);
    }
}

void attend(const Attention &a, const Workspace &w, int64_t seq, const int32_t *blocks, int64_t n) {
    for (int64_t row = 0; row < seq_rows(a); ++row) {
        a.load_query(row % a.n_tokens, row / a.n_tokens, seq, w.queries + row * a.dk_pad);
    }
    for (int64_t b = 0; b < n; b += TILE_BLOCKS) {
        attend_tile(a, w, seq, blocks + b, std::min<int64_t>(TILE_BLOCKS, n - b));
    }
}

void clear_parts(const Attention &a, const Workspace &w) {
    for (int64_t i = 0; i < a.n_seq * seq_rows(a); ++i) {
        float *part = w.parts + i * part_floats(a);
        std::fill(part, part + part_floats(a), 0.0f);
        part[0] = -INFINITY;
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
    return HEADER + n_threads * (parts_floats(a) + workspace_floats(a)) * static_cast<int64_t>(sizeof(float));
}

int32_t attention_decode(const Attention &a, const Step &step, int ith, int nth) {
    const Workspace w(a, step, ith);
    if (ith == 0) {
        const int64_t n = nth;
        std::memcpy(step.scratch, &n, sizeof n);
    }
    clear_parts(a, w);
    // Every thread counts all visible blocks: reading the masks costs less than telling one another.
    int64_t total = 0;
    int64_t n_visible = 0;
    for (int64_t seq = 0; seq < a.n_seq; ++seq) {
        n_visible = list_blocks(a, seq, w.blocks);
        total += n_visible;
    }
    const Range mine = share(total, ith, nth);
    int64_t start = 0;
    for (int64_t seq = 0; seq < a.n_seq && start < mine.last; ++seq, start += n_visible) {
        if (a.n_seq > 1) {
            n_visible = list_blocks(a, seq, w.blocks);
        }
        const int64_t first = std::max(mine.first - start, int64_t{0});
        const int64_t last = std::min(mine.last - start, n_visible);
        if (first < last) {
            attend(a, w, seq, w.blocks + first, last - first);
        }
    }
    return OK;
}

int32_t attention_decode_combine(const Attention &a, const Step &step) {
    int64_t n_threads = 0;
    std::memcpy(&n_threads, step.scratch, sizeof n_threads);
    const Workspace first(a, step, 0);
    for (int64_t seq = 0; seq < a.n_seq; ++seq) {
        for (int64_t row = 0; row < seq_rows(a); ++row) {
            float *sum = first.part(a, seq, row);
            for (int ith = 1; ith < n_threads; ++ith) {
                join_part(Workspace(a, step, ith).part(a, seq, row), sum, a.dv_pad);
            }
            finish_row(a, row % a.n_tokens, row / a.n_tokens, seq, sum[0], sum[1], sum + VW);
        }
    }
    return OK;
}

}  // namespace ls
