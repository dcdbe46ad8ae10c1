// NORM, RMS_NORM with the weight that usually follows, SUM_ROWS and SOFT_MAX over rows of F32.
#include <cmath>

#include "attention.h"
#include "ops.h"
#include "vec.h"

namespace ls {

namespace {

float mean_square(const float *x, int64_t n) {
    vf sums[4] = {};
    int64_t i = 0;
    for (; i + 4 * VW <= n; i += 4 * VW) {
        for (int j = 0; j < 4; ++j) {
            const vf v = vload(x + i + j * VW);
            sums[j] += v * v;
        }
    }
    float rest = 0;
    for (; i < n; ++i) {
        rest += x[i] * x[i];
    }
    return (vsum((sums[0] + sums[1]) + (sums[2] + sums[3])) + rest) / static_cast<float>(n < 1 ? 1 : n);
}

double sum_of(const float *x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) {
        sum += static_cast<double>(x[i]);
    }
    return sum;
}

void centred(const float *x, float *out, int64_t n) {
    const auto mean = static_cast<float>(sum_of(x, n) / static_cast<double>(n < 1 ? 1 : n));
    for (int64_t i = 0; i < n; ++i) {
        out[i] = x[i] - mean;
    }
}

void scaled(const float *x, const float *weight, float factor, float *out, int64_t n) {
    int64_t i = 0;
    for (; i + VW <= n; i += VW) {
        const vf v = vload(x + i) * factor;
        vstore(out + i, weight == nullptr ? v : v * vload(weight + i));
    }
    for (; i < n; ++i) {
        out[i] = weight == nullptr ? x[i] * factor : x[i] * factor * weight[i];
    }
}

float mask_at(const TensorRef &mask, const uint8_t *row, int64_t i) {
    return mask.type == TYPE_F16 ? half_to_float(load_u16(row + 2 * i)) : bits_to_float(load_u32(row + 4 * i));
}

// Writes x * factor + slope * mask to out and returns the greatest.
float logits(const float *x, float factor, const TensorRef &mask, const uint8_t *mask_row, float bias, float *out, int64_t n) {
    float largest = -INFINITY;
    for (int64_t i = 0; i < n; ++i) {
        out[i] = x[i] * factor + (mask_row == nullptr ? 0.0f : bias * mask_at(mask, mask_row, i));
        largest = out[i] > largest ? out[i] : largest;
    }
    return largest;
}

float exponentials(float *x, float largest, int64_t n) {
    vf sum{};
    int64_t i = 0;
    for (; i + VW <= n; i += VW) {
        const vf e = vexp(vload(x + i) - largest);
        vstore(x + i, e);
        sum += e;
    }
    float rest = 0;
    for (; i < n; ++i) {
        x[i] = std::exp(x[i] - largest);
        rest += x[i];
    }
    return vsum(sum) + rest;
}

}  // namespace

int32_t rms_norm(const Step &step, int ith, int nth) {
    const TensorRef &x = step.src[0];
    const float eps = param_f32(step, 0);
    const auto *weight = reinterpret_cast<const float *>(step.src[1].data);
    const Range mine = share(n_rows(step.dst), ith, nth);
    for (int64_t row = mine.first; row < mine.last; ++row) {
        const RowIndex at = row_index(step.dst, row);
        const float *in = f32_row(x, at.i1, at.i2, at.i3);
        const float factor = 1.0f / std::sqrt(mean_square(in, x.ne[0]) + eps);
        scaled(in, weight, factor, f32_row(step.dst, at.i1, at.i2, at.i3), x.ne[0]);
    }
    return OK;
}

int32_t norm(const Step &step, int ith, int nth) {
    const TensorRef &x = step.src[0];
    const float eps = param_f32(step, 0);
    const int64_t n = x.ne[0];
    const Range mine = share(n_rows(step.dst), ith, nth);
    for (int64_t row = mine.first; row < mine.last; ++row) {
        const RowIndex at = row_index(step.dst, row);
        float *out = f32_row(step.dst, at.i1, at.i2, at.i3);
        // The mean is taken away before the squares are added up: their difference would cancel.
        centred(f32_row(x, at.i1, at.i2, at.i3), out, n);
        scaled(out, nullptr, 1.0f / std::sqrt(mean_square(out, n) + eps), out, n);
    }
    return OK;
}

int32_t sum_rows(const Step &step, int ith, int nth) {
    const TensorRef &x = step.src[0];
    const Range mine = share(n_rows(x), ith, nth);
    for (int64_t row = mine.first; row < mine.last; ++row) {
        const RowIndex at = row_index(x, row);
        const float *in = f32_row(x, at.i1, at.i2, at.i3);
        *f32_row(step.dst, at.i1, at.i2, at.i3) = static_cast<float>(sum_of(in, x.ne[0]));
    }
    return OK;
}

int32_t soft_max(const Step &step, int ith, int nth) {
    const TensorRef &x = step.src[0];
    const TensorRef &mask = step.src[1];
    const auto *sinks = reinterpret_cast<const float *>(step.src[2].data);
    const int64_t n = x.ne[0];
    const Range mine = share(n_rows(x), ith, nth);
    for (int64_t row = mine.first; row < mine.last; ++row) {
        const RowIndex at = row_index(x, row);
        const uint8_t *mask_row =
            mask.data == nullptr ? nullptr : row_of(mask, at.i1, at.i2 % mask.ne[2], at.i3 % mask.ne[3]);
        float *out = f32_row(step.dst, at.i1, at.i2, at.i3);
        const float bias = alibi_slope(at.i2, x.ne[2], param_f32(step, 1));
        float largest = logits(f32_row(x, at.i1, at.i2, at.i3), param_f32(step, 0), mask, mask_row, bias, out, n);
        if (sinks != nullptr) {
            largest = std::max(largest, sinks[at.i2]);
        }
        float sum = exponentials(out, largest, n);
        if (sinks != nullptr) {
            sum += std::exp(sinks[at.i2] - largest);
        }
        scaled(out, nullptr, 1.0f / sum, out, n);
    }
    return OK;
}

}  // namespace ls
