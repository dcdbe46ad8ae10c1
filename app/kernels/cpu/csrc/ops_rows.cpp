// GET_ROWS, SET_ROWS and COPY: rows gathered and scattered by index, and elements moved between layouts and types.
#include <cmath>

#include "ops.h"
#include "repack.h"
#include "vec.h"

namespace ls {

namespace {

void decode_f16(const uint8_t *in, float *out, int64_t n) {
    const auto *half = reinterpret_cast<const uint16_t *>(in);
    int64_t i = 0;
    for (; i + VW <= n; i += VW) {
        vstore(out + i, vload_f16(half + i));
    }
    for (; i < n; ++i) {
        out[i] = half_to_float(half[i]);
    }
}

void encode_f16(const float *in, uint8_t *out, int64_t n) {
    auto *half = reinterpret_cast<uint16_t *>(out);
    int64_t i = 0;
    for (; i + VW <= n; i += VW) {
        store_f16(half + i, vload(in + i));
    }
    for (; i < n; ++i) {
        half[i] = float_to_half(in[i]);
    }
}

void encode_bf16(const float *in, uint8_t *out, int64_t n) {
    auto *half = reinterpret_cast<uint16_t *>(out);
    for (int64_t i = 0; i < n; ++i) {
        half[i] = float_to_bf16(in[i]);
    }
}

void encode_f32(const float *in, uint8_t *out, int64_t n) { std::memmove(out, in, static_cast<size_t>(n) * sizeof(float)); }

// Blocks of 32: a half d = amax / 127, then the values rounded half away from zero, as ggml writes them.
void encode_q8_0(const float *in, uint8_t *out, int64_t n) {
    for (int64_t block = 0; block < n / 32; ++block, in += 32, out += 34) {
        float amax = 0;
        for (int i = 0; i < 32; ++i) {
            amax = std::max(amax, std::fabs(in[i]));
        }
        const float d = amax / 127.0f;
        const float inverse = d != 0.0f ? 1.0f / d : 0.0f;
        const uint16_t half = float_to_half(d);
        std::memcpy(out, &half, sizeof half);
        for (int i = 0; i < 32; ++i) {
            const float q = __builtin_roundf(in[i] * inverse);
            out[2 + i] = static_cast<uint8_t>(static_cast<int8_t>(q >= -128.0f && q <= 127.0f ? q : 0.0f));
        }
    }
}

using Encode = void (*)(const float *, uint8_t *, int64_t);

Encode encoder(int32_t type) {
    switch (type) {
        case TYPE_F32:
            return encode_f32;
        case TYPE_F16:
            return encode_f16;
        case TYPE_BF16:
            return encode_bf16;
        case TYPE_Q8_0:
            return encode_q8_0;
        default:
            return nullptr;
    }
}

void decode_row(const TypeInfo &info, const TensorRef &rows, int64_t row, float *out) {
    if (info.type == TYPE_F32) {
        std::memcpy(out, rows.data + row * rows.nb[1], static_cast<size_t>(rows.ne[0]) * sizeof(float));
    } else if (info.type == TYPE_F16) {
        decode_f16(rows.data + row * rows.nb[1], out, rows.ne[0]);
    } else {
        dequantize_row(info, rows, row, out);
    }
}

float element(int32_t type, const uint8_t *p) {
    switch (type) {
        case TYPE_F32:
            return bits_to_float(load_u32(p));
        case TYPE_F16:
            return half_to_float(load_u16(p));
        default:
            return bf16_to_float(load_u16(p));
    }
}

// The dims of the element that stands `flat` elements after the first.
struct Place {
    Place(const TensorRef &tensor, int64_t flat) : t(tensor) {
        for (int d = 0; d < 3; ++d) {
            i[d] = flat % t.ne[d];
            flat /= t.ne[d];
        }
        i[3] = flat;
    }

    uint8_t *address() const { return t.data + i[0] * t.nb[0] + i[1] * t.nb[1] + i[2] * t.nb[2] + i[3] * t.nb[3]; }
    int64_t left_in_row() const { return t.ne[0] - i[0]; }

    void advance(int64_t n) {
        i[0] += n;
        for (int d = 0; d < 3 && i[d] == t.ne[d]; ++d) {
            i[d] = 0;
            ++i[d + 1];
        }
    }

