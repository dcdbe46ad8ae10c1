"""Graphs to be damaged: every case of the kernels' case table, several in one graph, in one tight
buffer, with the values that a kernel must not trust.

New operations come in by themselves, with their rows in `tests.kernels.cases`.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from app.errors import GraphError
from app.ggml.graph import Graph
from app.ggml.ops import Op
from app.ggml.tensor import Tensor
from app.ggml.types import TRAITS, GGMLType
from tests.fuzz.dice import FLOATS, INDICES, Dice
from tests.fuzz.rare import TYPES, rare_cases, rare_leaf
from tests.kernels.cases import CASES
from tests.kernels.harness import Case, Leaf, Source, make_leaf, make_node

_BY_OP: Final[dict[Op, list[Case]]] = defaultdict(list)
for _case in (*CASES, *rare_cases()):
    _BY_OP[_case.op].append(_case)
_OPS: Final = sorted(_BY_OP)
_RARE: Final = list(rare_cases())
_INTEGERS: Final = {GGMLType.I32: np.int32, GGMLType.I64: np.int64}
_INDEXED: Final = sorted(
    {c.op for c in CASES if any(s is not None and s.type in _INTEGERS for s in c.sources)}
)


@dataclass(slots=True)
class Draft:
    """A graph whose tensors have offsets in a buffer of `size` bytes, and what its leaves hold.
    `roots` tells for each tensor in whose memory it lies, its own or another's.
    """

    graph: Graph
    size: int = 0
    offsets: dict[int, int] = field(default_factory=dict)
    roots: dict[int, Tensor] = field(default_factory=dict)
    data: list[tuple[Tensor, bytes]] = field(default_factory=list)


def draft(dice: Dice, n_cases: int) -> Draft:
    """Make a graph of so many cases; sources that are alike may be one and the same."""
    rng = np.random.default_rng(dice.getrandbits(32))
    known: dict[Source, Leaf] = {}
    made = Draft(Graph([], dice.randrange(1, 2000)))
    for _ in range(n_cases):
        op = dice.choice(_INDEXED if dice.chance(0.3) else _OPS)
        case = dice.choice(_RARE if dice.chance(0.15) else _BY_OP[op])
        leaves = [None if s is None else _leaf(dice, rng, s, known) for s in case.sources]
        try:
            node = make_node(case, [None if leaf is None else leaf.seen for leaf in leaves])
        except GraphError:
            continue
        for leaf in leaves:
            if leaf is not None:
                _put_leaf(dice, made, leaf)
        if node.view_src is not None:
            _share(made, node, node.view_src)
        elif case.inplace is not None:
            target = [leaf for leaf in leaves if leaf is not None][case.inplace]
            _share(made, node, target.stored)
        else:
            _put(dice, made, node)
        made.graph.nodes.append(node)
    return made


def _leaf(dice: Dice, rng: np.random.Generator, source: Source, known: dict[Source, Leaf]) -> Leaf:
    if source not in known or dice.chance(0.5):
        make = rare_leaf if source.type in TYPES else make_leaf
        known[source] = make(rng, source)
    return known[source]


def _put_leaf(dice: Dice, made: Draft, leaf: Leaf) -> None:
    if id(leaf.stored) in made.offsets:
        return
    _put(dice, made, leaf.stored)
    _share(made, leaf.seen, leaf.stored)
    made.graph.nodes.append(leaf.seen)
    made.data.append((leaf.stored, hurt_values(dice, leaf.stored.type, leaf.data)))


def _share(made: Draft, tensor: Tensor, root: Tensor) -> None:
    made.offsets[id(tensor)] = made.offsets[id(root)]
    made.roots[id(tensor)] = made.roots[id(root)]


def _put(dice: Dice, made: Draft, tensor: Tensor) -> None:
    """Put a tensor behind the others: as close as its type allows, or aligned as clients do."""
    traits = TRAITS[tensor.type]
    least = traits.type_size if traits.block_size == 1 else 2
    grain = dice.choice((least, 64))
    made.offsets[id(tensor)] = -(-made.size // grain) * grain
    made.roots[id(tensor)] = tensor
    made.size = made.offsets[id(tensor)] + tensor.nbytes


def hurt_values(dice: Dice, type_: GGMLType, data: bytes) -> bytes:
    """Return the values of a leaf, now and then with some that hurt."""
    if dice.chance(0.5 if type_ in _INTEGERS else 0.75) or not data:
        return data
    if type_ in _INTEGERS:
        values = np.frombuffer(data, _INTEGERS[type_]).copy()
        limits = np.iinfo(values.dtype)
        fit = [i for i in INDICES if limits.min <= i <= limits.max]
        # One too far in either direction is what a careless check lets through.
        near = min(int(values.max()) + dice.choice((1, 2, 3)), limits.max)
        values[dice.randrange(len(values))] = dice.choice((-1, near, dice.choice(fit)))
        return values.tobytes()
    if type_ == GGMLType.F32:
        floats = np.frombuffer(data, np.float32).copy()
        for _ in range(dice.randint(1, 4)):
            floats[dice.randrange(len(floats))] = dice.choice((*FLOATS, float("nan")))
        return floats.tobytes()
    return dice.randbytes(len(data)) if dice.chance(0.5) else dice.damaged(data).ljust(len(data))
