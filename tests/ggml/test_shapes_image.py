"""Rules of convolution, pooling, resampling and windows: what does not fit is refused by name. That
what fits passes is shown by running it (tests/kernels).
"""

import pytest

from app.errors import GraphError
from app.ggml.graph import Graph
from app.ggml.op_params import Params
from app.ggml.ops import Op
from app.ggml.shapes import infer
from app.ggml.tensor import Tensor, contiguous_strides, make_shape, new_tensor
from app.ggml.types import GGMLType
from app.ggml.verify import verify_graph
from tests.helpers.stock_graphs import SizedBuffer

F32, F16 = GGMLType.F32, GGMLType.F16
MOST = 2**31 - 1


def t(*ne: int, type_: GGMLType = F32) -> Tensor:
    """A leaf [ne] with memory."""
    tensor = new_tensor(type_, ne)
    tensor.buffer = SizedBuffer(tensor.nbytes)
    return tensor


def ints(*values: int) -> Params:
    """Integer parameters."""
    return Params.pack(f"{len(values)}i", *values)


CONV = (t(3, 2, 4, 5), t(11, 9, 4, 2))
DEPTH = (t(3, 2, 1, 4), t(11, 9, 4, 2))
VOLUME = (t(3, 2, 2, 12), t(7, 6, 5, 8))
SIGNAL = (t(3, 4, 6), t(7, 6))
IMAGES = (t(3, 2, 4, 6), t(7, 5, 6, 2))
ONE_2D = (1, 1, 0, 0, 1, 1)
ONE_3D = (1, 1, 1, 0, 0, 0, 1, 1, 1)

GOOD = [
    (Op.CONV_2D, CONV, ints(*ONE_2D), (9, 8, 5, 2)),
    (Op.CONV_2D, CONV, ints(2, 3, 1, 0, 2, 1), (5, 3, 5, 2)),
    (Op.CONV_2D, (t(12, 2, 4, 5), CONV[1]), ints(2, 1, 0, 0, 1, 1), (1, 8, 5, 2)),
    (Op.CONV_2D, (t(0, 2, 4, 5), CONV[1]), ints(*ONE_2D), (12, 8, 5, 2)),
    (Op.CONV_2D_DW, DEPTH, ints(*ONE_2D), (9, 8, 4, 2)),
    (Op.CONV_3D, VOLUME, ints(*ONE_3D, 4, 2, 3), (5, 5, 4, 6)),
    (Op.CONV_TRANSPOSE_1D, SIGNAL, ints(2, 0, 1), (15, 4, 1, 1)),
    (Op.CONV_TRANSPOSE_2D, IMAGES, ints(2), (15, 10, 4, 2)),
    (Op.COL2IM_1D, (t(20, 9),), ints(2, 4, 1), (19, 4, 1, 1)),
    (Op.POOL_1D, (t(13, 3),), ints(0, 3, 2, 1), (7, 3, 1, 1)),
    (Op.POOL_2D, (t(13, 9, 3),), ints(1, 3, 3, 2, 2, 1, 1), (7, 5, 3, 1)),
    (Op.WIN_PART, (t(8, 10, 7),), ints(3, 2, 4), (8, 4, 4, 6)),
]


@pytest.mark.parametrize(("op", "sources", "params", "ne"), GOOD)
def test_a_result_has_the_shape_that_ggml_gives_it(
    op: Op, sources: tuple[Tensor, ...], params: Params, ne: tuple[int, ...]
) -> None:
    assert infer(op, sources, params) == (F32, ne)


def _window_params(good: tuple[int, ...], axes: int, *more: int) -> list[Params]:
    """Strides, paddings and dilations that are wrong, in one dimension each."""
    wrong = []
    for axis in range(axes):
        for group, values in ((0, (0, -1)), (1, (-1, -MOST)), (2, (0, -2, MOST))):
            for value in values:
                numbers = list(good)
                numbers[group * axes + axis] = value
                wrong.append(ints(*numbers, *more))
    return wrong


