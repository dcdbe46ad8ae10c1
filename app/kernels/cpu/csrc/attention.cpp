// Attention: which form to take, and what both share.
#include "attention.h"

#include <cmath>

#include "attention_amx.h"
#include "flush_to_zero.h"
#include "types.h"

namespace ls {

namespace {

int64_t whole_vectors(int64_t n) { return (n + VW - 1) / VW * VW; }

void load_head(const TypeInfo &info, const uint8_t *in, int64_t n, float *out) {
    const auto *half = reinterpret_cast<const uint16_t *>(in);
    int64_t i = 0;
    switch (info.type) {
        case TYPE_F32:
            std::memcpy(out, in, static_cast<size_t>(n) * sizeof(float));
            return;
        case TYPE_F16:
            for (; i + VW <= n; i += VW) {
                vstore(out + i, vload_f16(half + i));
            }
            break;
        case TYPE_BF16:
            for (; i + VW <= n; i += VW) {
                vstore(out + i, vload_bf16(half + i));
            }
            break;
        case TYPE_Q8_0:
            for (; i < n; i += 32, in += 34) {
                const float d = half_to_float(load_u16(in));
                for (int j = 0; j < 32; ++j) {
                    out[i + j] = d * static_cast<float>(static_cast<int8_t>(in[2 + j]));
                }
            }
            return;
        default:
            break;
    }
    for (; i < n; i += info.block_elements) {
        info.dequantize(in + i / info.block_elements * info.block_bytes, out + i);
    }
}

}  // namespace

Attention::Attention(const Step &step)
    : q(step.src[0]), k(step.src[1]), v(step.src[2]), mask(step.src[3]), dst(step.dst),
      k_type(*type_info(k.type)), v_type(*type_info(v.type)), sinks(reinterpret_cast<const float *>(step.src[4].data)), n_tokens(q.ne[1]), n_kv(k.ne[1]), n_head(q.ne[2]),
      n_head_kv(k.ne[2]), n_seq(q.ne[3]), group(n_head / n_head_kv), dk(k.ne[0]), dv(v.ne[0]), dk_pad(whole_vectors(dk)),
      dv_pad(whole_vectors(dv)), scale(param_f32(step, 0)), max_bias(param_f32(step, 1)), softcap(param_f32(step, 2)) {
    if (softcap != 0.0f) {
        scale /= softcap;
    }
}

void Attention::load_query(int64_t token, int64_t head, int64_t seq, float *out) const {
    const float *in = f32_row(q, token, head, seq);
    for (int64_t i = 0; i < dk; ++i) {
        out[i] = in[i] * scale;
    }
    std::fill(out + dk, out + dk_pad, 0.0f);
}

void load_heads(const TensorRef &t, const TypeInfo &info, int64_t first, int64_t count, int64_t padded_count, int64_t head, int64_t seq, float *out,
                int64_t stride) {
    constexpr int64_t AHEAD = 32;  // rows: what comes next in a cache is wanted next, and takes so long to come
    const int64_t bytes = row_bytes(info, t.ne[0]);
    for (int64_t i = 0; i < count; ++i, out += stride) {
        const uint8_t *row = row_of(t, first + i, head, seq);
        for (int64_t at = 0; at < bytes; at += 64) {
            __builtin_prefetch(row + AHEAD * t.nb[1] + at);
        }
        load_head(info, row, t.ne[0], out);
        std::fill(out + t.ne[0], out + stride, 0.0f);
    }
    std::fill(out, out + (padded_count - count) * stride, 0.0f);
}

float alibi_slope(int64_t head, int64_t n_head, float max_bias) {
    if (max_bias <= 0.0f) {
        return 1.0f;
    }
    int64_t first = 1;
    while (2 * first <= n_head) {
        first *= 2;
    }
    const double base = std::exp2(-static_cast<double>(max_bias) / static_cast<double>(first));
    const double root = std::exp2(-static_cast<double>(max_bias) / 2.0 / static_cast<double>(first));
    return static_cast<float>(head < first ? std::pow(base, static_cast<double>(head + 1))
                                           : std::pow(root, static_cast<double>(2 * (head - first) + 1)));
}

void finish_row(const Attention &a, int64_t token, int64_t head, int64_t seq, float largest, float sum, const float *mixed) {
    float factor = 0.0f;
    if (largest > -INFINITY) {
        if (a.sinks != nullptr) {
            const float level = std::max(largest, a.sinks[head]);
            const float shrink = std::exp(largest - level);
            sum = sum * shrink + std::exp(a.sinks[head] - level);
            factor = shrink / sum;
        } else {
            factor = 1.0f / sum;
        }
    } else if (!(largest <= 0.0f)) {
        factor = largest;  // NaN goes on
    }
    float *out = f32_row(a.dst, head, token, seq);
    for (int64_t i = 0; i < a.dv; ++i) {
        out[i] = mixed[i] * factor;
    }
}

int32_t attention(const Step &step, int ith, int nth) {
    const FlushToZero flush;
    const Attention a(step);
    if (is_decode(a)) {
        return attention_decode(a, step, ith, nth);
    }
    return has_amx_attention(a) ? attention_amx(a, step, ith, nth) : attention_prefill(a, step, ith, nth);
}

int32_t attention_combine(const Step &step, int ith, int) {
    const Attention a(step);
    return is_decode(a) && ith == 0 ? attention_decode_combine(a, step) : OK;
}

int64_t attention_scratch(const Step &step, int n_threads) {
    const Attention a(step);
    if (is_decode(a)) {
        return attention_decode_scratch(a, n_threads);
    }
    return has_amx_attention(a) ? attention_amx_scratch(a, n_threads) : attention_prefill_scratch(a, n_threads);
}

}  // namespace ls
