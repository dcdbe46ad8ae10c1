"""Is this graph legal? One verifier for the graphs that we build and for those that a peer sends.

Devices call it before they compile a graph; after it, a kernel may trust every type, shape, stride,
bound and parameter of a node and of its sources. What only values can tell (row indices) is left to
the kernels, which types an operation takes to `Device.unsupported`. A tensor that no node makes or
reads is not looked at: a stock client also sends the history of what an earlier graph computed.
The time is linear in the number of nodes, whatever they say. Rules: the constructors of ggml.c at
llama.cpp b11434.
"""

from collections.abc import Callable
from typing import Final

from app.errors import GraphError, UnsupportedError
from app.ggml import shapes_image
from app.ggml.graph import Graph
from app.ggml.op_rules import IN_PLACE_OF, check_layouts, check_params
from app.ggml.ops import FORBIDDEN_OPS, VIEW_OPS, Op
from app.ggml.shape_checks import can_repeat
from app.ggml.shapes import INFER
from app.ggml.tensor import Tensor
from app.ggml.types import TRAITS, GGMLType

MAX_ELEMENTS: Final = (1 << 63) - 1
# Strides may let elements share memory, as sliding windows do; without a limit a few bytes would
# make work for years.
MAX_SHARING: Final = 64
_FEW_ELEMENTS: Final = 1 << 16

# Block size, bytes of a block, alignment in bytes; plain tuples, since each tensor asks.
_LAYOUT: Final = {
    type_: (t.block_size, t.type_size, t.type_size if t.block_size == 1 else 2 - t.type_size % 2)
    for type_, t in TRAITS.items()
}


def verify_graph(graph: Graph) -> None:
    """Check a whole graph.

    Raises: GraphError naming the node, what is wrong with it and what was expected;
    UnsupportedError for an operation, function or mode that is not known here.
    """
    place = {id(node): index for index, node in enumerate(graph.nodes)}
    checked: set[int] = set()
    for index, node in enumerate(graph.nodes):
        try:
            if place[id(node)] != index:
                raise GraphError("the node stands twice, expected once")
            _check_order(node, index, place)
            _check_memory(node, checked)
            _check_operation(node)
        except GraphError as error:
            raise GraphError(f"{_title(node, index)}: {error}") from None
        except UnsupportedError as error:
            raise UnsupportedError(f"{_title(node, index)}: {error}") from None


def _title(node: Tensor, index: int) -> str:
    return f"node {index} {node.op.name} {node.name!r}"


def _check_order(node: Tensor, index: int, place: dict[int, int]) -> None:
    """Sources stand before the node; only a cast names itself as its target."""
    for i, source in enumerate(node.src):
        if source is None or place.get(id(source), -1) < index:
            continue
        if source is node and node.op == Op.CPY and i == 1 and node.view_src is None:
            continue
        raise GraphError(f"source {i} {source.name!r} comes later, expected it before the node")
    root = node.view_src
    if root is not None and place.get(id(root), -1) >= index:
        raise GraphError(f"view source {root.name!r} comes later, expected it before the node")


def _check_memory(node: Tensor, checked: set[int]) -> None:
    """The node and what it reads have a sound layout and, where it computes, lie in a buffer."""
    computes = node.op not in VIEW_OPS
    for tensor in (node, *node.src):
        if tensor is None:
            continue
        if id(tensor) not in checked:
            checked.add(id(tensor))
            check_tensor(tensor)
        if computes and tensor.buffer is None:
            raise GraphError(f"{tensor.name!r} has no buffer, expected one")