    const TensorRef &t;
    int64_t i[4];
};

template <typename T>
void move_elements(const uint8_t *in, int64_t in_stride, uint8_t *out, int64_t out_stride, int64_t n) {
    if (in_stride == sizeof(T) && out_stride == sizeof(T)) {
        std::memmove(out, in, static_cast<size_t>(n) * sizeof(T));
        return;
    }
    for (int64_t i = 0; i < n; ++i) {
        std::memcpy(out + i * out_stride, in + i * in_stride, sizeof(T));
    }
}

void move_same(int32_t size, const uint8_t *in, int64_t in_stride, uint8_t *out, int64_t out_stride, int64_t n) {
    switch (size) {
        case 1:
            return move_elements<uint8_t>(in, in_stride, out, out_stride, n);
        case 2:
            return move_elements<uint16_t>(in, in_stride, out, out_stride, n);
        case 4:
            return move_elements<uint32_t>(in, in_stride, out, out_stride, n);
        default:
            return move_elements<uint64_t>(in, in_stride, out, out_stride, n);
    }
}

void convert(int32_t from, const uint8_t *in, int64_t in_stride, int32_t to, uint8_t *out, int64_t out_stride, int64_t n) {
    if (from == TYPE_F32 && to == TYPE_F16 && in_stride == 4 && out_stride == 2) {
        return encode_f16(reinterpret_cast<const float *>(in), out, n);
    }
    if (from == TYPE_F16 && to == TYPE_F32 && in_stride == 2 && out_stride == 4) {
        return decode_f16(in, reinterpret_cast<float *>(out), n);
    }
    for (int64_t i = 0; i < n; ++i, in += in_stride, out += out_stride) {
        const float value = element(from, in);
        encoder(to)(&value, out, 1);
    }
}

}  // namespace

int32_t get_rows(const Step &step, int ith, int nth) {
    const TensorRef &table = step.src[0];
    const TypeInfo *info = type_info(table.type);
    if (info == nullptr) {
        return UNSUPPORTED;
    }
    const Range mine = share(n_rows(step.dst), ith, nth);
    for (int64_t row = mine.first; row < mine.last; ++row) {
        const RowIndex at = row_index(step.dst, row);
        const int64_t index = index_at(step.src[1], at.i1, at.i2, at.i3);
        if (index < 0 || index >= table.ne[1]) {
            return BAD_INDEX;
        }
        TensorRef matrix = table;
        matrix.data += at.i2 * table.nb[2] + at.i3 * table.nb[3];
        decode_row(*info, matrix, index, f32_row(step.dst, at.i1, at.i2, at.i3));
    }
    return OK;
}

int32_t set_rows(const Step &step, int ith, int nth) {
    const TensorRef &rows = step.src[0];
    const TensorRef &indices = step.src[1];
    const Encode encode = encoder(step.dst.type);
    if (encode == nullptr) {
        return UNSUPPORTED;
    }
    const Range mine = share(n_rows(rows), ith, nth);
    for (int64_t row = mine.first; row < mine.last; ++row) {
        const RowIndex at = row_index(rows, row);
        const int64_t index = index_at(indices, at.i1, at.i2 % indices.ne[1], at.i3 % indices.ne[2]);
        if (index < 0 || index >= step.dst.ne[1]) {
            return BAD_INDEX;
        }
        uint8_t *out = row_of(step.dst, index, at.i2, at.i3);
        if (rows.type == step.dst.type) {
            const size_t bytes = static_cast<size_t>(rows.ne[0]) * (rows.type == TYPE_F32 ? 4 : 2);
            std::memmove(out, row_of(rows, at.i1, at.i2, at.i3), bytes);
        } else {
            encode(f32_row(rows, at.i1, at.i2, at.i3), out, rows.ne[0]);
        }
    }
    return OK;
}

// params[0]: bytes of an element when the types are the same, else 0 and both are among F32, F16 and BF16.
int32_t copy(const Step &step, int ith, int nth) {
    const TensorRef &source = step.src[0];
    const int64_t n = step.dst.ne[0] * n_rows(step.dst);
    const Range mine = share(n, ith, nth);
    if (mine.first == mine.last) {
        return OK;
    }
    Place from(source, mine.first);
    Place to(step.dst, mine.first);
    for (int64_t left = mine.last - mine.first; left > 0;) {
        const int64_t run = std::min(left, std::min(from.left_in_row(), to.left_in_row()));
        if (step.params[0] != 0) {
            move_same(step.params[0], from.address(), source.nb[0], to.address(), step.dst.nb[0], run);
        } else {
            convert(source.type, from.address(), source.nb[0], step.dst.type, to.address(), step.dst.nb[0], run);
        }
        from.advance(run);
        to.advance(run);
        left -= run;
    }
    return OK;
}

}  // namespace ls
