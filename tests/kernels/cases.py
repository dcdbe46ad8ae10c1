"""The op case table: one row per thing that an operation must get right, run on every executor.

To add a case, add a row to the list of its group; the oracle of its operation is in `oracle.py`.
Tolerances are normalised mean squared errors. The default suits float32 arithmetic; where a result
is stored in a narrower type the tolerance is the square of half that type's spacing, a few times
over: F16 2^-11, BF16 2^-8, Q8_0 one part in 254 of a block's greatest element.
"""

from dataclasses import replace
from typing import Final

import numpy as np

from app.ggml.op_params import AttentionParams, Params, RopeParams
from app.ggml.ops import GluOp, Op, UnaryOp
from app.ggml.types import MODEL_TYPES, TRAITS, GGMLType
from tests.kernels.cases_arrange import ARRANGE_CASES
from tests.kernels.cases_image import IMAGE_CASES
from tests.kernels.cases_recurrent import RECURRENT_CASES
from tests.kernels.harness import Case, Source, below, mask, masked_rows, normal
from tests.kernels.oracle import UNARY

F32, F16, BF16 = GGMLType.F32, GGMLType.F16, GGMLType.BF16
I32, I64, Q8_0 = GGMLType.I32, GGMLType.I64, GGMLType.Q8_0
F16_NMSE, BF16_NMSE, Q8_0_NMSE, Q6_K_NMSE = 3e-7, 2e-5, 5e-5, 5e-4
BINARY: Final = (Op.ADD, Op.SUB, Op.MUL, Op.DIV)
QUANTISED: Final = sorted(t for t in MODEL_TYPES if TRAITS[t].is_quantized)
KV_QUANTISED: Final = (
    Q8_0,
    GGMLType.Q4_0,
    GGMLType.Q4_1,
    GGMLType.Q5_0,
    GGMLType.Q5_1,
    GGMLType.IQ4_NL,
)
# Spacing of a block of normal numbers: 2 * 2.2 / 15 levels, squared over 12; twice that for those
# that are not symmetric.
KV_NMSE: Final = {
    Q8_0: Q8_0_NMSE,
    GGMLType.Q4_0: 2e-2,
    GGMLType.Q4_1: 2e-2,
    GGMLType.Q5_0: 5e-3,
    GGMLType.Q5_1: 5e-3,
    GGMLType.IQ4_NL: 2e-2,
}