def check_tensor(tensor: Tensor) -> None:
    """Check the shape and the strides of one tensor, and its bounds when it has a buffer.

    Raises: GraphError.
    """
    block, size, alignment = _LAYOUT[tensor.type]
    ne, nb = tensor.ne, tensor.nb
    if ne[0] < 0 or ne[1] < 0 or ne[2] < 0 or ne[3] < 0 or tensor.n_elements > MAX_ELEMENTS:
        raise _bad(tensor, "no negative dimension and less than 2^63 elements")
    if block > 1 and (ne[0] % block or nb[0] != size):
        raise _bad(tensor, f"rows of whole blocks of {block}, {size} bytes each")
    for i in (0, 1, 2, 3):
        if not 0 <= nb[i] <= MAX_ELEMENTS or (ne[i] > 1 and nb[i] % size):
            raise _bad(tensor, f"strides that are multiples of {size}")
    buffer = tensor.buffer
    if buffer is None:
        return
    if tensor.offset < 0 or tensor.offset % alignment:
        raise GraphError(
            f"{tensor.name!r} at byte {tensor.offset}, expected a multiple of {alignment}"
        )
    end = tensor.offset + tensor.nbytes
    if end > buffer.size:
        raise GraphError(
            f"{tensor.name!r} {TRAITS[tensor.type].name}{list(ne)} ends at byte {end} of a buffer "
            f"of {buffer.size}, expected it inside"
        )
    if tensor.n_elements > max(_FEW_ELEMENTS, MAX_SHARING * buffer.size):
        raise _bad(tensor, f"elements that share the buffer's {buffer.size} bytes less often")


def _bad(tensor: Tensor, want: str) -> GraphError:
    return GraphError(
        f"{tensor.name!r} {TRAITS[tensor.type].name}{list(tensor.ne)} with strides "
        f"{list(tensor.nb)}: expected {want}"
    )


def _check_operation(node: Tensor) -> None:
    op = node.op
    if op in FORBIDDEN_OPS:
        raise GraphError("the operation carries a function pointer, expected one without")
    if op in VIEW_OPS:
        if op != Op.NONE:
            _check_view(node)
        return
    if op in INFER:
        expected = INFER[op](op, node.src, node.params)
        if expected != (node.type, node.ne):
            type_, ne = expected
            raise _bad(node, f"{TRAITS[type_].name}{list(ne)}")
    elif op in _CHOSEN_SHAPE:
        _CHOSEN_SHAPE[op](node)
    else:
        raise UnsupportedError("the operation is not known here")
    check_params(node)
    check_layouts(node)
    _check_result(node)


def _check_cont(node: Tensor) -> None:
    source = node.require(0)
    if source.type != node.type or source.n_elements != node.n_elements:
        raise _bad(node, f"as many {TRAITS[source.type].name} elements as {list(source.ne)}")


def _check_copy(node: Tensor) -> None:
    source, target = node.require(0), node.require(1)
    if source.n_elements != node.n_elements:
        raise _bad(node, f"as many elements as {list(source.ne)}")
    if (target.type, target.ne) != (node.type, node.ne):
        raise _bad(node, f"the target's {TRAITS[target.type].name}{list(target.ne)}")


def _check_repeat(node: Tensor) -> None:
    source = node.require(0)
    if source.type != node.type or not can_repeat(source.ne, node.ne):
        raise _bad(node, f"repetitions of {TRAITS[source.type].name}{list(source.ne)}")


def _check_repeat_back(node: Tensor) -> None:
    source = node.require(0)
    if source.type != node.type or not can_repeat(node.ne, source.ne):
        raise _bad(node, f"what repeats to {TRAITS[source.type].name}{list(source.ne)}")


def _check_top_k(node: Tensor) -> None:
    source = node.require(0)
    fits = node.ne[0] <= source.ne[0] and node.ne[1:] == source.ne[1:]
    if node.type != GGMLType.I32 or not fits:
        raise _bad(node, f"i32 indices of up to {source.ne[0]} elements of each row")


_CHOSEN_SHAPE: Final[dict[Op, Callable[[Tensor], None]]] = {
    Op.CONT: _check_cont,
    Op.CPY: _check_copy,
    Op.REPEAT: _check_repeat,
    Op.REPEAT_BACK: _check_repeat_back,
    Op.TOP_K: _check_top_k,
    **shapes_image.CHOSEN,
}

