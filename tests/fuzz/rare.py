"""What the kernels' case table has not: operations whose result has no order, and tensor types that
nothing there can write; their leaves are random bytes.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from app.ggml.op_params import AttentionParams, Params
from app.ggml.ops import Op
from app.ggml.tensor import Shape, Tensor, contiguous_strides, make_shape
from app.ggml.types import TRAITS, GGMLType
from tests.kernels.cases import CASES
from tests.kernels.harness import Case, Leaf, Source, below

_SEEN: Final = {s.type for case in CASES for s in case.sources if s is not None}
TYPES: Final = frozenset(set(GGMLType) - _SEEN)
_F32, _I32, _I64 = GGMLType.F32, GGMLType.I32, GGMLType.I64
_ELEMENTS: Final = 256


def rare_cases() -> Iterator[Case]:
    """Yield cases that may be refused: which types an operation takes is the worker's to say."""
    yield Case("top", Op.TOP_K, (Source((50, 4, 2)),), ne=(7, 4, 2), type=_I32)
    scale = AttentionParams(0.25).pack()
    for type_ in sorted(TYPES):
        n = max(_ELEMENTS, TRAITS[type_].block_size)
        rare, floats = Source((n, 3, 2), type_), Source((n, 3, 2))
        ids = Source((2, 2), _I32, below(3))
        experts = (Source((n, 4, 3), type_), Source((n, 1, 2)), ids)
        rows = (Source((n, 2)), Source((2,), _I64, below(3)), Source((n, 3), type_))
        cache = Source((n, 4, 2), type_)
        pair = Source((n, 4, 3), type_), Source((n, 4, 3)), ids
        yield from (
            Case("rows", Op.GET_ROWS, (rare, Source((2, 2), _I32, below(3)))),
            Case("product", Op.MUL_MAT, (rare, Source((n, 2, 2)))),
            Case("outer", Op.OUT_PROD, (rare, Source((4, 3, 2)))),
            Case("experts", Op.MUL_MAT_ID, experts),
            Case("bias", Op.ADD_ID, pair),
            Case("to floats", Op.CPY, (rare, floats)),
            Case("from floats", Op.CPY, (floats, rare)),
            Case("into rows", Op.SET_ROWS, rows),
            Case("same", Op.DUP, (rare,)),
            Case("whole", Op.CONT, (rare,)),
            Case("joined", Op.CONCAT, (rare, rare), Params.pack("i", 1)),
            Case("repeated", Op.REPEAT, (rare,), ne=(n, 6, 2)),
            Case("padded", Op.PAD, (rare,), Params.pack("4i", 0, 0, 0, 1), ne=(n, 4, 2)),
            Case("attention", Op.FLASH_ATTN_EXT, (floats, cache, cache, None), scale),
        )


def rare_leaf(rng: np.random.Generator, source: Source) -> Leaf:
    """Lay a source of a rare type out as random bytes."""
    ne: Shape = make_shape(source.ne)
    nb = contiguous_strides(source.type, ne)
    stored = Tensor(source.type, ne, nb, name="leaf")
    seen = Tensor(source.type, ne, nb, Op.VIEW, Params(), (stored,), stored)
    return Leaf(stored, seen, rng.bytes(stored.nbytes), np.empty(0))
