// BINARY, SCALE, CLAMP, GLU and UNARY on F32: each element on its own, read before it is written.
#include "ops.h"
#include "vec.h"

namespace ls {

namespace {

enum BinaryOp : int32_t { OP_ADD = 2, OP_SUB = 6, OP_MUL = 7, OP_DIV = 8 };  // ggml's op numbers

struct Add {
    template <typename T>
    static T apply(T a, T b) { return a + b; }
};
struct Sub {
    template <typename T>
    static T apply(T a, T b) { return a - b; }
};
struct Mul {
    template <typename T>
    static T apply(T a, T b) { return a * b; }
};
struct Div {
    template <typename T>
    static T apply(T a, T b) { return a / b; }
};

// Applies `body` to the elements [first, last): whole vectors, then what is left of a row.
template <typename Body>
void map_row(const float *x, float *out, int64_t first, int64_t last, Body body) {
    int64_t i = first;
    for (; i + VW <= last; i += VW) {
        vstore(out + i, body(vload(x + i)));
    }
    if (i < last) {
        vstore_part(out + i, body(vload_part(x + i, last - i)), last - i);
    }
}

template <typename Body>
void map_rows(const float *a, const float *b, float *out, int64_t first, int64_t last, Body body) {
    int64_t i = first;
    for (; i + VW <= last; i += VW) {
        vstore(out + i, body(vload(a + i), vload(b + i)));
    }
    if (i < last) {
        vstore_part(out + i, body(vload_part(a + i, last - i), vload_part(b + i, last - i)), last - i);
    }
}

template <typename Op>
int32_t binary_rows(const Step &step, int ith, int nth) {
    const TensorRef &a = step.src[0];
    const TensorRef &b = step.src[1];
    for_row_parts(step.dst, ith, nth, [&](RowIndex at, int64_t first, int64_t last) {
        const float *x = f32_row(a, at.i1, at.i2, at.i3);
        const float *y = f32_row(b, at.i1 % b.ne[1], at.i2 % b.ne[2], at.i3 % b.ne[3]);
        float *out = f32_row(step.dst, at.i1, at.i2, at.i3);
        if (b.ne[0] == a.ne[0]) {
            map_rows(x, y, out, first, last, [](vf u, vf v) { return Op::apply(u, v); });
        } else if (b.ne[0] == 1) {
            const vf v = vset(*y);
            map_row(x, out, first, last, [v](vf u) { return Op::apply(u, v); });
        } else {
            for (int64_t i = first; i < last; ++i) {
                out[i] = Op::apply(x[i], y[i % b.ne[0]]);
            }
        }
    });
    return OK;
}

template <typename Body>
int32_t map_step(const Step &step, int ith, int nth, Body body) {
    for_row_parts(step.dst, ith, nth, [&](RowIndex at, int64_t first, int64_t last) {
        map_row(f32_row(step.src[0], at.i1, at.i2, at.i3), f32_row(step.dst, at.i1, at.i2, at.i3), first, last, body);
    });
    return OK;
}

template <typename Body>
int32_t gate_step(const Step &step, int ith, int nth, Body body) {
    const TensorRef &a = step.src[0];
    const bool split = step.src[1].data != nullptr;
    const int64_t n = step.dst.ne[0];
    const bool swapped = step.params[1] != 0;
    for_row_parts(step.dst, ith, nth, [&](RowIndex at, int64_t first, int64_t last) {
        const float *gate = f32_row(a, at.i1, at.i2, at.i3);
        const float *up = gate + n;
        if (split) {
            up = f32_row(step.src[1], at.i1, at.i2, at.i3);
        } else if (swapped) {
            std::swap(gate, up);
        }
        map_rows(gate, up, f32_row(step.dst, at.i1, at.i2, at.i3), first, last, body);
    });
    return OK;
}

vf round_away(vf x) {
    const vi bits = reinterpret_cast<vi>(x);
    const vf magnitude = reinterpret_cast<vf>(bits & 0x7fffffff);
    vf whole;
    for (int i = 0; i < VW; ++i) {
        whole[i] = __builtin_roundf(magnitude[i]);
    }
    return reinterpret_cast<vf>(reinterpret_cast<vi>(whole) | (bits & static_cast<int32_t>(0x80000000)));
}

template <float (*F)(float)>
vf each(vf x) {
    for (int i = 0; i < VW; ++i) {
        x[i] = F(x[i]);
    }
    return x;
}

float floor1(float x) { return __builtin_floorf(x); }
float ceil1(float x) { return __builtin_ceilf(x); }
float trunc1(float x) { return __builtin_truncf(x); }
float expm1_1(float x) { return __builtin_expm1f(x); }

vf hard_sigmoid(vf x) { return vmin(vset(1.0f), vmax(vset(0.0f), (x + 3.0f) / 6.0f)); }

using Function = int32_t (*)(const Step &, int, int);

template <vf (*F)(vf)>
int32_t unary_of(const Step &step, int ith, int nth) {
    return map_step(step, ith, nth, [](vf x) { return F(x); });
}

vf f_abs(vf x) { return reinterpret_cast<vf>(reinterpret_cast<vi>(x) & 0x7fffffff); }
vf f_sgn(vf x) { return x > 0.0f ? vset(1.0f) : (x < 0.0f ? vset(-1.0f) : vset(0.0f)); }
vf f_neg(vf x) { return -x; }
vf f_step(vf x) { return x > 0.0f ? vset(1.0f) : vset(0.0f); }
vf f_elu(vf x) { return x > 0.0f ? x : each<expm1_1>(x); }
vf f_relu(vf x) { return vmax(x, vset(0.0f)); }
vf f_silu(vf x) { return x * vsigmoid(x); }
vf f_gelu_quick(vf x) { return x * vsigmoid(x * 1.702f); }
vf f_hardswish(vf x) { return x * hard_sigmoid(x); }

// In the order of ggml's unary functions; null where only the reference executor knows the function.
constexpr Function UNARY[] = {
    unary_of<f_abs>,       unary_of<f_sgn>,      unary_of<f_neg>,       unary_of<f_step>,
    unary_of<vtanh>,       unary_of<f_elu>,      unary_of<f_relu>,      unary_of<vsigmoid>,
    unary_of<vgelu>,       unary_of<f_gelu_quick>, unary_of<f_silu>,    unary_of<f_hardswish>,
    unary_of<hard_sigmoid>, unary_of<vexp>,      unary_of<each<expm1_1>>, nullptr,
    nullptr,               nullptr,              unary_of<each<floor1>>, unary_of<each<ceil1>>,
    unary_of<round_away>,  unary_of<each<trunc1>>,
};

template <vf (*F)(vf)>
int32_t gate_of(const Step &step, int ith, int nth) {
    return gate_step(step, ith, nth, [](vf gate, vf up) { return F(gate) * up; });
}

int32_t swiglu_oai(const Step &step, int ith, int nth) {
    const float alpha = param_f32(step, 2);
    const vf limit = vset(param_f32(step, 3));
    return gate_step(step, ith, nth, [=](vf gate, vf up) {
        const vf x = vmin(gate, limit);
        return x * vsigmoid(x * alpha) * (vmax(-limit, vmin(up, limit)) + 1.0f);
    });
}

int32_t swiglu_clamp(const Step &step, int ith, int nth) {
    const vf limit = vset(param_f32(step, 3));
    return gate_step(step, ith, nth,
                     [=](vf gate, vf up) { return f_silu(vmin(gate, limit)) * vmax(-limit, vmin(up, limit)); });
}

// In the order of ggml's gate functions.
constexpr Function GLU[] = {gate_of<f_relu>, gate_of<vgelu>,        gate_of<f_silu>, swiglu_oai,
                            nullptr,         gate_of<f_gelu_quick>, swiglu_clamp};

template <size_t N>
int32_t run_from(const Function (&table)[N], const Step &step, int ith, int nth) {
    const auto index = static_cast<size_t>(step.params[0]);
    return index < N && table[index] != nullptr ? table[index](step, ith, nth) : UNSUPPORTED;
}

}  // namespace

int32_t binary(const Step &step, int ith, int nth) {
    switch (step.params[0]) {
        case OP_ADD:
            return binary_rows<Add>(step, ith, nth);
        case OP_SUB:
            return binary_rows<Sub>(step, ith, nth);
        case OP_MUL:
            return binary_rows<Mul>(step, ith, nth);
        case OP_DIV:
            return binary_rows<Div>(step, ith, nth);
        default:
            return UNSUPPORTED;
    }
}

int32_t scale(const Step &step, int ith, int nth) {
    const float factor = param_f32(step, 0);
    const float bias = param_f32(step, 1);
    return map_step(step, ith, nth, [=](vf x) { return x * factor + bias; });
}

int32_t clamp(const Step &step, int ith, int nth) {
    const vf low = vset(param_f32(step, 0));
    const vf high = vset(param_f32(step, 1));
    return map_step(step, ith, nth, [=](vf x) {
        const vf below = x > high ? high : x;  // a NaN stays
        return below < low ? low : below;
    });
}

int32_t glu(const Step &step, int ith, int nth) { return run_from(GLU, step, ith, nth); }

int32_t unary(const Step &step, int ith, int nth) { return run_from(UNARY, step, ith, nth); }

}  // namespace ls