KNOWN_OPS: Final = frozenset(INFER) | frozenset(_CHOSEN_SHAPE)
"""Operations that a legal graph may hold, views and NONE apart. The reference kernels have all."""


def _check_result(node: Tensor) -> None:
    """The result has no gaps, or it is exactly the place of the source that it overwrites."""
    index = IN_PLACE_OF.get(node.op)
    target = None if index is None else node.optional(index)
    overwrites = node.view_src is not None or node.op == Op.SET_ROWS
    if node.op == Op.CPY:
        overwrites = target is not node
    if not overwrites:
        if not node.is_contiguous and not shapes_image.keeps_channels_first(node):
            raise _bad(node, "a result without gaps")
        return
    if target is None:
        raise GraphError("the result is a view, expected memory of its own")
    same = node.buffer is target.buffer and node.offset == target.offset
    if not same or node.nb != target.nb:
        raise GraphError(
            f"the result lies at byte {node.offset} with strides {list(node.nb)}, expected "
            f"{target.offset} and {list(target.nb)}, the place of source {index} {target.name!r}"
        )
    if not node.is_contiguous and _overlaps_itself(node):
        raise _bad(node, "a result whose elements do not share memory")


def _overlaps_itself(tensor: Tensor) -> bool:
    end = 0
    block, size, _ = _LAYOUT[tensor.type]
    counts = (tensor.ne[0] // block, *tensor.ne[1:])
    for stride, n in sorted(zip(tensor.nb, counts, strict=True)):
        if n > 1:
            if stride < end + size:
                return True
            end += (n - 1) * stride
    return False


def _check_view(node: Tensor) -> None:
    source, root = node.require(0), node.view_src
    if root is None:
        raise GraphError("no view source, expected one")
    if source.type != node.type:
        raise _bad(node, f"the source's type {TRAITS[source.type].name}")
    if node.view_offs < 0 or node.view_offs + node.nbytes > root.nbytes:
        raise GraphError(
            f"bytes {node.view_offs} to {node.view_offs + node.nbytes} of {root.name!r}, expected "
            f"them inside its {root.nbytes}"
        )
    if node.buffer is not None and (
        node.buffer is not root.buffer or node.offset != root.offset + node.view_offs
    ):
        raise GraphError(
            f"the view lies at byte {node.offset}, expected {root.offset + node.view_offs} in the "
            f"buffer of {root.name!r}"
        )
    _VIEW_SHAPE[node.op](node, source)


def _check_reshape(node: Tensor, source: Tensor) -> None:
    check_layouts(node)
    if source.n_elements != node.n_elements or not node.is_contiguous:
        raise _bad(node, f"a gapless shape of as many elements as {list(source.ne)}")


def _check_window(node: Tensor, source: Tensor) -> None:
    """A VIEW may have any shape and strides within its view source."""


def _check_permute(node: Tensor, source: Tensor) -> None:
    axes = [node.params.i32(i) for i in range(4)]
    if sorted(axes) != [0, 1, 2, 3]:
        raise GraphError(f"axes {axes}, expected an order of 0, 1, 2, 3")
    ne, nb = [node.ne[axis] for axis in axes], [node.nb[axis] for axis in axes]
    if (*ne, *nb) != (*source.ne, *source.nb):
        raise _bad(node, f"{list(source.ne)} {list(source.nb)} in the order of axes {axes}")


def _check_transpose(node: Tensor, source: Tensor) -> None:
    ne, nb = source.ne, source.nb
    if (node.ne, node.nb) != ((ne[1], ne[0], *ne[2:]), (nb[1], nb[0], *nb[2:])):
        raise _bad(node, f"{list(ne)} {list(nb)} with the first two swapped")


_VIEW_SHAPE: Final[dict[Op, Callable[[Tensor, Tensor], None]]] = {
    Op.RESHAPE: _check_reshape,
    Op.VIEW: _check_window,
    Op.PERMUTE: _check_permute,
    Op.TRANSPOSE: _check_transpose,
}
