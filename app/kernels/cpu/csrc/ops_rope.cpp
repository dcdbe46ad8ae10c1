// ROPE in modes 0 (neighbouring pairs) and 2 (halves), and the table of cosines and sines that its steps share.
//
// Angles are computed in double: positions times frequencies lose too many bits in float on long contexts. The
// formulas are ggml's rope_yarn and ggml_rope_yarn_corr_dims. Parameters are the node's own words.
#include <cmath>
#include <memory>
#include <new>

#include "ops.h"
#include "vec.h"

namespace ls {

namespace {

struct RopeParams {
    explicit RopeParams(const Step &step)
        : n_dims(step.params[1]), mode(step.params[2]), n_ctx_orig(step.params[4]), freq_base(param_f32(step, 5)),
          freq_scale(param_f32(step, 6)), ext_factor(param_f32(step, 7)), attn_factor(param_f32(step, 8)),
          beta_fast(param_f32(step, 9)), beta_slow(param_f32(step, 10)), n_offs(step.params[15]) {}

    int n_dims, mode, n_ctx_orig;
    double freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow;
    int n_offs;

    // The pair that turns `rotations` times over the original context.
    double pair(double rotations) const {
        constexpr double TWO_PI = 6.283185307179586;
        return n_dims * std::log(n_ctx_orig / (rotations * TWO_PI)) / (2 * std::log(freq_base));
    }

    double magnitude() const {
        return ext_factor == 0.0 ? attn_factor : attn_factor * (1.0 + 0.1 * std::log(1.0 / freq_scale));
    }
};

void fill_frequencies(const RopeParams &rope, double *out) {
    const double low = rope.ext_factor == 0.0 ? 0.0 : std::max(0.0, std::floor(rope.pair(rope.beta_fast)));
    const double high = rope.ext_factor == 0.0 ? 0.0 : std::min(rope.n_dims - 1.0, std::ceil(rope.pair(rope.beta_slow)));
    const double span = std::max(0.001, high - low);
    for (int i = 0; i < rope.n_dims / 2; ++i) {
        const double base = std::pow(rope.freq_base, -2.0 * i / rope.n_dims);
        const double ramp = 1.0 - std::min(1.0, std::max(0.0, (i - low) / span));
        const double mix = rope.ext_factor == 0.0 ? 0.0 : ramp * rope.ext_factor;
        out[i] = base * (rope.freq_scale * (1.0 - mix) + mix);
    }
}

// Scratch of both kinds of step: per token all cosines, then all sines.
float *table_of(const Step &step, int64_t token) {
    const int64_t half = step.params[1] / 2;
    return reinterpret_cast<float *>(step.scratch) + token * 2 * half;
}

void rotate_halves(const float *x, float *out, const float *cosines, const float *sines, int64_t half) {
    int64_t i = 0;
    for (; i + VW <= half; i += VW) {
        const vf a = vload(x + i);
        const vf b = vload(x + half + i);
        const vf c = vload(cosines + i);
        const vf s = vload(sines + i);
        vstore(out + i, a * c - b * s);
        vstore(out + half + i, a * s + b * c);
    }
    for (; i < half; ++i) {
        const float a = x[i];
        const float b = x[half + i];
        out[i] = a * cosines[i] - b * sines[i];
        out[half + i] = a * sines[i] + b * cosines[i];
    }
}

void rotate_neighbours(const float *x, float *out, const float *cosines, const float *sines, int64_t half) {
    for (int64_t i = 0; i < half; ++i) {
        const float a = x[2 * i];
        const float b = x[2 * i + 1];
        out[2 * i] = a * cosines[i] - b * sines[i];
        out[2 * i + 1] = a * sines[i] + b * cosines[i];
    }
}

}  // namespace

int64_t rope_table_scratch(const Step &step) { return step.src[1].ne[0] * step.params[1] * static_cast<int64_t>(sizeof(float)); }

int32_t rope_table(const Step &step, int ith, int nth) {
    const RopeParams rope(step);
    const auto *positions = reinterpret_cast<const int32_t *>(step.src[1].data);
    const auto *factors = reinterpret_cast<const float *>(step.src[2].data);
    const auto magnitude = static_cast<float>(rope.magnitude());
    const int half = rope.n_dims / 2;
    const Range mine = share(step.src[1].ne[0], ith, nth);
    if (mine.first == mine.last) {
        return OK;
    }
    const std::unique_ptr<double[]> all(new (std::nothrow) double[static_cast<size_t>(half)]);
    if (all == nullptr) {
        return UNSUPPORTED;
    }
    fill_frequencies(rope, all.get());
    for (int64_t token = mine.first; token < mine.last; ++token) {
        float *out = table_of(step, token);
        for (int i = 0; i < half; ++i) {
            double angle = positions[token] * all[i];
            if (factors != nullptr) {
                angle /= static_cast<double>(factors[i]);
            }
            out[i] = static_cast<float>(std::cos(angle)) * magnitude;
            out[half + i] = static_cast<float>(std::sin(angle)) * magnitude;
        }
    }
    return OK;
}

int32_t rope(const Step &step, int ith, int nth) {
    const RopeParams params(step);
    const TensorRef &x = step.src[0];
    const int64_t half = params.n_dims / 2;
    const auto rotate = params.mode == 2 ? rotate_halves : rotate_neighbours;
    const Range mine = share(n_rows(x), ith, nth);
    const int64_t end = params.n_offs + params.n_dims;
    for (int64_t row = mine.first; row < mine.last; ++row) {
        const RowIndex at = row_index(x, row);
        const float *in = f32_row(x, at.i1, at.i2, at.i3);
        float *out = f32_row(step.dst, at.i1, at.i2, at.i3);
        const float *table = table_of(step, at.i2);
        if (in != out) {
            std::memcpy(out, in, static_cast<size_t>(params.n_offs) * sizeof(float));
            std::memcpy(out + end, in + end, static_cast<size_t>(x.ne[0] - end) * sizeof(float));
        }
        rotate(in + params.n_offs, out + params.n_offs, table, table + half, half);
    }
    return OK;
}

}  // namespace ls
