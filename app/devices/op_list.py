"""What a device can run, line by line: `llama-rpc-server --list-ops`.

A line names an operation and, where they are limited, the functions and the element types that it
takes. Both come from the device's own answers to `unsupported` about made-up nodes, so that no
second list can disagree with the kernels.
"""

from collections.abc import Callable, Iterable
from typing import Final

from app.devices.base import Device
from app.errors import GraphError
from app.ggml.op_params import Params, RopeParams
from app.ggml.ops import VIEW_OPS, GluOp, Op, RopeMode, UnaryOp
from app.ggml.shapes import infer
from app.ggml.tensor import Tensor, new_tensor
from app.ggml.types import TRAITS, GGMLType

F32, I32 = GGMLType.F32, GGMLType.I32
_WIDE: Final = 512

Probe = Callable[[GGMLType], Tensor]


def list_ops(device: Device) -> list[str]:
    """Return one line per operation, `DEVICE<TAB>OPERATION<TAB>details`; `details` is what it is
    limited to, `key=value,value` apart by semicolons, or nothing.
    """
    name, ops = device.info.name, sorted(device.ops() | VIEW_OPS)
    return [f"{name}\t{op.name}\t{_details(device, op)}" for op in ops]


def _details(device: Device, op: Op) -> str:
    details = {}
    if op in _FUNCTIONS:
        details["functions"] = [name for name, node in _FUNCTIONS[op]() if _runs(device, node)]
    for key, probe in _PROBES.get(op, {}).items():
        details[key] = [TRAITS[t].name for t in GGMLType if _takes(device, probe, t)]
    return ";".join(f"{key}={','.join(values)}" for key, values in details.items())


def _runs(device: Device, node: Tensor) -> bool:
    return device.unsupported([node]) is None


def _takes(device: Device, probe: Probe, type_: GGMLType) -> bool:
    try:
        return _runs(device, probe(type_))
    except GraphError:
        return False


def _node(op: Op, *sources: Tensor, params: Params | None = None) -> Tensor:
    """Make a node of a shape that follows from its sources."""
    type_, ne = infer(op, sources, params or Params())
    node = new_tensor(type_, ne)
    node.op, node.params, node.src = op, params or Params(), sources
    return node


def _leaf(type_: GGMLType, *ne: int) -> Tensor:
    return new_tensor(type_, (_WIDE, *ne))


def _one(op: Op) -> dict[str, Probe]:
    return {"types": lambda t: _node(op, _leaf(t, 4))}


def _two(op: Op) -> dict[str, Probe]:
    return {"types": lambda t: _node(op, _leaf(t, 4), _leaf(t, 4))}


def _chosen(op: Op, source: GGMLType, target: GGMLType) -> Tensor:
    node = _leaf(target, 4)
    node.op, node.src = op, (_leaf(source, 4), node)
    return node


def _products() -> dict[Op, dict[str, Probe]]:
    ids = new_tensor(I32, (2, 3))
    return {
        Op.MUL_MAT: {
            "weights": lambda t: _node(Op.MUL_MAT, _leaf(t, 4), _leaf(F32, 2)),
            "columns": lambda t: _node(Op.MUL_MAT, _leaf(F32, 4), _leaf(t, 2)),
        },
        Op.MUL_MAT_ID: {
            "weights": lambda t: _node(Op.MUL_MAT_ID, _leaf(t, 4, 5), _leaf(F32, 2, 3), ids)
        },
        Op.OUT_PROD: {
            "columns": lambda t: _node(Op.OUT_PROD, _leaf(t, 4), new_tensor(F32, (3, 4)))
        },
        Op.FLASH_ATTN_EXT: {
            "keys": lambda t: _node(
                Op.FLASH_ATTN_EXT, _leaf(F32, 2, 4), _leaf(t, 8, 4), _leaf(F32, 8, 4)
            )
        },
    }


def _rows() -> dict[Op, dict[str, Probe]]:
    index = new_tensor(I32, (3,))
    return {
        Op.GET_ROWS: {"rows": lambda t: _node(Op.GET_ROWS, _leaf(t, 4), index)},
        Op.SET_ROWS: {"into": lambda t: _node(Op.SET_ROWS, _leaf(F32, 3), index, _leaf(t, 9))},
    }


