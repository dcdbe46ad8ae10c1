// The MATVEC step: groups of rows divided among the threads, tokens in the largest steps that have a kernel, and the
// rows that are in no group one by one.
#include "matvec.h"

#include "matvec_kernel.h"

namespace ls {

namespace {

float *output(const Step &step, int64_t token, int64_t row) {
    return reinterpret_cast<float *>(step.dst.data + token * step.dst.nb[1]) + row;
}

void multiply_groups(const Step &step, const TypeInfo &info, const MatvecType &kernels, int64_t first, int64_t last) {
    const int64_t k = step.src[0].ne[0];
    const int64_t n_blocks = k / info.block_elements;
    const int64_t act_stride = act_row_bytes(k);
    const int64_t n_tokens = step.src[1].ne[1];
    for (int64_t group = first; group < last; ++group) {
        const uint8_t *weights = group_block(info, step.src[0].data, k, group, 0);
        for (int64_t token = 0; token < n_tokens;) {
            const size_t index = token_step(n_tokens - token);
            kernels.products[index](weights, n_blocks, step.src[1].data + token * act_stride, act_stride,
                                    reinterpret_cast<uint8_t *>(output(step, token, group * GROUP_ROWS)), step.dst.nb[1]);
            token += TOKEN_STEPS[index];
        }
    }
}

void multiply_plain_rows(const Step &step, const TypeInfo &info, int64_t first, int64_t last) {
    const TensorRef &weights = step.src[0];
    for (int64_t row = first; row < last; ++row) {
        for (int64_t token = 0; token < step.src[1].ne[1]; ++token) {
            *output(step, token, row) = plain_dot(info, weights.data + row * weights.nb[1], weights.ne[0],
                                                  act_row(step.src[1].data, weights.ne[0], token));
        }
    }
}

}  // namespace

float plain_dot(const TypeInfo &info, const uint8_t *row, int64_t k, const ActBlock *acts) {
    float values[MAX_BLOCK_ELEMENTS];
    float total = 0;
    for (int64_t start = 0; start < k; start += info.block_elements, row += info.block_bytes) {
        info.dequantize(row, values);
        for (int i = 0; i < info.block_elements; i += ACT_ELEMENTS, ++acts) {
            float sum = 0;
            for (int j = 0; j < ACT_ELEMENTS; ++j) {
                sum += values[i + j] * static_cast<float>(acts->q[j]);
            }
            total += sum * acts->d;
        }
    }
    return total;
}

int32_t matvec(const Step &step, int ith, int nth) {
    const TensorRef &weights = step.src[0];
    const TypeInfo *info = type_info(weights.type);
    if (info == nullptr) {
        return UNSUPPORTED;
    }
    if (!info->groups) {
        return matvec_dense(step, ith, nth);
    }
    const MatvecType *kernels = matvec_grouped_type(weights.type);
    const bool grouped = weights.layout == static_cast<int32_t>(Layout::GROUPED);
    if (kernels == nullptr && grouped) {
        return UNSUPPORTED;
    }
    const int64_t n_groups = grouped ? weights.ne[1] / GROUP_ROWS : 0;
    if (n_groups > 0) {
        multiply_groups(step, *info, *kernels, n_groups * ith / nth, n_groups * (ith + 1) / nth);
    }
    const int64_t plain = n_groups * GROUP_ROWS;
    const int64_t n_plain = weights.ne[1] - plain;
    multiply_plain_rows(step, *info, plain + n_plain * ith / nth, plain + n_plain * (ith + 1) / nth);
    return OK;
}

}  // namespace ls