def _positive(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.abs(rng.standard_normal(shape)) + 0.1


def _halves(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Multiples of one half, where rounding rules differ."""
    return rng.integers(-9, 10, shape) / 2


def _few(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Small integers, so that there are ties."""
    return rng.integers(0, 4, shape)


def _window(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Each token sees 50 keys up to its own, the last token up to the last key."""
    n, n_kv = shape[-2:]
    age = np.arange(n)[:, None] + (n_kv - n) - np.arange(n_kv)
    return np.broadcast_to(np.where((age >= 0) & (age < 50), 0.0, -np.inf), shape)


def _binary_cases() -> list[Case]:
    cases = []
    for op in BINARY:
        fill = _positive if op == Op.DIV else normal
        a, b = Source((10, 5, 4, 3)), Source((10, 5, 4, 3), fill=fill)
        shapes = {"row": (10,), "one": (1,), "column": (1, 5), "planes": (10, 5, 2, 3)}
        for name, ne in shapes.items():
            cases.append(Case(f"{op.name}-{name}", op, (a, replace(b, ne=ne))))
        half_rows = Source((5, 1, 4, 1), fill=fill)
        cases += [
            Case(f"{op.name}-same", op, (a, b)),
            Case(f"{op.name}-repeat", op, (a, half_rows)),
            Case(f"{op.name}-inplace", op, (a, half_rows), inplace=0),
            Case(f"{op.name}-permuted", op, (replace(a, permute=(0, 2, 1, 3)), b)),
            Case(f"{op.name}-gap", op, (replace(a, gap=3), replace(b, gap=1))),
            Case(f"{op.name}-f16", op, (replace(a, type=F16), b), nmse=F16_NMSE),
            Case(f"{op.name}-f32-f16", op, (a, replace(b, type=F16))),
        ]
    cases.append(Case("ADD-into-second", Op.ADD, (Source((7, 3)), Source((7, 3))), inplace=1))
    cases.append(Case("ADD1", Op.ADD1, (Source((7, 3, 2)), Source((1,)))))
    return cases


def _unary_cases() -> list[Case]:
    x = Source((33, 5, 2, 2))
    cases = [
        Case(f"UNARY-{f.name}", Op.UNARY, (x,), Params.pack("i", f), nmse=1e-11) for f in UNARY
    ]
    for f in (UnaryOp.ROUND, UnaryOp.FLOOR, UnaryOp.CEIL, UnaryOp.TRUNC, UnaryOp.STEP):
        ties = Source((40, 3), fill=_halves)
        cases.append(
            Case(f"UNARY-{f.name}-ties", Op.UNARY, (ties,), Params.pack("i", f), exact=True)
        )
    silu = Params.pack("i", UnaryOp.SILU)
    xielu = Params.pack("i4f", UnaryOp.XIELU, 1.3, 0.9, 0.5, -1e-6)
    cases += [
        Case("UNARY-inplace", Op.UNARY, (x,), silu, inplace=0),
        Case("UNARY-XIELU", Op.UNARY, (x,), xielu, nmse=1e-11),
        Case("UNARY-f16", Op.UNARY, (replace(x, type=F16),), silu, nmse=F16_NMSE),
        Case("UNARY-permuted", Op.UNARY, (replace(x, permute=(0, 2, 3, 1)),), silu),
    ]
    plain = {Op.SQR: normal, Op.SQRT: _positive, Op.LOG: _positive, Op.SIN: normal, Op.COS: normal}
    cases += [Case(op.name, op, (Source((9, 4), fill=fill),)) for op, fill in plain.items()]
    cases += [
        Case(f"{op.name}-inplace", op, (Source((9, 4)),), inplace=0) for op in (Op.SQR, Op.SIN)
    ]
    cases += [
        Case("SCALE", Op.SCALE, (x,), Params.pack("2f", 0.37, 0.0)),
        Case("SCALE-bias", Op.SCALE, (x,), Params.pack("2f", -2.5, 1.25), inplace=0),
        Case("SCALE-gap", Op.SCALE, (replace(x, gap=5),), Params.pack("2f", 3.0, 0.5)),
        Case("CLAMP", Op.CLAMP, (x,), Params.pack("2f", -0.5, 0.75)),
        Case("CLAMP-inplace", Op.CLAMP, (x,), Params.pack("2f", -0.1, 0.2), inplace=0),
        Case("LEAKY_RELU", Op.LEAKY_RELU, (x,), Params.pack("f", 0.1)),
        Case("LEAKY_RELU-inplace", Op.LEAKY_RELU, (x,), Params.pack("f", 0.1), inplace=0),
    ]
    return cases


def _glu_cases() -> list[Case]:
    cases = []
    gate, up, both = Source((24, 5, 2)), Source((24, 5, 2)), Source((48, 5, 2))
    for kind in GluOp:
        for swapped in (0, 1):
            params = Params.pack("2i2f", kind, swapped, 1.702, 0.9)
            name = f"GLU-{kind.name}-{'swapped' if swapped else 'halves'}"
            cases.append(Case(name, Op.GLU, (both,), params, nmse=1e-11))
        params = Params.pack("2i2f", kind, 0, 1.702, 0.9)
        cases += [
            Case(f"GLU-{kind.name}-split", Op.GLU, (gate, up), params, nmse=1e-11),
            Case(f"GLU-{kind.name}-on-gate", Op.GLU, (gate, up), params, inplace=0, nmse=1e-11),
            Case(f"GLU-{kind.name}-on-up", Op.GLU, (gate, up), params, inplace=1, nmse=1e-11),
        ]
    silu = Params.pack("2i", GluOp.SWIGLU, 0)
    f16 = (replace(gate, type=F16), replace(up, type=F16))
    cases.append(Case("GLU-f16", Op.GLU, f16, silu, nmse=F16_NMSE))
    cases.append(Case("GLU-gap", Op.GLU, (replace(gate, gap=8), replace(up, gap=2)), silu))
    cases.append(Case("GLU-odd", Op.GLU, (Source((37, 3)), Source((37, 3))), silu))
    cases.append(Case("GLU-odd-halves", Op.GLU, (Source((74, 3)),), silu))
    cases.append(Case("GLU-one-left-over", Op.GLU, (Source((75, 3)),), silu))
    return cases


def _norm_cases() -> list[Case]:
    cases = []
    for op in (Op.NORM, Op.RMS_NORM, Op.L2_NORM):
        for ne in ((64, 5), (1, 4), (577, 3, 2, 2)):
            for eps in (1e-6, 0.5):
                params = Params.pack("f", eps)
                cases.append(Case(f"{op.name}-{ne}-{eps}", op, (Source(ne),), params))
        params = Params.pack("f", 1e-5)
        x = Source((48, 4, 3, 2))
        cases += [
            Case(f"{op.name}-inplace", op, (x,), params, inplace=0),
            Case(f"{op.name}-permuted", op, (replace(x, permute=(0, 2, 1, 3)),), params),
            Case(f"{op.name}-gap", op, (replace(x, gap=16),), params),
        ]
        if op != Op.RMS_NORM:
            columns = (replace(x, permute=(1, 0, 2, 3)),)
            cases.append(Case(f"{op.name}-columns", op, columns, params))
    return cases


def _mul_mat_cases() -> list[Case]:
    cases = []
    for type_ in sorted(MODEL_TYPES):
        k = 2 * TRAITS[type_].block_size if TRAITS[type_].is_quantized else 80
        for m in (1, 7):
            sources = (Source((k, 33), type_), Source((k, m)))
            cases.append(Case(f"MUL_MAT-{type_.name}-{m}", Op.MUL_MAT, sources))
        batched = (Source((k, 9, 2, 2), type_), Source((k, 3, 4, 2)))
        cases.append(Case(f"MUL_MAT-{type_.name}-batched", Op.MUL_MAT, batched))
        gap = (Source((k, 9, 2), type_, gap=1), Source((k, 3, 2)))
        cases.append(Case(f"MUL_MAT-{type_.name}-gap", Op.MUL_MAT, gap))
    for type_ in (F32, F16, BF16):
        a, b = Source((64, 17, 3, 2), type_), Source((64, 5, 6, 4))
        swap = (0, 2, 1, 3)
        cases += [
            Case(f"MUL_MAT-{type_.name}-both-repeat", Op.MUL_MAT, (a, b)),
            Case(f"MUL_MAT-{type_.name}-keys", Op.MUL_MAT, (replace(a, permute=swap), b)),
            Case(
                f"MUL_MAT-{type_.name}-all-permuted",
                Op.MUL_MAT,
                (replace(a, permute=swap), replace(b, permute=(0, 2, 3, 1))),
            ),
            Case(
                f"MUL_MAT-{type_.name}-one-token",
                Op.MUL_MAT,
                (
                    Source((64, 40, 3), type_, permute=swap),
                    Source((64, 1, 9), permute=swap),
                ),
            ),
        ]
    cases += [
        Case("MUL_MAT-1x1", Op.MUL_MAT, (Source((1, 1)), Source((1, 1)))),
        Case("MUL_MAT-planes-one-matrix", Op.MUL_MAT, (Source((8, 3)), Source((8, 2, 3, 4)))),
        Case("MUL_MAT-no-k", Op.MUL_MAT, (Source((0, 3)), Source((0, 2)))),
        Case("MUL_MAT-no-rows", Op.MUL_MAT, (Source((8, 3)), Source((8, 0)))),
        Case("MUL_MAT-f16-b", Op.MUL_MAT, (Source((32, 5), F16), Source((32, 4), F16))),
    ]
    return cases


def _expert_cases() -> list[Case]:
    cases = []
    for type_ in (F32, F16, GGMLType.Q4_0, GGMLType.MXFP4):
        for b1 in (1, 3):
            sources = (
                Source((64, 10, 5), type_),
                Source((64, b1, 4)),
                Source((3, 4), I32, below(5)),
            )
            cases.append(Case(f"MUL_MAT_ID-{type_.name}-{b1}", Op.MUL_MAT_ID, sources))
    # Experts of whole groups of rows: some without a token, some with more than go at once.
    for type_ in QUANTISED:
        k = 2 * TRAITS[type_].block_size
        for rows, used, count in [(16, (2, 1), 5), (48, (2, 9), 4), (32, (3, 37), 3)]:
            sources = (
                Source((k, rows, count), type_),
                Source((k, used[0] if rows == 48 else 1, used[1])),
                Source(used, I32, below(count), gap=5),
            )
            name = f"MUL_MAT_ID-{type_.name}-{rows}-rows-{used[1]}-tokens"
            cases.append(Case(name, Op.MUL_MAT_ID, sources))
    bias = (Source((10, 3, 4)), Source((10, 5)), Source((3, 4), I32, below(5)))
    cases.append(Case("ADD_ID", Op.ADD_ID, bias))
    cases.append(Case("ADD_ID-inplace", Op.ADD_ID, bias, inplace=0))
    return cases


def _row_cases() -> list[Case]:
    cases = []
    for type_ in sorted(MODEL_TYPES):
        k = TRAITS[type_].block_size * 2 if TRAITS[type_].is_quantized else 20
        sources = (Source((k, 9), type_), Source((4,), I32, below(9)))
        cases.append(Case(f"GET_ROWS-{type_.name}", Op.GET_ROWS, sources, exact=True))
        batched = (Source((k, 5, 3, 2), type_, gap=1), Source((7, 3, 2), I32, below(5)))
        cases.append(Case(f"GET_ROWS-{type_.name}-batched", Op.GET_ROWS, batched, exact=True))
    integers = (Source((6, 9), I32, below(100)), Source((4,), I32, below(9)))
    cases.append(Case("GET_ROWS-i32", Op.GET_ROWS, integers, exact=True))
    none = (Source((6, 9)), Source((0,), I32, below(9)))
    cases.append(Case("GET_ROWS-none", Op.GET_ROWS, none, exact=True))
    narrow: dict[GGMLType, float] = {F32: 1e-12, F16: F16_NMSE, BF16: BF16_NMSE, **KV_NMSE}
    for type_, tolerance in narrow.items():
        for row_type in (F32, F16):
            for index_type in (I32, I64):
                rows, index = Source((64, 3, 2), row_type), Source((3,), index_type, below(8))
                name = f"SET_ROWS-{row_type.name}-{type_.name}-{index_type.name}"
                into = (rows, index, Source((64, 8, 2), type_))
                cases.append(Case(name, Op.SET_ROWS, into, nmse=tolerance))
    for n in (0, 1):
        few = (Source((256, n)), Source((n,), I64, below(9)), Source((256, 9), GGMLType.Q6_K))
        cases.append(Case(f"SET_ROWS-Q6_K-{n}", Op.SET_ROWS, few, nmse=Q6_K_NMSE))
        few = (Source((32, n)), Source((n,), I64, below(9)), Source((32, 9), Q8_0))
        cases.append(Case(f"SET_ROWS-Q8_0-{n}", Op.SET_ROWS, few, nmse=Q8_0_NMSE))
    repeated = (Source((4, 3, 4, 2)), Source((3, 2), I64, below(9)), Source((4, 9, 4, 2)))
    single = (Source((1, 30), F32), Source((30,), I64, below(64)), Source((1, 64), F16))
    empty = (Source((4, 0)), Source((0,), I64, below(9)), Source((4, 9)))
    spread = (Source((4, 3, 2)), Source((3, 2), I64, below(5)), Source((4, 5, 2), F16, gap=2))
    cases += [
        Case("SET_ROWS-repeated-indices", Op.SET_ROWS, repeated),
        Case("SET_ROWS-single-elements", Op.SET_ROWS, single, nmse=F16_NMSE),
        Case("SET_ROWS-no-rows", Op.SET_ROWS, empty),
        Case("SET_ROWS-gap", Op.SET_ROWS, spread, nmse=F16_NMSE),
    ]
    return cases


def _rope_cases() -> list[Case]:
    plain = RopeParams(32, 0, 512, 10000.0, 1.0, 0.0, 1.0, 32.0, 1.0)
    x, positions = Source((32, 3, 5, 2)), Source((5,), I32, below(4000))
    factors = Source((16,), fill=_positive)
    yarn = replace(plain, freq_scale=0.25, ext_factor=1.0, attn_factor=0.8, n_ctx_orig=128)
    cases = []
    for mode, name in ((0, "norm"), (2, "neox")):
        variants = {
            "plain": plain,
            "scaled": replace(plain, freq_scale=0.125, freq_base=500000.0),
            "partial": replace(plain, n_dims=20),
            "offset": replace(plain, n_dims=16, n_offs=8),
            "yarn": yarn,
            "half-yarn": replace(yarn, ext_factor=0.6, beta_fast=8.0, beta_slow=0.5),
            "attn": replace(plain, attn_factor=1.7),
            "yarn-no-context": replace(yarn, n_ctx_orig=0),
        }
        for variant, rope in variants.items():
            params = replace(rope, mode=mode).pack()
            for inplace in (None, 0):
                where = "" if inplace is None else "-inplace"
                title = f"ROPE-{name}-{variant}{where}"
                cases.append(
                    Case(title, Op.ROPE, (x, positions), params, inplace=inplace, nmse=1e-11)
                )
        params = replace(plain, mode=mode).pack()
        f16 = (replace(x, type=F16), positions)
        gap = (replace(x, gap=8, permute=(0, 2, 1, 3)), positions)
        cases += [
            Case(f"ROPE-{name}-factors", Op.ROPE, (x, positions, factors), params, nmse=1e-11),
            Case(f"ROPE-{name}-f16", Op.ROPE, f16, params, nmse=F16_NMSE),
            Case(f"ROPE-{name}-f16-inplace", Op.ROPE, f16, params, nmse=F16_NMSE, inplace=0),
            Case(f"ROPE-{name}-permuted", Op.ROPE, gap, params, nmse=1e-11),
        ]
        far = (Source((32, 2, 3)), Source((3,), I32, below(1 << 20)))
        cases.append(Case(f"ROPE-{name}-far", Op.ROPE, far, params, nmse=1e-11))
    return cases


def _rope_modes_cases() -> list[Case]:
    """Modes in which a token has four positions, and turning back."""
    plain = RopeParams(16, 8, 512, 10000.0, 1.0, 0.0, 1.0, 32.0, 1.0, sections=(3, 2, 4, 1))
    x, positions = Source((32, 3, 5, 2)), Source((20,), I32, below(900))
    factors = Source((16,), fill=_positive)
    variants = {
        "mrope": plain,
        "mrope-no-fourth": replace(plain, n_dims=32, sections=(8, 4, 4, 0)),
        "mrope-offset": replace(plain, n_offs=8),
        "mrope-again": replace(plain, n_dims=32, sections=(2, 1, 1, 1)),
        "imrope": replace(plain, mode=40, n_dims=32, sections=(6, 5, 5, 0)),
        "imrope-rest": replace(plain, mode=40, n_dims=32, sections=(4, 2, 3, 3)),
        "vision": replace(plain, mode=24, sections=(8, 8, 0, 0)),
        "vision-again": replace(plain, mode=24, sections=(2, 3, 1, 0)),
        "vision-four": replace(plain, mode=24, sections=(4, 3, 5, 4)),
    }
    cases = []
    for name, rope in variants.items():
        yarn = replace(rope, freq_scale=0.25, ext_factor=1.0, attn_factor=0.8, n_ctx_orig=128)
        params, stretched = rope.pack(), yarn.pack()
        three, f16 = (x, positions, factors), (replace(x, type=F16), positions)
        cases += [
            Case(f"ROPE-{name}", Op.ROPE, (x, positions), params, nmse=1e-11),
            Case(f"ROPE-{name}-factors", Op.ROPE, three, params, inplace=0, nmse=1e-11),
            Case(f"ROPE-{name}-yarn", Op.ROPE, (x, positions), stretched, nmse=1e-11),
            Case(f"ROPE-{name}-f16", Op.ROPE, f16, params, nmse=F16_NMSE),
            Case(f"ROPE_BACK-{name}", Op.ROPE_BACK, three, params, nmse=1e-11),
        ]
    for mode in (0, 2):
        one = (x, Source((5,), I32, below(900)))
        params = replace(plain, mode=mode, n_dims=20).pack()
        cases.append(Case(f"ROPE_BACK-{mode}", Op.ROPE_BACK, one, params, nmse=1e-11))
    return cases


def _softmax_cases() -> list[Case]:
    x = Source((40, 5, 6, 2))
    sinks = Source((6,))
    cases = [Case("SOFT_MAX", Op.SOFT_MAX, (x,), Params.pack("2f", 1.0, 0.0))]
    for type_ in (F16, F32):
        shapes = {"one": (40, 5), "padded": (40, 8), "heads": (40, 5, 3), "all": (40, 5, 6, 2)}
        for name, ne in shapes.items():
            for max_bias in (0.0, 8.0):
                sources = (x, Source(ne, type_, mask))
                params = Params.pack("2f", 0.3, max_bias)
                title = f"SOFT_MAX-{type_.name}-{name}-{max_bias}"
                cases.append(Case(title, Op.SOFT_MAX, sources, params, nmse=1e-11))
    masked = (x, Source((40, 5), F16, mask))
    params = Params.pack("2f", 0.7, 0.0)
    cases += [
        Case("SOFT_MAX-inplace", Op.SOFT_MAX, masked, params, inplace=0),
        Case("SOFT_MAX-sinks", Op.SOFT_MAX, (*masked, sinks), params),
        Case("SOFT_MAX-sinks-inplace", Op.SOFT_MAX, (x, None, sinks), params, inplace=0),
        Case("SOFT_MAX-one", Op.SOFT_MAX, (Source((1, 3)),), params),
        Case("SOFT_MAX-odd", Op.SOFT_MAX, (Source((301, 3)), Source((301, 3), F16, mask)), params),
    ]
    return cases


def _attention_cases() -> list[Case]:
    plain = AttentionParams(0.25)
    cases = []

    def case(name: str, *sources: Source | None, params: AttentionParams = plain) -> None:
        title = f"FLASH_ATTN_EXT-{name}"
        cases.append(Case(title, Op.FLASH_ATTN_EXT, sources, params.pack(), nmse=1e-11))

    swap = (0, 2, 1, 3)
    for type_ in (F32, F16, BF16, *KV_QUANTISED):
        for n in (1, 6):
            q = Source((64, n, 6), permute=swap)
            k, v = (
                Source((64, 40, 2), type_, permute=swap),
                Source((32, 40, 2), type_, permute=swap),
            )
            case(f"{type_.name}-{n}", q, k, v, Source((40, n), F16, mask))
    q, k, v = Source((16, 5, 4)), Source((16, 30, 4)), Source((16, 30, 4))
    allowed = Source((30, 5), F16, mask)
    sinks = Source((4,))
    for n in (1, 5):
        qn = replace(q, ne=(16, n, 4))
        mn = replace(allowed, ne=(30, n))
        case(f"no-mask-{n}", qn, k, v)
        case(f"softcap-{n}", qn, k, v, mn, params=AttentionParams(0.25, 0.0, 3.0))
        case(f"softcap-no-mask-{n}", qn, k, v, params=AttentionParams(0.25, 0.0, 3.0))
        case(f"alibi-{n}", qn, k, v, mn, params=AttentionParams(0.25, 8.0))
        case(f"sinks-{n}", qn, k, v, mn, sinks)
        case(f"sinks-no-mask-{n}", qn, k, v, None, sinks)
        case(f"sinks-rows-masked-{n}", qn, k, v, replace(mn, fill=masked_rows), sinks)
        case(f"rows-masked-{n}", qn, k, v, replace(mn, fill=masked_rows))
        case(f"padded-mask-{n}", qn, k, v, replace(allowed, ne=(30, 64)))
        case(f"mask-per-head-{n}", qn, k, v, replace(mn, ne=(30, n, 4)))
        seqs = [replace(s, ne=(*s.ne, 3)) for s in (qn, k, v)]
        case(f"sequences-{n}", *seqs, mn)
        case(f"sequences-own-mask-{n}", *seqs, replace(mn, ne=(30, n, 1, 3)))
    for type_ in (F16, Q8_0):
        cases += _cache_attention_cases(type_)
    three = [Source((16, 5, 3)), Source((16, 30, 3)), Source((16, 30, 3))]
    case("alibi-odd-heads", *three, allowed, params=AttentionParams(0.25, 4.0))
    case("one-key", q, Source((16, 1, 2)), Source((8, 1, 2)))
    return cases


def _cache_attention_cases(type_: GGMLType) -> list[Case]:
    """Attention as models ask for it: heads share keys that lie in a cache, one token or many."""
    cases = []
    swap = (0, 2, 1, 3)
    sinks, plain = Source((6,)), AttentionParams(0.25)
    for n in (1, 33):
        q = Source((64, n, 6), permute=swap)
        k = v = Source((64, 133, 2), type_, permute=swap)
        window = Source((133, n), F16, _window)
        rows_masked = replace(window, fill=masked_rows)
        per_head = Source((133, n, 6), F16, mask)
        forms: dict[str, tuple[tuple[Source | None, ...], AttentionParams]] = {
            "window": ((window,), plain),
            "no-mask": ((), plain),
            "softcap": ((window,), AttentionParams(0.25, 0.0, 3.0)),
            "alibi": ((window,), AttentionParams(0.25, 8.0)),
            "sinks": ((window, sinks), plain),
            "sinks-no-mask": ((None, sinks), plain),
            "sinks-rows-masked": ((rows_masked, sinks), plain),
            "rows-masked": ((rows_masked,), plain),
            "mask-per-head": ((per_head,), plain),
        }
        for name, (more, params) in forms.items():
            title = f"FLASH_ATTN_EXT-cache-{type_.name}-{name}-{n}"
            sources = (q, k, v, *more)
            cases.append(Case(title, Op.FLASH_ATTN_EXT, sources, params.pack(), nmse=1e-11))
    return cases


def _copy_cases() -> list[Case]:
    cases = []
    plain = (F32, F16, BF16)
    spacing = {F32: 1e-12, F16: F16_NMSE, BF16: BF16_NMSE, **KV_NMSE}
    swap = (0, 2, 1, 3)
    for source in plain:
        for target in (*plain, *KV_QUANTISED):
            a, b = Source((64, 4, 3), source), Source((64, 4, 3), target)
            name = f"CPY-{source.name}-{target.name}"
            tolerance = spacing[target]
            cases.append(Case(name, Op.CPY, (a, b), nmse=tolerance))
            permuted = replace(a, permute=swap)
            cases.append(Case(f"{name}-permuted", Op.CPY, (permuted, b), nmse=tolerance))
            other = replace(b, ne=(192, 4))
            cases.append(Case(f"{name}-reshaped", Op.CPY, (permuted, other), nmse=tolerance))
    for source in QUANTISED:
        k = TRAITS[source].block_size * 2
        a = Source((k, 3, 2), source)
        cases.append(Case(f"CPY-{source.name}-f32", Op.CPY, (a, Source((k, 3, 2))), exact=True))
        flat = Source((k * 6,), F32)
        cases.append(Case(f"CPY-{source.name}-flat", Op.CPY, (a, flat), exact=True))
        cases.append(
            Case(f"CPY-{source.name}-f16", Op.CPY, (a, Source((k, 3, 2), F16)), nmse=F16_NMSE)
        )
        moved = replace(a, permute=swap)
        cases.append(Case(f"CONT-{source.name}", Op.CONT, (moved,), ne=(k, 3, 2), exact=True))
    for type_ in (I32, I64, F32, F16):
        a = Source((7, 4, 3), type_, below(99), permute=(1, 0, 2, 3))
        cases.append(Case(f"CONT-{type_.name}", Op.CONT, (a,), ne=(7, 4, 3), exact=True))
        cases.append(Case(f"CONT-{type_.name}-flat", Op.CONT, (a,), ne=(84,), exact=True))
        cases.append(Case(f"DUP-{type_.name}", Op.DUP, (a,), exact=True))
    into_gaps = (Source((8, 3)), Source((8, 3), F16, gap=4))
    cases += [
        Case(
            "CPY-f32-i32", Op.CPY, (Source((9, 2), fill=_halves), Source((9, 2), I32)), exact=True
        ),
        Case("CPY-into-gaps", Op.CPY, into_gaps, nmse=F16_NMSE),
        Case("REPEAT", Op.REPEAT, (Source((3, 2)),), ne=(9, 4, 2, 2), exact=True),
        Case("REPEAT-row", Op.REPEAT, (Source((3, 1, 2)),), ne=(3, 4, 2), exact=True),
        Case("REPEAT-f16", Op.REPEAT, (Source((3, 2), F16),), ne=(6, 2), exact=True),
    ]
    for dim in range(4):
        ne = [4, 3, 2, 2]
        ne[dim] = 5
        sources = (Source((4, 3, 2, 2), gap=1), Source(tuple(ne)))
        cases.append(Case(f"CONCAT-{dim}", Op.CONCAT, sources, Params.pack("i", dim), exact=True))
        blocks = [64, 3, 2, 2]
        blocks[dim] = 96 if dim == 0 else 5
        two = (Source((64, 3, 2, 2), Q8_0, gap=1), Source(tuple(blocks), Q8_0))
        name = f"CONCAT-{dim}-Q8_0"
        cases.append(Case(name, Op.CONCAT, two, Params.pack("i", dim), exact=True))
    return cases


def _reduce_cases() -> list[Case]:
    x, ties = Source((37, 5, 3, 2)), Source((9, 20), fill=_few)
    return [
        Case("SUM", Op.SUM, (x,), nmse=1e-9),
        Case("SUM_ROWS", Op.SUM_ROWS, (x,), nmse=1e-11),
        Case("MEAN", Op.MEAN, (x,), nmse=1e-11),
        Case("SUM_ROWS-permuted", Op.SUM_ROWS, (replace(x, permute=(0, 2, 1, 3)),), nmse=1e-11),
        Case("ARGMAX", Op.ARGMAX, (Source((50, 7)),), exact=True),
        Case("ARGMAX-ties", Op.ARGMAX, (ties,), exact=True),
        Case("ARGSORT-up", Op.ARGSORT, (x,), Params.pack("i", 0), exact=True),
        Case("ARGSORT-down", Op.ARGSORT, (ties,), Params.pack("i", 1), exact=True),
        Case("ARGSORT-gap", Op.ARGSORT, (replace(x, gap=2),), Params.pack("i", 1), exact=True),
        Case("SUM_ROWS-gap", Op.SUM_ROWS, (replace(x, gap=2),), nmse=1e-11),
        Case("DIAG_MASK_INF", Op.DIAG_MASK_INF, (x,), Params.pack("i", 3), exact=True),
        Case(
            "DIAG_MASK_INF-here", Op.DIAG_MASK_INF, (x,), Params.pack("i", 0), inplace=0, exact=True
        ),
    ]


CASES: Final = [
    *_binary_cases(),
    *_unary_cases(),
    *_glu_cases(),
    *_norm_cases(),
    *_mul_mat_cases(),
    *_expert_cases(),
    *_row_cases(),
    *_rope_cases(),
    *_rope_modes_cases(),
    *_softmax_cases(),
    *_attention_cases(),
    *_copy_cases(),
    *_reduce_cases(),
    *IMAGE_CASES,
    *RECURRENT_CASES,
    *ARRANGE_CASES,
]
