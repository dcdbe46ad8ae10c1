"""Damage to what a client says of tensors and graphs: one field set to a value that hurts."""

from dataclasses import replace
from typing import Final

from app.ggml.ops import Op
from app.ggml.tensor import TensorFlag
from app.ggml.types import GGMLType
from app.rpc_backend.wire.graph_codec import GraphCompute
from app.rpc_backend.wire.tensor import WireTensor
from tests.fuzz.dice import U32, Dice

# Numbers that no operation or type has.
_TYPES: Final = [*map(int, GGMLType), 4, 5, 31, 43, 2**31, 2**32 - 1]
_OPS: Final = [*map(int, Op), len(Op), 2**31, 2**32 - 1]
_FIELDS: Final = (
    *("ne", "ne", "ne", "nb", "nb", "nb", "type", "op", "params", "params"),
    *("src", "view", "view_offs", "data", "data", "buffer", "flags", "id"),
)


def damaged_graph(dice: Dice, message: GraphCompute) -> GraphCompute:
    """Change some fields of some tensors, seldom the list of nodes or the head."""
    tensors = list(message.tensors)
    for _ in range(dice.choice((1, 1, 1, 2, 3)) if tensors else 0):
        at = dice.randrange(len(tensors))
        tensors[at] = damaged_tensor(dice, tensors[at], len(tensors))
    message = replace(message, tensors=tuple(tensors))
    if dice.chance(0.9):
        return message
    ids = list(message.node_ids)
    changes = (
        replace(message, node_ids=tuple(dice.sample(ids, len(ids)))),
        replace(message, node_ids=(*ids, *ids)),
        replace(message, node_ids=(*ids, dice.u64())),
        replace(message, node_ids=()),
        replace(message, tensors=message.tensors[::-1]),
        replace(message, tensors=message.tensors[: len(tensors) // 2]),
        replace(message, device=dice.u32()),
        replace(message, uid=dice.choice((0, 1, dice.u64()))),
    )
    return dice.choice(changes)


def damaged_tensor(dice: Dice, t: WireTensor, n_tensors: int) -> WireTensor:
    """Change one field; ids are those of `n_tensors` tensors that count from 1."""
    field, at = dice.choice(_FIELDS), dice.randrange(4)
    if field in ("ne", "nb"):
        four = list(t.ne if field == "ne" else t.nb)
        old = four[at]
        near = (old + 1, old * 2, old // 2, max(old - 1, 0), 0)
        four[at] = (dice.choice(near) if dice.chance(0.5) else dice.u32()) & (2**32 - 1)
        shape = (four[0], four[1], four[2], four[3])
        return t._replace(ne=shape) if field == "ne" else t._replace(nb=shape)
    if field == "params":
        return t._replace(params=_damaged_params(dice, t.params))
    if field == "src":
        sources = list(t.src)
        sources[dice.randrange(len(sources))] = dice.randrange(n_tensors + 2)
        return t._replace(src=tuple(sources))
    moved = t.data + dice.choice((-64, -4, -1, 1, 2, 4, 64, 4096))
    changes: dict[str, WireTensor] = {
        "type": t._replace(type=dice.choice(_TYPES)),
        "op": t._replace(op=dice.choice(_OPS)),
        "view": t._replace(view_src=dice.randrange(n_tensors + 2)),
        "view_offs": t._replace(view_offs=dice.u64()),
        "data": t._replace(data=(moved if dice.chance(0.8) else dice.u64()) & (2**64 - 1)),
        "buffer": t._replace(buffer=dice.choice((0, t.buffer + 1, dice.u64()))),
        "flags": t._replace(flags=dice.choice((0, -1, int(TensorFlag.COMPUTE)))),
        "id": t._replace(id=dice.randrange(n_tensors + 2)),
    }
    return changes[field]


def _damaged_params(dice: Dice, params: bytes) -> bytes:
    out, at = bytearray(params), 4 * dice.randrange(16)
    words = (dice.choice(U32), 0x7FC00000, 0x7F800000, 0xFF800000, 0x3F800000, 0x80000000)
    old = int.from_bytes(out[at : at + 4], "little")
    word = dice.choice((*words, (old + 1) & (2**32 - 1), (old - 1) & (2**32 - 1)))
    out[at : at + 4] = word.to_bytes(4, "little")
    return bytes(out)
