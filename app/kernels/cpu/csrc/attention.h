// What both forms of attention share: sizes, rows of K and V as floats, masks and logits. See ops.h for the kernel.
//
// Q F32 [d, n, h, s], K [d, n_kv, h_kv, s], V [dv, n_kv, h_kv, s], mask F16 [n_kv, >= n, 1 or h.., 1 or s..], sinks F32 [h],
// result F32 [dv, h, n, s]. The `group` query heads that share a K head are worked on together.
#pragma once

#include "ops.h"
#include "types.h"
#include "vec.h"

namespace ls {

struct Attention {
    explicit Attention(const Step &step);

    const TensorRef &q, &k, &v, &mask, &dst;
    const TypeInfo &k_type, &v_type;
    const float *sinks;
    int64_t n_tokens, n_kv, n_head, n_head_kv, n_seq, group;
    int64_t dk, dv;          // elements of a head
    int64_t dk_pad, dv_pad;  // the same as whole vectors
    float scale, max_bias, softcap;

    // Query heads per K head times tokens.
    int64_t rows() const { return group * n_tokens; }
    int64_t pairs() const { return n_head_kv * n_seq; }

    const uint16_t *mask_row(int64_t token, int64_t head, int64_t seq) const {
        return reinterpret_cast<const uint16_t *>(row_of(mask, token, mask.ne[2] == 1 ? 0 : head % mask.ne[2], seq % mask.ne[3]));
    }

    // One query row, times the scale, zero-padded to dk_pad.
    void load_query(int64_t token, int64_t head, int64_t seq, float *out) const;
};

// Whether tokens are few enough for the form that reads K row by row.
inline bool is_decode(const Attention &a) { return a.n_tokens <= 8; }

// Rows [first, first + count) of one head as floats, each zero-padded to `stride`; zeros from `count` to `padded_count`.
void load_heads(const TensorRef &t, const TypeInfo &info, int64_t first, int64_t count, int64_t padded_count, int64_t head, int64_t seq, float *out,
                int64_t stride);

float alibi_slope(int64_t head, int64_t n_head, float max_bias);

// Ends one row: adds the head's sink to the sum of weights `sum` at level `largest`, and writes O / sum to the result.
void finish_row(const Attention &a, int64_t token, int64_t head, int64_t seq, float largest, float sum, const float *mixed);

int32_t attention_decode(const Attention &a, const Step &step, int ith, int nth);
int32_t attention_decode_combine(const Attention &a, const Step &step);
int64_t attention_decode_scratch(const Attention &a, int n_threads);
int32_t attention_prefill(const Attention &a, const Step &step, int ith, int nth);
int64_t attention_prefill_scratch(const Attention &a, int n_threads);

}  // namespace ls
