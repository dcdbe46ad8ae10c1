// Checks of the grouped layout, of quantised activations and of the decode products, for one level. Stand-alone:
//
//   g++ -O2 -std=c++17 <level flags> -I app/kernels/cpu/csrc tests/native/matvec_test.cpp
//       app/kernels/cpu/csrc/{types,repack,pool,act,cpu_features,matvec*}.cpp -pthread -o matvec_test
//
// Products are compared with plain loops in double: with the activations as they were quantised (so only float rounding
// is left, NMSE 1e-10) and with the exact activations (NMSE 5e-4, the bound for quantised products).
#include "matvec.h"

#include <cstdio>
#include <limits>

#include "act.h"
#include "random_blocks.h"
#include "repack.h"

namespace {

using ls_test::Bytes;
using ls_test::Random;

int failures = 0;

void expect(bool holds, const char *what, int32_t type, int64_t k, int64_t n_rows, int64_t n_tokens, double value) {
    if (!holds) {
        ++failures;
        std::printf("FAILED %s: type %d, k %lld, rows %lld, tokens %lld: %g\n", what, type, static_cast<long long>(k),
                    static_cast<long long>(n_rows), static_cast<long long>(n_tokens), value);
    }
}

struct Product {
    const ls::TypeInfo *info;
    int64_t k;
    int64_t n_rows;
    int64_t n_tokens;
    Bytes weights;       // plain
    std::vector<float> x;
    Bytes quantized;
    std::vector<float> out;
};

constexpr float UNTOUCHED = 12345.0f;

ls::TensorRef matrix(uint8_t *data, int64_t ne0, int64_t ne1, int64_t nb0, int64_t nb1, int32_t type) {
    return {data, {ne0, ne1, 1, 1}, {nb0, nb1, nb1 * ne1, nb1 * ne1}, type, 0};
}

uint8_t *bytes_of(std::vector<float> &values) { return reinterpret_cast<uint8_t *>(values.data()); }

void quantize_activations(Product &p, int n_threads) {
    p.quantized.assign(static_cast<size_t>(ls_quantize_bytes(p.k, p.n_tokens)), 0xcc);
    ls::Step step{};
    step.src[0] = matrix(bytes_of(p.x), p.k, p.n_tokens, 4, 4 * p.k, ls::TYPE_F32);
    step.scratch = p.quantized.data();
    for (int ith = 0; ith < n_threads; ++ith) {
        ls::quantize(step, ith, n_threads);
    }
}

// Two floats of padding after each row of the output show writes that go too far.
void multiply(Product &p, Bytes &weights, ls::Layout layout, int n_threads) {
    const int64_t stride = p.n_rows + 2;
    p.out.assign(static_cast<size_t>(stride * p.n_tokens), UNTOUCHED);
    ls::Step step{};
    step.src[0] = matrix(weights.data(), p.k, p.n_rows, p.info->block_bytes, ls::row_bytes(*p.info, p.k), p.info->type);
    step.src[0].layout = static_cast<int32_t>(layout);
    uint8_t *x = p.info->groups ? p.quantized.data() : bytes_of(p.x);
    step.src[1] = matrix(x, p.k, p.n_tokens, 4, 4 * p.k, ls::TYPE_F32);
    step.dst = matrix(bytes_of(p.out), p.n_rows, p.n_tokens, 4, 4 * stride, ls::TYPE_F32);
    for (int ith = 0; ith < n_threads; ++ith) {
        const int32_t status = ls::matvec(step, ith, n_threads);
        expect(status == ls::OK, "status", p.info->type, p.k, p.n_rows, p.n_tokens, status);
    }
    for (int64_t token = 0; token < p.n_tokens; ++token) {
        for (int64_t i = p.n_rows; i < stride; ++i) {
            const float value = p.out[static_cast<size_t>(token * stride + i)];
            expect(value == UNTOUCHED, "padding", p.info->type, p.k, p.n_rows, p.n_tokens, value);
        }
    }
}

double activation(const Product &p, bool quantized, int64_t token, int64_t i) {
    if (!quantized) {
        return p.x[static_cast<size_t>(token * p.k + i)];
    }
    const ls::ActBlock &block = ls::act_row(p.quantized.data(), p.k, token)[i / ls::ACT_ELEMENTS];
    return static_cast<double>(block.d) * block.q[i % ls::ACT_ELEMENTS];
}

std::vector<float> exact_row(Product &p, int64_t row) {
    std::vector<float> values(static_cast<size_t>(p.k));
    const uint8_t *at = p.weights.data() + row * ls::row_bytes(*p.info, p.k);
    for (int64_t i = 0; i < p.k; i += p.info->block_elements, at += p.info->block_bytes) {
        p.info->dequantize(at, values.data() + i);
    }
    return values;
}

double nmse(Product &p, bool quantized) {
    double error = 0;
    double energy = 0;
    for (int64_t row = 0; row < p.n_rows; ++row) {
        const std::vector<float> weights = exact_row(p, row);
        for (int64_t token = 0; token < p.n_tokens; ++token) {
            double want = 0;
            for (int64_t i = 0; i < p.k; ++i) {
                want += weights[static_cast<size_t>(i)] * activation(p, quantized, token, i);
            }
            const double got = p.out[static_cast<size_t>(token * (p.n_rows + 2) + row)];
            error += (got - want) * (got - want);
            energy += want * want;
        }
    }
    return energy > 0 ? error / energy : error;
}

void check_close(Product &p, const char *what) {
    const bool groups = p.info->groups;
    if (groups) {
        const double rounding = nmse(p, true);
        expect(rounding < 1e-10, what, p.info->type, p.k, p.n_rows, p.n_tokens, rounding);
    }
    const double exact = nmse(p, false);
    expect(exact < (groups ? 5e-4 : 1e-10), what, p.info->type, p.k, p.n_rows, p.n_tokens, exact);
}

void check_repack(Product &p, Bytes &grouped) {
    std::vector<float> row(static_cast<size_t>(p.k));
    ls::TensorRef ref = matrix(grouped.data(), p.k, p.n_rows, p.info->block_bytes, ls::row_bytes(*p.info, p.k), p.info->type);
    ref.layout = static_cast<int32_t>(ls::Layout::GROUPED);
    for (int64_t r = 0; r < p.n_rows; ++r) {
        ls::dequantize_row(*p.info, ref, r, row.data());
        expect(row == exact_row(p, r), "row from grouped data", p.info->type, p.k, p.n_rows, 0, static_cast<double>(r));
    }
    Bytes back = grouped;
    ls_repack(nullptr, p.info->type, back.data(), p.k, p.n_rows, 0);
    expect(back == p.weights, "unpack undoes pack", p.info->type, p.k, p.n_rows, 0, 0);
}

void check_product(const ls::TypeInfo &info, int64_t k, int64_t n_rows, int64_t n_tokens, int n_threads, Random &random) {
    Product p{&info, k, n_rows, n_tokens, ls_test::random_weights(info, k, n_rows, random),
              ls_test::random_floats(k * n_tokens, random), {}, {}};
    quantize_activations(p, n_threads);
    Bytes weights = p.weights;
    multiply(p, weights, ls::Layout::PLAIN, n_threads);
    check_close(p, "plain product");
    const int32_t status = ls_repack(nullptr, info.type, weights.data(), k, n_rows, 1);
    expect((status == ls::OK) == info.groups, "repack's status", info.type, k, n_rows, 0, status);
    if (status == ls::OK) {
        expect((weights == p.weights) == (n_rows < ls::GROUP_ROWS), "repack moves", info.type, k, n_rows, 0, 0);
        check_repack(p, weights);
        multiply(p, weights, ls::Layout::GROUPED, n_threads);
        check_close(p, "grouped product");
    }
}

void check_type(int32_t type, Random &random) {
    const ls::TypeInfo &info = *ls::type_info(type);
    const int64_t unit = info.block_elements == 1 ? 17 : info.block_elements;
    for (const int64_t n_rows : {1, 3, 15, 16, 17, 48, 49}) {
        for (const int64_t n_units : {1, 3}) {
            check_product(info, unit * n_units, n_rows, 1 + n_rows % 4, 1 + static_cast<int>(n_rows % 3), random);
        }
    }
    for (int64_t n_tokens = 1; n_tokens <= 19; ++n_tokens) {
        check_product(info, unit * 2, 33, n_tokens, 2, random);
    }
    check_product(info, unit * (info.block_elements == 256 ? 8 : 64), 32, 3, 5, random);
}

// Every value of a byte meets every extreme activation: the level's 16-bit sums must not saturate.
void check_extremes(int32_t type) {
    const ls::TypeInfo &info = *ls::type_info(type);
    Random random(3);
    for (const uint8_t fill : {0x00, 0xff, 0x80, 0x7f}) {
        for (const float sign : {1.0f, -1.0f}) {
            Product p{&info, 256, 16, 4, ls_test::random_weights(info, 256, 16, random), {}, {}, {}};
            ls_test::fill_quants(info, p.weights, fill);
            p.x.assign(256 * 4, sign);
            quantize_activations(p, 1);
            Bytes grouped = p.weights;
            ls_repack(nullptr, type, grouped.data(), 256, 16, 1);
            multiply(p, grouped, ls::Layout::GROUPED, 1);
            const double rounding = nmse(p, true);
            expect(rounding < 1e-10, "extreme values", type, 256, 16, fill, rounding);
        }
    }
}

void check_not_a_number_stays(float poison) {
    Random random(5);
    std::vector<float> x = ls_test::random_floats(64, random);
    x[40] = poison;
    ls::ActBlock blocks[2];
    ls::quantize_blocks(x.data(), 2, blocks);
    expect(std::isfinite(blocks[0].d), "a clean block", 0, 64, 0, 0, blocks[0].d);
    expect(!std::isfinite(blocks[1].d), "a poisoned block", 0, 64, 0, 0, blocks[1].d);
}

void check_small_activations() {
    for (const float size : {0.0f, 1e-44f, 1e-35f, 1e-20f, 1e30f}) {
        std::vector<float> x(32, 0.0f);
        x[3] = size;
        x[20] = -size / 2;
        ls::ActBlock block;
        ls::quantize_blocks(x.data(), 1, &block);
        for (int i = 0; i < 32; ++i) {
            const float error = std::fabs(block.d * static_cast<float>(block.q[i]) - x[static_cast<size_t>(i)]);
            const float bound = std::max(size / 250.0f, 1e-30f);
            expect(error <= bound, "small and large activations", 0, 32, 0, 0, size);
        }
    }
}

}  // namespace

int main() {
    std::printf("level %s, supported %d\n", ls_level(), ls_supported());
    if (ls_supported() == 0) {
        return 0;
    }
    Random random(1);
    for (const ls_test::ScaleFields &fields : ls_test::SCALE_FIELDS) {
        check_type(fields.type, random);
        if (!fields.is_float_type) {
            check_extremes(fields.type);
        }
    }
    check_not_a_number_stays(std::numeric_limits<float>::quiet_NaN());
    check_not_a_number_stays(std::numeric_limits<float>::infinity());
    check_small_activations();
    std::printf("%d failures\n", failures);
    return failures == 0 ? 0 : 1;
}
