"""Cases of the table with one thing changed: a typed error or success, nothing else, and never a
byte outside the result.

A change is a type, a dimension, a stride, an offset, a parameter or the values of a source. Most
are refused by the verifier; the others must not surprise a kernel.
"""

import random

import numpy as np
import pytest

from app.devices.torch_device import TorchDevice
from app.errors import LlamaServeError
from app.ggml.graph import Graph, next_uid
from app.ggml.op_params import Params
from app.ggml.ops import Op
from app.ggml.tensor import Tensor, contiguous_strides
from app.ggml.types import TRAITS, GGMLType
from tests.devices.graphs import cpu
from tests.kernels import harness
from tests.kernels.cases import CASES
from tests.kernels.harness import Case

TYPES = [GGMLType.F32, GGMLType.F16, GGMLType.I32, GGMLType.I64, GGMLType.Q8_0, GGMLType.Q6_K]
ROUNDS = 800


def _mutate(dice: random.Random, tensor: Tensor) -> None:
    """Change one thing about a tensor."""
    kind = dice.choice(["type", "ne", "ne", "nb", "nb", "offset", "layout"])
    if kind == "type":
        tensor.type = dice.choice(TYPES)
    elif kind in ("ne", "layout"):
        ne = list(tensor.ne)
        at = dice.randrange(4)
        ne[at] = dice.choice([0, 1, 2, ne[at] + 1, ne[at] * 2, ne[at] // 2, 1 << 40])
        tensor.ne = (ne[0], ne[1], ne[2], ne[3])
        if kind == "layout" and ne[0] % TRAITS[tensor.type].block_size == 0:
            tensor.nb = contiguous_strides(tensor.type, tensor.ne)
    elif kind == "nb":
        nb = list(tensor.nb)
        at = dice.randrange(4)
        nb[at] = dice.choice([0, 1, 2, 4, nb[at] * 2, nb[at] // 2, 1 << 40, -4])
        tensor.nb = (nb[0], nb[1], nb[2], nb[3])
    else:
        tensor.offset += dice.choice([-64, 1, 2, 4, 64, 1 << 40])


def _changed_params(dice: random.Random, params: Params) -> Params:
    raw = bytearray(params.raw)
    at = 4 * dice.randrange(16)
    extremes = [b"\0\0\0\0", b"\1\0\0\0", b"\xff\xff\xff\xff", b"\0\0\x80\x7f", b"\0\0\xc0\x7f"]
    raw[at : at + 4] = dice.choice([*extremes, dice.randbytes(4), b"\x0a\xd7\x23\x3c"])
    return Params(bytes(raw))


def _build(case: Case, seed: int) -> tuple[list[Tensor], Tensor, list[tuple[Tensor, bytes]]]:
    """Return the sources' views, the node, and the leaves with their bytes."""
    rng = np.random.default_rng(seed)
    leaves = [None if s is None else harness.make_leaf(rng, s) for s in case.sources]
    node = harness.make_node(case, [None if leaf is None else leaf.seen for leaf in leaves])
    for leaf in leaves:
        if leaf is not None:
            # As leaves they keep their memory when their shape is changed.
            leaf.seen.op, leaf.seen.src, leaf.seen.view_src = Op.NONE, (), None
    seen = [leaf.seen for leaf in leaves if leaf is not None]
    return seen, node, [(leaf.stored, leaf.data) for leaf in leaves if leaf is not None]


def _place(
    device: TorchDevice, case: Case, seen: list[Tensor], node: Tensor, stored: list[Tensor]
) -> Tensor:
    """Give everything memory; return a tensor of all of it."""
    harness.place(device, [*stored, node])
    for view, leaf in zip(seen, stored, strict=True):
        view.buffer, view.offset = leaf.buffer, leaf.offset
    overwritten = harness.OVERWRITTEN.get(case.op, case.inplace)
    if overwritten is not None:
        target = node.src[overwritten]
        assert target is not None
        node.offset = target.offset
        if node.view_src is not None:
            node.view_src = target
    assert node.buffer is not None
    size = node.buffer.size
    whole = Tensor(GGMLType.I8, (size, 1, 1, 1), (1, size, size, size), buffer=node.buffer)
    return whole


def _one_round(device: TorchDevice, dice: random.Random) -> str:
    """Run one mutated case; return the operation when it succeeded, or else ""."""
    case = dice.choice(CASES)
    seen, node, leaves = _build(case, dice.randrange(1000))
    whole = _place(device, case, seen, node, [stored for stored, _ in leaves])
    for stored, data in leaves:
        device.set_tensor(stored, data)
    if dice.random() < 0.25:
        node.params = _changed_params(dice, node.params)
    else:
        _mutate(dice, dice.choice([*seen, node]))
    if leaves and dice.random() < 0.1:
        victim = dice.choice(leaves)[0]
        device.set_tensor(victim, dice.randbytes(victim.nbytes))
    before = np.frombuffer(device.get_tensor(whole, 0, whole.nbytes).result(), np.uint8)
    try:
        device.compute(Graph([node], next_uid()))
    except LlamaServeError:
        return ""
    finally:
        after = np.frombuffer(device.get_tensor(whole, 0, whole.nbytes).result(), np.uint8)
        outside = np.ones(before.size, bool)
        if 0 <= node.offset < before.size:
            outside[node.offset : node.offset + node.nbytes] = False
        np.testing.assert_array_equal(after[outside], before[outside])
        assert whole.buffer is not None
        device.free(whole.buffer)
    return node.op.name


@pytest.mark.parametrize("seed", range(2))
def test_mutated_cases_succeed_or_are_refused(seed: int) -> None:
    device = cpu()
    dice = random.Random(seed)
    succeeded = {_one_round(device, dice) for _ in range(ROUNDS)}
    # Most operations must have been reached, or this test would prove nothing.
    assert len(succeeded) > 25
    device.close()
