// Checks of panels and of the products with many tokens, for one level and every path that the machine has. Stand-alone:
//
//   g++ -O2 -std=c++17 <level flags> -I app/kernels/cpu/csrc tests/native/matmul_test.cpp
//       app/kernels/cpu/csrc/{types,repack,pool,cpu_features,amx,dequant*,matmul*}.cpp -pthread -o matmul_test
//
// Panels must be equal, bit for bit, to the exact dequantisers of types.cpp; products are compared with plain loops in
// double. bf16 operands have 8 significant bits: an error of about 5e-6, ten times that where one product outweighs the
// others; sums of bf16 terms and floats 1e-10.
#include "matmul.h"

#include <cstdio>

#include "random_blocks.h"
#include "repack.h"

namespace {

using ls_test::Bytes;
using ls_test::Random;

int failures = 0;

struct Shape {
    int64_t k;
    int64_t n_rows;
    int64_t n_tokens;
    int64_t b2 = 1;
    int64_t b3 = 1;
    int64_t copies2 = 1;
    int64_t copies3 = 1;
};

void expect(bool holds, const char *what, int32_t type, int32_t path, const Shape &s, double value) {
    if (!holds && ++failures < 40) {
        std::printf("FAILED %s: type %d, path %d, k %d, rows %d, tokens %d, batch %d %d x %d %d: %g\n", what, type, path,
                    static_cast<int>(s.k), static_cast<int>(s.n_rows), static_cast<int>(s.n_tokens),
                    static_cast<int>(s.b2), static_cast<int>(s.b3), static_cast<int>(s.copies2),
                    static_cast<int>(s.copies3), value);
    }
}

struct Aligned {
    explicit Aligned(int64_t bytes) : store(static_cast<size_t>(bytes) + 64, 0x7f) {}
    uint8_t *data() { return store.data() + (64 - reinterpret_cast<uintptr_t>(store.data()) % 64) % 64; }
    Bytes store;
};

std::vector<float> exact_row(const ls::TypeInfo &info, const uint8_t *row, int64_t k) {
    std::vector<float> values(static_cast<size_t>(k));
    for (int64_t i = 0; i < k; i += info.block_elements, row += info.block_bytes) {
        info.dequantize(row, values.data() + i);
    }
    return values;
}

// ---- panels

void check_float_panel(const ls::TypeInfo &info, const Shape &s, Bytes &plain, Bytes &data, bool grouped, int64_t group) {
    const int64_t row_bytes = ls::row_bytes(info, s.k);
    const ls::WeightMatrix matrix{&info, data.data(), s.k, s.n_rows, info.block_bytes, row_bytes, grouped};
    Aligned panel(ls::panel_bytes(info.type, s.k, ls::PanelForm::FLOATS));
    expect(ls::fill_panel(matrix, group, ls::PanelForm::FLOATS, panel.data()), "panel", info.type, 0, s, 0);
    const auto *values = reinterpret_cast<const float *>(panel.data());
    for (int64_t lane = 0; lane < ls::PANEL_ROWS; ++lane) {
        const int64_t row = group * ls::PANEL_ROWS + lane;
        const std::vector<float> want =
            row < s.n_rows ? exact_row(info, plain.data() + row * row_bytes, s.k) : std::vector<float>(static_cast<size_t>(s.k));
        for (int64_t i = 0; i < s.k; ++i) {
            const float got = values[i * ls::PANEL_ROWS + lane];
            expect(got == want[static_cast<size_t>(i)], "panel's value", info.type, grouped ? 1 : 0, s, got);
        }
        for (int64_t i = s.k; i < ls::n_steps(s.k) * 32; ++i) {
            expect(values[i * ls::PANEL_ROWS + lane] == 0.0f, "panel's padding", info.type, 0, s, 0);
        }
    }
}

void check_panels(const ls::TypeInfo &info, Random &random) {
    const Shape s{info.block_elements == 1 ? 77 : 2 * info.block_elements, 37, 0};
    Bytes plain = ls_test::random_weights(info, s.k, s.n_rows, random);
    Bytes grouped = plain;
    const bool has_groups = ls_repack(nullptr, info.type, grouped.data(), s.k, s.n_rows, 1) == ls::OK;
    for (int64_t group = 0; group < 3; ++group) {
        check_float_panel(info, s, plain, plain, false, group);
        if (has_groups) {
            check_float_panel(info, s, plain, grouped, true, group);
        }
    }
}

// ---- products

constexpr float UNTOUCHED = 12345.0f;

struct Product {
    const ls::TypeInfo *info;
    Shape s;
    Bytes plain;
    Bytes weights;
    std::vector<float> x;
    std::vector<float> out;
    ls::Step step;
};

uint8_t *bytes_of(std::vector<float> &values) { return reinterpret_cast<uint8_t *>(values.data()); }

ls::TensorRef contiguous(uint8_t *data, int32_t type, int64_t nb0, int64_t nb1, const int64_t *ne) {
    return {data, {ne[0], ne[1], ne[2], ne[3]}, {nb0, nb1, nb1 * ne[1], nb1 * ne[1] * ne[2]}, type, 0};
}

Product make_product(const ls::TypeInfo &info, const Shape &s, bool grouped, Random &random) {
    Product p{&info, s, ls_test::random_weights(info, s.k, s.n_rows * s.b2 * s.b3, random), {}, {}, {}, {}};
    p.weights = p.plain;
    const int64_t row_bytes = ls::row_bytes(info, s.k);
    for (int64_t m = 0; grouped && m < s.b2 * s.b3; ++m) {
        ls_repack(nullptr, info.type, p.weights.data() + m * s.n_rows * row_bytes, s.k, s.n_rows, 1);
    }
    const int64_t c2 = s.b2 * s.copies2;
    const int64_t c3 = s.b3 * s.copies3;
    p.x = ls_test::random_floats(s.k * s.n_tokens * c2 * c3, random);
    const int64_t stride = s.n_rows + 2;  // two floats after each row show writes that go too far
    p.out.assign(static_cast<size_t>(stride * s.n_tokens * c2 * c3), UNTOUCHED);
    const int64_t w_ne[] = {s.k, s.n_rows, s.b2, s.b3};
    const int64_t x_ne[] = {s.k, s.n_tokens, c2, c3};
    const int64_t out_ne[] = {s.n_rows, s.n_tokens, c2, c3};
    p.step.kind = static_cast<int32_t>(ls::Kind::MATMUL);
    p.step.src[0] = contiguous(p.weights.data(), info.type, info.block_bytes, row_bytes, w_ne);
    p.step.src[0].layout = grouped ? 1 : 0;
    p.step.src[1] = contiguous(bytes_of(p.x), ls::TYPE_F32, 4, 4 * s.k, x_ne);
    p.step.dst = contiguous(bytes_of(p.out), ls::TYPE_F32, 4, 4 * stride, out_ne);
    return p;
}

void run(Product &p, int n_threads, int32_t path) {
    ls::Step convert{};
    convert.params[0] = p.info->type;
    convert.src[0] = p.step.src[1];
    const int64_t bytes = ls::convert_scratch(convert);
    Aligned converted(bytes);
    if (bytes > 0) {
        convert.scratch = converted.data();
        for (int ith = 0; ith < n_threads; ++ith) {
            expect(ls::convert_bf16(convert, ith, n_threads) == ls::OK, "convert", p.info->type, path, p.s, 0);
        }
        p.step.params[0] = 1;
        p.step.src[1].data = converted.data();
    }
    Bytes scratch(static_cast<size_t>(ls::matmul_scratch(p.step, n_threads)));
    p.step.scratch = scratch.data();
    for (int ith = 0; ith < n_threads; ++ith) {
        const int32_t status = ls::matmul(p.step, ith, n_threads);
        expect(status == ls::OK, "status", p.info->type, path, p.s, status);
    }
}

// The energy is that of the products before they are added up: a sum that cancels says nothing about its rounding.
struct Errors {
    double error = 0;
    double energy = 0;
};

void add_errors(const Product &p, int64_t i2, int64_t i3, Errors *sum) {
    const Shape &s = p.s;
    const int64_t row_bytes = ls::row_bytes(*p.info, s.k);
    const int64_t c2 = s.b2 * s.copies2;
    const int64_t w_matrix = i3 / s.copies3 * s.b2 + i2 / s.copies2;
    const int64_t x_matrix = i3 * c2 + i2;
    for (int64_t row = 0; row < s.n_rows; ++row) {
        const std::vector<float> weights = exact_row(*p.info, p.plain.data() + (w_matrix * s.n_rows + row) * row_bytes, s.k);
        for (int64_t token = 0; token < s.n_tokens; ++token) {
            const float *x = p.x.data() + (x_matrix * s.n_tokens + token) * s.k;
            double want = 0;
            for (int64_t i = 0; i < s.k; ++i) {
                const double product = static_cast<double>(weights[static_cast<size_t>(i)]) * x[i];
                want += product;
                sum->energy += product * product;
            }
            const double got = p.out[static_cast<size_t>((x_matrix * s.n_tokens + token) * (s.n_rows + 2) + row)];
            sum->error += (got - want) * (got - want);
        }
    }
}

void check(const Product &p, int32_t path) {
    Errors sum;
    for (int64_t i3 = 0; i3 < p.s.b3 * p.s.copies3; ++i3) {
        for (int64_t i2 = 0; i2 < p.s.b2 * p.s.copies2; ++i2) {
            add_errors(p, i2, i3, &sum);
        }
    }
    const double nmse = sum.energy > 0 ? sum.error / sum.energy : sum.error;
    const double bound = p.info->groups && path != ls::PATH_FLOAT ? 1e-4 : 1e-9;
    expect(nmse < bound, "nmse", p.info->type, path, p.s, nmse);
    for (size_t i = static_cast<size_t>(p.s.n_rows); i < p.out.size(); i += static_cast<size_t>(p.s.n_rows) + 2) {
        expect(p.out[i] == UNTOUCHED && p.out[i + 1] == UNTOUCHED, "padding", p.info->type, path, p.s, p.out[i]);
    }
}

void check_product(int32_t type, const Shape &s, bool grouped, int n_threads, int32_t path, Random &random) {
    Product p = make_product(*ls::type_info(type), s, grouped, random);
    run(p, n_threads, path);
    check(p, path);
}

// As attention without a fused kernel has them: a transposed matrix of weights, and activations not in order.
void check_strided(int32_t type, int32_t path, Random &random) {
    const ls::TypeInfo &info = *ls::type_info(type);
    const Shape s{45, 21, 19, 2, 1, 3, 1};
    Product p = make_product(info, s, false, random);
    Bytes turned(p.plain.size());
    const auto size = static_cast<size_t>(info.block_bytes);
    for (size_t m = 0; m < 2; ++m) {
        for (size_t row = 0; row < 21; ++row) {
            for (size_t i = 0; i < 45; ++i) {
                std::memcpy(turned.data() + ((m * 45 + i) * 21 + row) * size, p.plain.data() + ((m * 21 + row) * 45 + i) * size, size);
            }
        }
    }
    p.step.src[0].data = turned.data();
    p.step.src[0].nb[0] = 21 * info.block_bytes;
    p.step.src[0].nb[1] = info.block_bytes;
    std::vector<float> moved(p.x.size());
    for (size_t m = 0; m < 6; ++m) {
        for (size_t token = 0; token < 19; ++token) {
            std::memcpy(moved.data() + (token * 6 + m) * 45, p.x.data() + (m * 19 + token) * 45, 45 * 4);
        }
    }
    p.step.src[1].data = bytes_of(moved);
    p.step.src[1].nb[1] = 6 * 45 * 4;
    p.step.src[1].nb[2] = 45 * 4;
    run(p, 3, path);
    check(p, path);
}

void check_type(const ls::TypeInfo &info, int32_t path, Random &random) {
    const int64_t unit = info.block_elements == 1 ? 17 : info.block_elements;
    for (const bool grouped : {false, true}) {
        if (grouped && !info.groups) {
            continue;
        }
        for (const int64_t n_rows : {1, 15, 16, 17, 32, 33, 49, 100}) {
            for (const int64_t n_tokens : {1, 9, 16, 17, 31, 33, 65}) {
                check_product(info.type, {unit, n_rows, n_tokens}, grouped, 1 + static_cast<int>(n_tokens % 3), path, random);
            }
        }
        check_product(info.type, {unit * 5, 70, 40}, grouped, 7, path, random);
        check_product(info.type, {unit, 48, 18, 2, 3, 3, 2}, grouped, 5, path, random);
    }
    check_product(info.type, {4096 / unit * unit, 130, 35}, info.groups, 2, path, random);
    check_product(info.type, {unit, 0, 3}, false, 2, path, random);
    if (!info.groups) {
        check_strided(info.type, path, random);
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
        check_panels(*ls::type_info(fields.type), random);
    }
    for (const int32_t path : {ls::PATH_FLOAT, ls::PATH_AMX}) {
        if (ls_matmul_limit(path) != path) {
            std::printf("path %d: not on this machine\n", path);
            continue;
        }
        for (const ls_test::ScaleFields &fields : ls_test::SCALE_FIELDS) {
            check_type(*ls::type_info(fields.type), path, random);
        }
        std::printf("path %d: done\n", path);
    }
    std::printf("%d failures\n", failures);
    return failures == 0 ? 0 : 1;
}
