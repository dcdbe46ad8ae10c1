"""Cases of convolution and its parts, pooling, resampling, and attention in square windows."""

from dataclasses import replace
from typing import Final

from app.ggml.op_params import Params
from app.ggml.ops import Op
from app.ggml.types import GGMLType
from tests.kernels.harness import Case, Source

F32, F16 = GGMLType.F32, GGMLType.F16
NMSE: Final = 1e-11
# Results or columns that are stored in F16.
F16_NMSE: Final = 3e-7
# Positions between elements are counted in float32.
RESAMPLED_NMSE: Final = 1e-9

# Strides, paddings, dilations of two dimensions.
WINDOWS: Final = {
    "plain": (1, 1, 0, 0, 1, 1),
    "strided": (2, 3, 0, 0, 1, 1),
    "padded": (1, 1, 1, 2, 1, 1),
    "dilated": (1, 1, 0, 1, 2, 2),
    "far": (3, 2, 4, 5, 2, 1),
    "too-wide": (4, 3, 0, 0, 6, 9),
}

VOLUME_WINDOWS: Final = {
    "plain": (1, 1, 1, 0, 0, 0, 1, 1, 1),
    "mixed": (2, 1, 2, 1, 2, 1, 1, 2, 2),
}


def _size(size: int, width: int, stride: int, pad: int, dilation: int) -> int:
    return int((size + 2 * pad - dilation * (width - 1) - 1) / stride) + 1


def _im2col_cases() -> list[Case]:
    cases = []
    kernel, image = Source((3, 2, 4, 5)), Source((11, 9, 4, 2))
    for name, (s0, s1, p0, p1, d0, d1) in WINDOWS.items():
        ne = (24, _size(11, 3, s0, p0, d0), _size(9, 2, s1, p1, d1), 2)
        params = Params.pack("7i", s0, s1, p0, p1, d0, d1, 1)
        for type_ in (F32, F16):
            tolerance = F16_NMSE if type_ == F16 else NMSE
            case = Case(f"IM2COL-{name}-{type_.name}", Op.IM2COL, (kernel, image), params, ne)
            cases.append(replace(case, type=type_, nmse=tolerance))
    signal = (Source((3, 6)), Source((20, 6, 2)))
    for stride, pad, dilation in ((1, 1, 1), (2, 3, 2)):
        params = Params.pack("7i", stride, 0, pad, 0, dilation, 0, 0)
        ne = (18, _size(20, 3, stride, pad, dilation), 2, 1)
        cases.append(Case(f"IM2COL-1d-{stride}", Op.IM2COL, signal, params, ne, F32, exact=True))
    half = (replace(kernel, type=F16), replace(image, type=F16))
    params = Params.pack("7i", *WINDOWS["padded"], 1)
    cases.append(Case("IM2COL-f16-f16", Op.IM2COL, half, params, (24, 11, 12, 2), F16, exact=True))
    cases += _im2col_3d_cases()
    return cases


def _im2col_3d_cases() -> list[Case]:
    sources = (Source((3, 2, 2, 12)), Source((7, 6, 5, 8)))
    cases = []
    for name, numbers in VOLUME_WINDOWS.items():
        strides, pads, dilations = numbers[:3], numbers[3:6], numbers[6:]
        sizes = [
            _size(size, width, s, p, d)
            for size, width, s, p, d in zip(
                (7, 6, 5), (3, 2, 2), strides, pads, dilations, strict=True
            )
        ]
        ne = (48, sizes[0], sizes[1], sizes[2] * 2)
        params = Params.pack("10i", *numbers, 4)
        for type_ in (F32, F16):
            tolerance = F16_NMSE if type_ == F16 else NMSE
            case = Case(f"IM2COL_3D-{name}-{type_.name}", Op.IM2COL_3D, sources, params, ne)
            cases.append(replace(case, type=type_, nmse=tolerance))
    return cases


def _conv_cases() -> list[Case]:
    cases = []
    kernel, image = Source((3, 2, 4, 5)), Source((11, 9, 4, 2))
    single, planes = Source((3, 2, 1, 4)), image
    order = (2, 0, 1, 3)
    channels_first = Source((11, 9, 4, 2), permute=order)
    for name, numbers in WINDOWS.items():
        params = Params.pack("6i", *numbers)
        for type_ in (F32, F16):
            title, k = f"{name}-{type_.name}", replace(kernel, type=type_)
            cases.append(Case(f"CONV_2D-{title}", Op.CONV_2D, (k, image), params, nmse=NMSE))
            k = replace(single, type=type_)
            cases.append(Case(f"CONV_2D_DW-{title}", Op.CONV_2D_DW, (k, planes), params, nmse=NMSE))
    params = Params.pack("6i", *WINDOWS["padded"])
    apart = replace(image, permute=(0, 2, 1, 3))
    first = (replace(single, permute=(3, 2, 0, 1)), channels_first)
    wide = (Source((5, 5, 64, 32)), Source((40, 70, 64)))
    cases += [
        Case("CONV_2D-permuted", Op.CONV_2D, (kernel, apart), params, nmse=NMSE),
        Case("CONV_2D-empty-kernel", Op.CONV_2D, (Source((0, 2, 4, 5)), image), params, nmse=0.0),
        Case("CONV_2D-in-pieces", Op.CONV_2D, wide, params, nmse=NMSE),
        Case("CONV_2D_DW-channels-first", Op.CONV_2D_DW, first, params, nmse=NMSE, permute=order),
    ]
    volumes = (Source((3, 2, 2, 12)), Source((7, 6, 5, 8)))
    for name, three in VOLUME_WINDOWS.items():
        params = Params.pack("12i", *three, 4, 2, 3)
        for type_ in (F32, F16):
            pair = (replace(volumes[0], type=type_), volumes[1])
            cases.append(Case(f"CONV_3D-{name}-{type_.name}", Op.CONV_3D, pair, params, nmse=NMSE))
    return cases