def _kernel(op: Op, numbers: tuple[int, ...], *ne: int) -> dict[str, Probe]:
    """The kernel [ne] of a convolution of an image."""
    image, params = new_tensor(F32, (9, 9, 4)), Params.pack(f"{len(numbers)}i", *numbers)
    return {"kernels": lambda t: _node(op, new_tensor(t, ne), image, params=params)}


def _of_image(op: Op, *numbers: int) -> dict[str, Probe]:
    params = Params.pack(f"{len(numbers)}i", *numbers)
    return {"types": lambda t: _node(op, new_tensor(t, (8, 8)), params=params)}


def _encoders() -> dict[Op, dict[str, Probe]]:
    signal, once = new_tensor(F32, (9, 4)), Params.pack("3i", 1, 0, 1)
    plain = (1, 1, 0, 0, 1, 1)
    return {
        Op.CONV_2D: _kernel(Op.CONV_2D, plain, 3, 3, 4, 2),
        Op.CONV_2D_DW: _kernel(Op.CONV_2D_DW, plain, 3, 3, 1, 4),
        Op.CONV_3D: _kernel(Op.CONV_3D, (1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 1, 2), 3, 3, 2, 2),
        Op.CONV_TRANSPOSE_1D: {
            "kernels": lambda t: _node(
                Op.CONV_TRANSPOSE_1D, new_tensor(t, (3, 2, 4)), signal, params=once
            )
        },
        Op.CONV_TRANSPOSE_2D: _kernel(Op.CONV_TRANSPOSE_2D, (1,), 3, 3, 2, 4),
        Op.COL2IM_1D: _of_image(Op.COL2IM_1D, 1, 4, 0),
        Op.POOL_1D: _of_image(Op.POOL_1D, 0, 2, 2, 0),
        Op.POOL_2D: _of_image(Op.POOL_2D, 0, 2, 2, 2, 2, 0, 0),
    }


def _indexer(keys: GGMLType) -> Tensor:
    q, weights = _leaf(F32, 2, 3), new_tensor(F32, (2, 3))
    mask = new_tensor(GGMLType.F16, (9, 3))
    return _node(Op.LIGHTNING_INDEXER, q, _leaf(keys, 1, 9), weights, mask)


def _rope_mode(mode: RopeMode) -> Tensor:
    rope = RopeParams(_WIDE // 2, mode, 0, 1e4, 1.0, 0.0, 1.0, 32.0, 1.0, 0, (1, 1, 1, 1))
    positions = new_tensor(I32, (4 if mode & RopeMode.MROPE else 1,))
    return _node(Op.ROPE, _leaf(F32, 2), positions, params=rope.pack())


_ONE: Final = (
    *(Op.SQR, Op.SQRT, Op.LOG, Op.SIN, Op.COS, Op.SUM, Op.SCALE, Op.CLAMP, Op.LEAKY_RELU),
    *(Op.FILL, Op.PAD, Op.DUP),
)
_PROBES: Final[dict[Op, dict[str, Probe]]] = {
    **{op: _one(op) for op in _ONE},
    **{op: _two(op) for op in (Op.ADD, Op.SUB, Op.MUL, Op.DIV, Op.CONCAT)},
    Op.UNARY: _one(Op.UNARY),
    Op.GLU: _two(Op.GLU),
    Op.CONT: {"types": lambda t: _chosen(Op.CONT, t, t)},
    Op.REPEAT: {"types": lambda t: _chosen(Op.REPEAT, t, t)},
    Op.CPY: {
        "from": lambda t: _chosen(Op.CPY, t, F32),
        "to": lambda t: _chosen(Op.CPY, F32, t),
    },
    **_products(),
    **_rows(),
    **_encoders(),
    Op.LIGHTNING_INDEXER: {"keys": _indexer},
}


def _functions(op: Op, kinds: Iterable[UnaryOp | GluOp]) -> list[tuple[str, Tensor]]:
    return [(k.name, _node(op, _leaf(F32, 4), params=Params.pack("i", k))) for k in kinds]


_FUNCTIONS: Final[dict[Op, Callable[[], list[tuple[str, Tensor]]]]] = {
    Op.UNARY: lambda: _functions(Op.UNARY, UnaryOp),
    Op.GLU: lambda: _functions(Op.GLU, GluOp),
    Op.ROPE: lambda: [(mode.name, _rope_mode(mode)) for mode in RopeMode],
}
