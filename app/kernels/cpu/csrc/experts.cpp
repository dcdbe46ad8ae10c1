// A pair is a slot of a token, as one number: token * n_used + slot. Every thread sorts the pairs by expert and multiplies
// its share of each expert's rows with all of the expert's pairs, a few at a time, so that an expert's weights are read
// from memory once. The quantised rows of those few are brought side by side first, as the products want them.
#include "experts.h"

#include "matvec_kernel.h"
#include "ops.h"

namespace ls {

namespace {

int64_t n_pairs(const Step &step) { return step.src[2].ne[0] * step.src[2].ne[1]; }

// A thread's scratch: where the pairs of each expert end, the pairs by expert, the expert of each pair, and rows side by
// side.
struct Memory {
    int32_t *ends;
    int32_t *pairs;
    int32_t *experts;
    uint8_t *rows;
};

int64_t index_bytes(const Step &step) {
    return aligned((step.src[0].ne[2] + 2 * n_pairs(step)) * static_cast<int64_t>(sizeof(int32_t)));
}

int64_t thread_bytes(const Step &step) {
    return index_bytes(step) + aligned(TOKENS_AT_ONCE * act_row_bytes(step.src[0].ne[0]));
}

Memory memory_of(const Step &step, int ith) {
    uint8_t *start = step.scratch + ith * thread_bytes(step);
    auto *ends = reinterpret_cast<int32_t *>(start);
    int32_t *pairs = ends + step.src[0].ne[2];
    return {ends, pairs, pairs + n_pairs(step), start + index_bytes(step)};
}

// False when an index is out of range. Each is read once: where the result overlaps the indices, another thread may have
// begun to write it.
bool sort_pairs(const Step &step, const Memory &memory) {
    const int64_t n_experts = step.src[0].ne[2];
    const int64_t n_used = step.src[2].ne[0];
    const int64_t n = n_pairs(step);
    std::fill_n(memory.ends, n_experts, 0);
    for (int64_t pair = 0; pair < n; ++pair) {
        const int64_t expert = index_at(step.src[2], pair % n_used, pair / n_used, 0);
        if (expert < 0 || expert >= n_experts) {
            return false;
        }
        memory.experts[pair] = static_cast<int32_t>(expert);
        ++memory.ends[expert];
    }
    int32_t start = 0;
    for (int64_t expert = 0; expert < n_experts; ++expert) {
        const int32_t count = memory.ends[expert];
        memory.ends[expert] = start;
        start += count;
    }
    // Each start moves to its end while its pairs are put down.
    for (int64_t pair = 0; pair < n; ++pair) {
        memory.pairs[memory.ends[memory.experts[pair]]++] = static_cast<int32_t>(pair);
    }
    return true;
}

const uint8_t *acts_of(const Step &step, int64_t pair) {
    const TensorRef &x = step.src[1];
    const int64_t n_used = step.src[2].ne[0];
    const int64_t row = pair / n_used * x.ne[1] + pair % n_used % x.ne[1];
    return x.data + row * act_row_bytes(x.ne[0]);
}

uint8_t *result_of(const Step &step, int64_t pair, int64_t row) {
    const int64_t n_used = step.src[2].ne[0];
    return row_of(step.dst, pair % n_used, pair / n_used, 0) + row * static_cast<int64_t>(sizeof(float));
}

// The rows of activations of n pairs, act_row_bytes apart.
const uint8_t *side_by_side(const Step &step, const int32_t *pairs, int n, uint8_t *rows) {
    if (n == 1) {
        return acts_of(step, pairs[0]);
    }
    const int64_t bytes = act_row_bytes(step.src[0].ne[0]);
    for (int i = 0; i < n; ++i) {
        std::memcpy(rows + i * bytes, acts_of(step, pairs[i]), static_cast<size_t>(bytes));
    }
    return rows;
}

// Groups `mine` of the expert at `matrix` times the pairs, of which there are as many as a product takes.
void multiply_groups(const Step &step, const TypeInfo &info, GroupProduct product, const uint8_t *matrix,
                     const int32_t *pairs, int n, Range mine, uint8_t *rows) {
    const int64_t k = step.src[0].ne[0];
    const uint8_t *acts = side_by_side(step, pairs, n, rows);
    for (int64_t group = mine.first; group < mine.last; ++group) {
        float out[TOKENS_AT_ONCE][GROUP_ROWS];
        product(group_block(info, matrix, k, group, 0), k / info.block_elements, acts, act_row_bytes(k),
                reinterpret_cast<uint8_t *>(out), sizeof *out);
        for (int i = 0; i < n; ++i) {
            std::memcpy(result_of(step, pairs[i], group * GROUP_ROWS), out[i], sizeof *out);
        }
    }
}

void multiply_plain(const Step &step, const TypeInfo &info, const uint8_t *matrix, int32_t pair, Range mine) {
    const TensorRef &experts = step.src[0];
    const auto *acts = reinterpret_cast<const ActBlock *>(acts_of(step, pair));
    for (int64_t row = mine.first; row < mine.last; ++row) {
        const float value = plain_dot(info, matrix + row * experts.nb[1], experts.ne[0], acts);
        std::memcpy(result_of(step, pair, row), &value, sizeof value);
    }
}

}  // namespace

int64_t mul_mat_id_scratch(const Step &step, int n_threads) { return n_threads * thread_bytes(step); }

int32_t mul_mat_id(const Step &step, int ith, int nth) {
    const TensorRef &experts = step.src[0];
    const bool grouped = experts.layout == static_cast<int32_t>(Layout::GROUPED);
    const TypeInfo *info = type_info(experts.type);
    const MatvecType *kernels = matvec_grouped_type(experts.type);
    if (info == nullptr || kernels == nullptr || (grouped && experts.ne[1] % GROUP_ROWS != 0)) {
        return UNSUPPORTED;
    }
    const Memory memory = memory_of(step, ith);
    if (!sort_pairs(step, memory)) {
        return BAD_INDEX;
    }
    const Range mine = share(grouped ? experts.ne[1] / GROUP_ROWS : experts.ne[1], ith, nth);
    int32_t done = 0;
    for (int64_t expert = 0; expert < experts.ne[2]; ++expert) {
        const uint8_t *matrix = experts.data + expert * experts.nb[2];
        while (done < memory.ends[expert]) {
            const size_t index = token_step(memory.ends[expert] - done);
            const int n = grouped ? TOKEN_STEPS[index] : 1;
            const int32_t *pairs = memory.pairs + done;
            if (grouped) {
                multiply_groups(step, *info, kernels->products[index], matrix, pairs, n, mine, memory.rows);
            } else {
                multiply_plain(step, *info, matrix, *pairs, mine);
            }
            done += n;
        }
    }
    return OK;
}

int32_t add_id(const Step &step, int ith, int nth) {
    const TensorRef &x = step.src[0];
    const TensorRef &biases = step.src[1];
    const Range mine = share(n_rows(step.dst), ith, nth);
    for (int64_t row = mine.first; row < mine.last; ++row) {
        const RowIndex at = row_index(step.dst, row);
        const int64_t index = index_at(step.src[2], at.i1, at.i2, 0);
        if (index < 0 || index >= biases.ne[1]) {
            return BAD_INDEX;
        }
        const float *in = f32_row(x, at.i1, at.i2, at.i3);
        const float *bias = f32_row(biases, index, 0, 0);
        float *out = f32_row(step.dst, at.i1, at.i2, at.i3);
        for (int64_t i = 0; i < x.ne[0]; ++i) {
            out[i] = in[i] + bias[i];
        }
    }
    return OK;
}

}  // namespace ls
