"""Builds graphs in ggml's own words: each method adds one node and returns it.

Model definitions call it; nodes stand in call order, which is execution order. Shapes are checked
as the node is made (`app.ggml.shapes`), so a wrong model fails where it is written. Results have no
memory yet: see `app.ggml.planner`.
"""

from collections.abc import Sequence

from app.errors import GraphError
from app.ggml.graph import Graph, next_uid
from app.ggml.op_params import AttentionParams, Params, RopeParams
from app.ggml.ops import GluOp, Op, UnaryOp
from app.ggml.shapes import infer
from app.ggml.tensor import (
    Shape,
    Tensor,
    TensorFlag,
    contiguous_strides,
    make_shape,
    new_tensor,
)
from app.ggml.types import TRAITS, GGMLType


class GraphBuilder:
    """Collects the nodes of one graph."""

    def __init__(self) -> None:
        self._nodes: list[Tensor] = []

    def finish(self, *outputs: Tensor) -> Graph:
        """Mark `outputs` as results that must outlive the run and return the graph under a fresh
        uid.
        """
        for tensor in outputs:
            tensor.flags |= TensorFlag.OUTPUT
        return Graph(self._nodes, next_uid())

    def input(self, type_: GGMLType, ne: Sequence[int], name: str) -> Tensor:
        """Declare a leaf [ne] that is set before each run."""
        tensor = new_tensor(type_, ne, name)
        tensor.flags |= TensorFlag.INPUT
        return tensor

    def node(self, op: Op, *sources: Tensor | None, params: Params | None = None) -> Tensor:
        """Add a node whose type and shape follow from its sources.

        Raises: GraphError.
        """
        params = params or Params()
        type_, ne = infer(op, sources, params)
        tensor = Tensor(type_, ne, contiguous_strides(type_, ne), op, params, sources)
        self._nodes.append(tensor)
        return tensor

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """a + b, b repeated as needed."""
        return self.node(Op.ADD, a, b)

    def mul(self, a: Tensor, b: Tensor) -> Tensor:
        """a * b element by element, b repeated as needed."""
        return self.node(Op.MUL, a, b)

    def scale(self, a: Tensor, factor: float, bias: float = 0.0) -> Tensor:
        """a * factor + bias."""
        return self.node(Op.SCALE, a, params=Params.pack("2f", factor, bias))

    def rms_norm(self, a: Tensor, eps: float) -> Tensor:
        """Divide each row by its root mean square."""
        return self.node(Op.RMS_NORM, a, params=Params.pack("f", eps))

    def norm(self, a: Tensor, eps: float) -> Tensor:
        """Take the mean from each row and divide by its standard deviation."""
        return self.node(Op.NORM, a, params=Params.pack("f", eps))

    def unary(self, a: Tensor, function: UnaryOp) -> Tensor:
        """Apply a function to each element."""
        return self.node(Op.UNARY, a, params=Params.pack("i", function))

    def glu_split(self, gate: Tensor, up: Tensor, function: GluOp) -> Tensor:
        """function(gate) * up."""
        return self.node(Op.GLU, gate, up, params=Params.pack("2i", function, 0))

    def mul_mat(self, a: Tensor, b: Tensor) -> Tensor:
        """Rows of a [k, n] times rows of b [k, m] → F32 [n, m]."""
        return self.node(Op.MUL_MAT, a, b)

    def get_rows(self, a: Tensor, indices: Tensor) -> Tensor:
        """Rows of a [k, n] at I32 indices [m] → [k, m]."""
        return self.node(Op.GET_ROWS, a, indices)

    def set_rows(self, target: Tensor, rows: Tensor, indices: Tensor) -> Tensor:
        """Write rows [k, m] into target [k, n] at I64 indices [m]; the result is a view of it."""
        result = self.node(Op.SET_ROWS, rows, indices, target)
        result.nb = target.nb
        _attach(result, target, 0)
        return result

    def rope(
        self, a: Tensor, positions: Tensor, factors: Tensor | None, params: RopeParams
    ) -> Tensor:
        """Rotate a [d, heads, tokens] by I32 positions [tokens]."""
        return self.node(Op.ROPE, a, positions, factors, params=params.pack())

    def soft_max(
        self, a: Tensor, mask: Tensor | None, scale: float, max_bias: float = 0.0
    ) -> Tensor:
        """Softmax over rows of a * scale + mask."""
        return self.node(Op.SOFT_MAX, a, mask, params=Params.pack("2f", scale, max_bias))

    def flash_attn(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, params: AttentionParams
    ) -> Tensor:
        """Attention of Q [d, n, h] over K, V [d, n_kv, h_kv]: F32 [d, h, n]."""
        return self.node(Op.FLASH_ATTN_EXT, q, k, v, mask, params=params.pack())

    def cont(self, a: Tensor) -> Tensor:
        """Copy without gaps."""
        return self._like(Op.CONT, a)

    def cast(self, a: Tensor, type_: GGMLType) -> Tensor:
        """Copy into another type."""
        result = Tensor(type_, a.ne, contiguous_strides(type_, a.ne), Op.CPY, Params(), (a,))
        result.src = (a, result)
        self._nodes.append(result)
        return result

    def reshape(self, a: Tensor, *ne: int) -> Tensor:
        """Another shape [ne] of the same contiguous elements."""
        shape = make_shape(ne)
        if not a.is_contiguous or shape[0] * shape[1] * shape[2] * shape[3] != a.n_elements:
            raise GraphError(
                f"RESHAPE '{a.name}' {list(a.ne)} to {list(shape)}: "
                "expected a gapless tensor of equal size"
            )
        strides = contiguous_strides(a.type, shape)
        return self._view(Op.RESHAPE, a, shape, strides, 0, Params())

    def view(self, a: Tensor, ne: Sequence[int], nb: Sequence[int], offset: int = 0) -> Tensor:
        """Another look [ne] at the memory of `a`: strides `nb` in bytes for the dimensions above
        the first.
        """
        shape = make_shape(ne)
        strides = [TRAITS[a.type].type_size, *nb]
        while len(strides) < len(shape):
            strides.append(strides[-1] * shape[len(strides) - 1])
        full = (strides[0], strides[1], strides[2], strides[3])
        return self._view(Op.VIEW, a, shape, full, offset, Params.pack("Q", offset))

    def permute(self, a: Tensor, *axes: int) -> Tensor:
        """Move dimension i of `a` to place axes[i]."""
        if sorted(axes) != [0, 1, 2, 3]:
            raise GraphError(f"PERMUTE '{a.name}': axes {axes}: expected an order of 0, 1, 2, 3")
        ne, nb = [0] * 4, [0] * 4
        for i, axis in enumerate(axes):
            ne[axis], nb[axis] = a.ne[i], a.nb[i]
        strides = (nb[0], nb[1], nb[2], nb[3])
        return self._view(Op.PERMUTE, a, make_shape(ne), strides, 0, Params.pack("4i", *axes))

    def transpose(self, a: Tensor) -> Tensor:
        """Swap the first two dimensions."""
        ne, nb = a.ne, a.nb
        strides = (nb[1], nb[0], nb[2], nb[3])
        return self._view(Op.TRANSPOSE, a, (ne[1], ne[0], ne[2], ne[3]), strides, 0, Params())

    def _like(self, op: Op, a: Tensor) -> Tensor:
        result = Tensor(a.type, a.ne, contiguous_strides(a.type, a.ne), op, Params(), (a,))
        self._nodes.append(result)
        return result

    def _view(self, op: Op, a: Tensor, ne: Shape, nb: Shape, offset: int, params: Params) -> Tensor:
        result = Tensor(a.type, ne, nb, op, params, (a,))
        _attach(result, a, offset)
        self._nodes.append(result)
        return result


def _attach(view: Tensor, source: Tensor, offset: int) -> None:
    """Make `view` share the memory of `source`; a view of a view points at the root, as in ggml."""
    root = source if source.view_src is None else source.view_src
    view.view_src = root
    view.view_offs = source.view_offs + offset
    if root.buffer is not None:
        view.buffer = root.buffer
        view.offset = root.offset + view.view_offs
