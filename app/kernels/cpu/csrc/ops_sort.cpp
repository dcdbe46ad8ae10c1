// ARGSORT: each row's values as integers that order as they do, with their places behind, sorted as such. Any bits are
// in the order, so that no value can mislead the sort: a NaN is greater than all, both zeros are equal.
#include <algorithm>

#include "ops.h"
#include "types.h"

namespace ls {

namespace {

constexpr int64_t ENTRY_BYTES = static_cast<int64_t>(sizeof(uint64_t));

uint32_t ordered(float value) {
    if (value != value) {
        return 0xffffffffu;
    }
    const uint32_t bits = float_to_bits(value + 0.0f);  // the sum turns -0 to 0
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

}  // namespace

int64_t argsort_scratch(const Step &step, int n_threads) {
    return n_threads * step.src[0].ne[0] * ENTRY_BYTES;
}

int32_t argsort(const Step &step, int ith, int nth) {
    const TensorRef &x = step.src[0];
    const int64_t n = x.ne[0];
    const uint32_t flip = step.params[0] == 1 ? 0xffffffffu : 0;
    auto *entries = reinterpret_cast<uint64_t *>(step.scratch) + ith * n;
    const Range mine = share(n_rows(x), ith, nth);
    for (int64_t row = mine.first; row < mine.last; ++row) {
        const RowIndex at = row_index(x, row);
        const float *in = f32_row(x, at.i1, at.i2, at.i3);
        auto *out = reinterpret_cast<int32_t *>(row_of(step.dst, at.i1, at.i2, at.i3));
        for (int64_t i = 0; i < n; ++i) {
            entries[i] = uint64_t{ordered(in[i]) ^ flip} << 32 | static_cast<uint32_t>(i);
        }
        std::sort(entries, entries + n);
        for (int64_t i = 0; i < n; ++i) {
            out[i] = static_cast<int32_t>(entries[i]);
        }
    }
    return OK;
}

}  // namespace ls