BAD = [
    *[(Op.CONV_2D, CONV, params) for params in _window_params(ONE_2D, 2)],
    *[(Op.CONV_2D_DW, DEPTH, params) for params in _window_params(ONE_2D, 2)],
    *[(Op.CONV_3D, VOLUME, params) for params in _window_params(ONE_3D, 3, 4, 2, 3)],
    (Op.CONV_2D, (t(12, 2, 4, 5), CONV[1]), ints(*ONE_2D)),
    (Op.CONV_2D, (t(3, 10, 4, 5), CONV[1]), ints(*ONE_2D)),
    (Op.CONV_2D, (t(14, 2, 4, 5), CONV[1]), ints(2, 1, 0, 0, 1, 1)),
    (Op.CONV_2D, (t(3, 2, 3, 5), CONV[1]), ints(*ONE_2D)),
    (Op.CONV_2D_DW, (t(3, 2, 2, 4), DEPTH[1]), ints(*ONE_2D)),
    (Op.CONV_2D_DW, (t(3, 2, 1, 5), DEPTH[1]), ints(*ONE_2D)),
    *[(Op.CONV_3D, VOLUME, ints(*ONE_3D, *n)) for n in ((3, 2, 3), (4, 3, 3), (4, 2, 2))],
    *[(Op.CONV_3D, VOLUME, ints(*ONE_3D, *n)) for n in ((0, 2, 3), (-4, -2, -3))],
    *[(Op.CONV_TRANSPOSE_1D, SIGNAL, ints(*n)) for n in ((0, 0, 1), (-1, 0, 1), (1, 1, 1))],
    (Op.CONV_TRANSPOSE_1D, SIGNAL, ints(1, 0, 2)),
    (Op.CONV_TRANSPOSE_1D, (t(3, 4, 5), SIGNAL[1]), ints(1, 0, 1)),
    (Op.CONV_TRANSPOSE_1D, (SIGNAL[0], t(7, 6, 2)), ints(1, 0, 1)),
    (Op.CONV_TRANSPOSE_1D, (t(0, 4, 6), SIGNAL[1]), ints(1, 0, 1)),
    (Op.CONV_TRANSPOSE_2D, IMAGES, ints(0)),
    (Op.CONV_TRANSPOSE_2D, IMAGES, ints(-(2**31))),
    (Op.CONV_TRANSPOSE_2D, (t(3, 2, 4, 5), IMAGES[1]), ints(1)),
    (Op.CONV_TRANSPOSE_2D, (t(3, 0, 4, 6), IMAGES[1]), ints(1)),
    *[
        (Op.COL2IM_1D, (t(20, 9),), ints(*n))
        for n in ((0, 4, 0), (1, 0, 0), (1, 3, 0), (1, 4, -1), (1, 4, 7), (1, -4, 0))
    ],
    (Op.COL2IM_1D, (t(20, 9, type_=GGMLType.I32),), ints(1, 4, 0)),
    (Op.COL2IM_1D, (t(20, 9, 2),), ints(1, 4, 0)),
    *[
        (Op.POOL_1D, (t(13, 3),), ints(*n))
        for n in ((2, 3, 2, 1), (-1, 3, 2, 1), (0, 0, 2, 1), (0, 3, 0, 1), (0, 3, 2, -1))
    ],
    (Op.POOL_1D, (t(13, 3),), ints(0, 16, 1, 1)),
    (Op.POOL_1D, (t(13, 3),), ints(0, MOST, 1, MOST)),
    (Op.POOL_2D, (t(13, 9),), ints(0, 3, 10, 1, 1, 0, 0)),
    (Op.POOL_2D, (t(13, 9),), ints(0, 3, 3, 1, -1, 0, 0)),
    (Op.POOL_2D, (t(13, 9),), ints(0, 1 << 17, 3, 1, 1, 1 << 17, 0)),
    *[(Op.WIN_PART, (t(8, 10, 7),), ints(*n)) for n in ((3, 2, 0), (3, 2, -4), (2, 2, 4))],
    (Op.WIN_PART, (t(8, 10, 7, 2),), ints(3, 2, 4)),
    (Op.WIN_PART, (t(8, 10, 7, type_=F16),), ints(3, 2, 4)),
    (Op.GET_REL_POS, (t(8, 12, type_=F16),), Params()),
    (Op.GET_REL_POS, (t(8, 0, type_=F16),), Params()),
    (Op.GET_REL_POS, (t(8, 13),), Params()),
    (Op.ADD_REL_POS, (t(16, 15, 3), t(4, 5, 3, 2), t(4, 5, 3, 2)), Params()),
    (Op.ADD_REL_POS, (t(16, 15, 3), t(4, 5, 3, 3), t(4, 3, 5, 3)), Params()),
    (Op.ADD_REL_POS, (t(15, 15, 3), t(4, 5, 3, 3), t(4, 5, 3, 3)), Params()),
]


@pytest.mark.parametrize(("op", "sources", "params"), BAD)
def test_what_does_not_fit_is_refused_by_operation(
    op: Op, sources: tuple[Tensor, ...], params: Params
) -> None:
    with pytest.raises(GraphError, match=f"^{op.name}: .*expected"):
        infer(op, sources, params)


COLUMNS = (t(3, 2, 4, 5), t(11, 9, 4, 2))
LINE = (t(3, 6), t(20, 6, 2))
PLANES = (t(3, 2, 2, 12), t(7, 6, 5, 8))
IMAGE = (t(6, 5, 3, 2),)
CUT = (t(8, 4, 4, 6),)


def _node(op: Op, sources: tuple[Tensor, ...], params: Params, *ne: int) -> Tensor:
    shape = make_shape(ne)
    node = Tensor(F32, shape, contiguous_strides(F32, shape), op, params, sources, name="it")
    node.buffer = SizedBuffer(node.nbytes)
    return node


