"""Graphs that stock llama.cpp (b11739, protocol 8) really sent to a worker, as data.

They were recorded from its client running tiny models of each architecture (`tiny_gguf`), with and
without flash attention: a batch of 15 tokens ("prefill") and one of a single token ("decode"). Two
nodes of each are not marked for computing; workers leave those out.
"""

import gzip
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from app.ggml.graph import Graph
from app.ggml.op_params import PARAMS_BYTES, Params
from app.ggml.ops import Op
from app.ggml.tensor import Tensor, TensorFlag
from app.ggml.types import GGMLType

NAMES = tuple(
    f"{arch}{flash}-{kind}"
    for arch in ("llama", "qwen2", "qwen3", "gemma3")
    for flash in ("", "-flash")
    for kind in ("prefill", "decode")
)


@dataclass(frozen=True, slots=True, eq=False)
class SizedBuffer:
    """A buffer of which only the size is known."""

    size: int


@cache
def _recorded() -> dict[str, Any]:
    path = Path(__file__).with_name("stock_graphs.json.gz")
    graphs: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return graphs


def stock_graph(name: str, *, marked_only: bool = False) -> Graph:
    """Return a fresh copy of a recorded graph; `marked_only` leaves out what is not computed."""
    data = _recorded()[name]
    buffers = [SizedBuffer(size) for size in data["buffers"]]
    tensors: list[Tensor] = []
    for type_, ne, nb, op, params, flags, src, view_src, view_offs, buffer, offset, label in data[
        "tensors"
    ]:
        raw = bytes.fromhex(params.ljust(2 * PARAMS_BYTES, "0"))
        tensor = Tensor(GGMLType(type_), tuple(ne), tuple(nb), Op(op), Params(raw), name=label)
        tensors.append(tensor)
        tensor.flags = TensorFlag(flags)
        tensor.src = tuple(None if i is None else tensors[i] for i in src)
        tensor.view_src = None if view_src is None else tensors[view_src]
        tensor.view_offs = view_offs
        tensor.buffer = None if buffer is None else buffers[buffer]
        tensor.offset = offset
    nodes = [tensors[i] for i in data["nodes"]]
    if marked_only:
        nodes = [node for node in nodes if TensorFlag.COMPUTE in node.flags]
    return Graph(nodes)