def _transposed_cases() -> list[Case]:
    cases = []
    for stride in (1, 2, 5):
        for type_ in (F32, F16):
            pair = (Source((3, 4, 6), type_), Source((7, 6)))
            params = Params.pack("3i", stride, 0, 1)
            title = f"{stride}-{type_.name}"
            case = Case(f"CONV_TRANSPOSE_1D-{title}", Op.CONV_TRANSPOSE_1D, pair, params)
            cases.append(replace(case, nmse=NMSE))
            pair = (Source((3, 2, 4, 6), type_), Source((7, 5, 6, 2)))
            params = Params.pack("i", stride)
            case = Case(f"CONV_TRANSPOSE_2D-{title}", Op.CONV_TRANSPOSE_2D, pair, params)
            cases.append(replace(case, nmse=NMSE))
    for stride, pad in ((1, 0), (2, 1), (4, 3), (7, 0)):
        for type_, tolerance in ((F32, NMSE), (F16, F16_NMSE), (GGMLType.BF16, 2e-5)):
            params = Params.pack("3i", stride, 4, pad)
            case = Case(f"COL2IM_1D-{stride}-{type_.name}", Op.COL2IM_1D, (Source((20, 9), type_),))
            cases.append(replace(case, params=params, nmse=tolerance))
    return cases


def _pool_cases() -> list[Case]:
    cases = []
    for kind, name in ((0, "max"), (1, "average")):
        for type_ in (F32, F16):
            x = Source((13, 9, 3, 2), type_)
            for width, stride, pad in ((1, 1, 0), (3, 2, 1), (4, 4, 0), (2, 3, 2)):
                params = Params.pack("4i", kind, width, stride, pad)
                title = f"POOL_1D-{name}-{width}-{type_.name}"
                cases.append(Case(title, Op.POOL_1D, (x,), params, nmse=NMSE))
            for numbers in ((2, 3, 2, 1, 0, 1), (3, 3, 2, 2, 1, 1), (5, 1, 1, 4, 2, 0)):
                params = Params.pack("7i", kind, *numbers)
                title = f"POOL_2D-{name}-{numbers[0]}-{type_.name}"
                cases.append(Case(title, Op.POOL_2D, (x,), params, nmse=NMSE))
    return cases


def _upscale_cases() -> list[Case]:
    cases = []
    image = Source((6, 5, 3, 2))
    modes = {"nearest": 0, "bilinear": 1, "bicubic": 2, "antialias": 1 | 512}
    sizes = {"larger": (12, 10, 3, 2), "odd": (13, 8, 3, 2), "smaller": (3, 4, 3, 2)}
    for name, mode in modes.items():
        for size, ne in sizes.items():
            title = f"UPSCALE-{name}-{size}"
            case = Case(title, Op.UPSCALE, (image,), Params.pack("i", mode), ne)
            cases.append(replace(case, nmse=RESAMPLED_NMSE))
    for name in ("nearest", "bilinear", "bicubic"):
        params = Params.pack("i", modes[name] | 256)
        case = Case(f"UPSCALE-{name}-corners", Op.UPSCALE, (image,), params, (12, 10, 3, 2))
        cases.append(replace(case, nmse=RESAMPLED_NMSE))
    outer = replace(cases[0], name="UPSCALE-nearest-outer", ne=(12, 10, 6, 4))
    moved = replace(image, permute=(0, 2, 1, 3))
    cases += [outer, replace(cases[4], name="UPSCALE-permuted", sources=(moved,))]
    return cases


def _window_cases() -> list[Case]:
    image, windows = Source((8, 10, 7)), Source((8, 4, 4, 6))
    rows, logits, biases = Source((8, 13), F16), Source((16, 15, 3)), Source((4, 5, 3, 3))
    three = (logits, biases, biases)
    inplace = Params.pack("i", 1)
    return [
        Case("WIN_PART", Op.WIN_PART, (image,), Params.pack("3i", 3, 2, 4), exact=True),
        Case("WIN_PART-one", Op.WIN_PART, (image,), Params.pack("3i", 1, 1, 16), exact=True),
        Case("WIN_UNPART", Op.WIN_UNPART, (windows,), Params.pack("i", 4), (8, 10, 7), exact=True),
        Case("GET_REL_POS", Op.GET_REL_POS, (rows,), exact=True),
        Case("ADD_REL_POS", Op.ADD_REL_POS, three),
        Case("ADD_REL_POS-inplace", Op.ADD_REL_POS, three, inplace, inplace=0),
    ]


IMAGE_CASES: Final = [
    *_im2col_cases(),
    *_conv_cases(),
    *_transposed_cases(),
    *_pool_cases(),
    *_upscale_cases(),
    *_window_cases(),
]