CHOSEN = [
    _node(Op.IM2COL, COLUMNS, ints(*ONE_2D, 1), 24, 9, 8, 2),
    _node(Op.IM2COL, LINE, ints(1, 0, 0, 0, 1, 0, 0), 18, 18, 2),
    _node(Op.IM2COL_3D, PLANES, ints(*ONE_3D, 4), 48, 5, 5, 8),
    _node(Op.UPSCALE, IMAGE, ints(2), 7, 9, 3, 2),
    _node(Op.UPSCALE, IMAGE, ints(1 | 512), 3, 2, 3, 2),
    _node(Op.WIN_UNPART, CUT, ints(4), 8, 10, 7),
]


@pytest.mark.parametrize("node", CHOSEN, ids=lambda node: f"{node.op.name}{list(node.ne)}")
def test_a_size_that_the_client_chose_passes(node: Tensor) -> None:
    verify_graph(Graph([node]))


WRONG = [
    *[_node(Op.IM2COL, COLUMNS, p, 24, 9, 8, 2) for p in (ints(*ONE_2D, 2), ints(*ONE_2D, 0))],
    _node(Op.IM2COL, COLUMNS, ints(*ONE_2D, 1), 24, 9, 9, 2),
    _node(Op.IM2COL, COLUMNS, ints(0, 1, 0, 0, 1, 1, 1), 24, 9, 8, 2),
    _node(Op.IM2COL, COLUMNS, ints(1, 1, -1, 0, 1, 1, 1), 24, 9, 8, 2),
    _node(Op.IM2COL, COLUMNS, ints(1, 1, 0, 0, 1, 0, 1), 24, 9, 8, 2),
    _node(Op.IM2COL, (t(12, 2, 4), COLUMNS[1]), ints(*ONE_2D, 1), 96, 1, 8, 2),
    _node(Op.IM2COL, (t(3, 2, 5), COLUMNS[1]), ints(*ONE_2D, 1), 30, 9, 8, 2),
    _node(Op.IM2COL, (t(3, 5), LINE[1]), ints(1, 0, 0, 0, 1, 0, 0), 15, 18, 2),
    _node(Op.IM2COL_3D, PLANES, ints(*ONE_3D, -4), 48, 5, 5, 8),
    _node(Op.IM2COL_3D, PLANES, ints(*ONE_3D, 0), 48, 5, 5, 8),
    _node(Op.IM2COL_3D, PLANES, ints(*ONE_3D, 4), 48, 5, 5, 7),
    *[_node(Op.UPSCALE, IMAGE, ints(mode), 7, 9, 3, 2) for mode in (3, 255, 512, 2 | 512)],
    *[_node(Op.UPSCALE, IMAGE, ints(mode), 7, 9, 3, 2) for mode in (1024, -1, -(2**31))],
    _node(Op.UPSCALE, (t(6, 0, 3, 2),), ints(0), 7, 9, 3, 2),
    _node(Op.UPSCALE, (t(6, 5, 3, 2, type_=F16),), ints(0), 7, 9, 3, 2),
    _node(Op.UPSCALE, IMAGE, ints(0), (1 << 24) + 1),
    *[_node(Op.WIN_UNPART, CUT, ints(width), 8, 10, 7) for width in (0, -4, 5)],
    _node(Op.WIN_UNPART, CUT, ints(4), 8, 13, 7),
    _node(Op.WIN_UNPART, CUT, ints(4), 7, 10, 7),
]


@pytest.mark.parametrize("node", WRONG, ids=lambda node: f"{node.op.name}{list(node.ne)}")
def test_a_size_that_does_not_fit_is_refused_by_node(node: Tensor) -> None:
    with pytest.raises(GraphError, match=f"^node 0 {node.op.name} 'it': .*expected"):
        verify_graph(Graph([node]))


def test_columns_are_of_floats() -> None:
    node = _node(Op.IM2COL, COLUMNS, ints(*ONE_2D, 1), 24, 9, 8, 2)
    node.type = GGMLType.I32
    with pytest.raises(GraphError, match=r"IM2COL 'it': .*expected types F16, F32"):
        verify_graph(Graph([node]))


def test_only_a_depthwise_result_may_have_its_channels_first() -> None:
    node = _node(Op.CONV_2D_DW, DEPTH, ints(*ONE_2D), 9, 8, 4, 2)
    node.nb = (16, 144, 4, 1152)
    verify_graph(Graph([node]))
    node.nb = (16, 160, 4, 1280)
    node.buffer = SizedBuffer(4096)
    with pytest.raises(GraphError, match="a result without gaps"):
        verify_graph(Graph([node]))
    other = _node(Op.CONV_2D, (t(3, 2, 4, 4), CONV[1]), ints(*ONE_2D), 9, 8, 4, 2)
    other.nb = (16, 144, 4, 1152)
    with pytest.raises(GraphError, match="a result without gaps"):
        verify_graph(Graph([other]))
