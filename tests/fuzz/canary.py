"""Clients that behave: their buffers, kept graphs and answers stay what they were, whatever other
clients do to the same device. `Canary` lives beside a session in this process, `Witness` talks to a
worker's port.
"""

import random

from app.devices.base import BufferUsage, Device
from app.ggml.builder import GraphBuilder
from app.ggml.graph import Graph
from app.ggml.op_params import AttentionParams, RopeParams
from app.ggml.ops import GluOp, UnaryOp
from app.ggml.tensor import Tensor
from app.ggml.types import GGMLType
from app.rpc_backend.client.connect import open_workers
from app.rpc_backend.client.connection import ClientSettings
from app.rpc_backend.wire import messages as m
from app.rpc_backend.wire.graph_codec import describe_graph
from app.rpc_backend.wire.tensor import Place, WireTensor
from tests.helpers.rpc_link import MemoryLink

F32, F16, I32, I64 = GGMLType.F32, GGMLType.F16, GGMLType.I32, GGMLType.I64


def sample_graph() -> Graph:
    """Most operations that a stock client sends, small."""
    b = GraphBuilder()
    table = b.input(GGMLType.Q4_0, (64, 8), "table")
    x = b.get_rows(table, b.input(I32, (4,), "tokens"))
    x = b.mul(b.rms_norm(x, 1e-5), b.input(F32, (64,), "norm"))
    q = b.mul_mat(b.input(GGMLType.Q8_0, (64, 64), "wq"), x)
    rope = RopeParams(16, 0, 128, 10000.0, 1.0, 0.0, 1.0, 32.0, 1.0)
    q = b.rope(b.reshape(q, 16, 4, 4), b.input(I32, (4,), "pos"), None, rope)
    cache = b.input(F16, (32, 8), "cache")
    rows = b.reshape(b.scale(b.view(x, (32, 4), (256,)), 0.5), 32, 4)
    cache = b.set_rows(cache, rows, b.input(I64, (4,), "cells"))
    k = b.permute(b.reshape(cache, 16, 2, 8), 0, 2, 1, 3)
    mask = b.input(F16, (8, 4), "mask")
    attention = b.flash_attn(b.permute(q, 0, 2, 1, 3), k, k, mask, AttentionParams(0.25))
    x = b.add(b.reshape(attention, 64, 4), x)
    scores = b.soft_max(b.mul_mat(x, x), None, 1.0)
    x = b.glu_split(x, b.unary(x, UnaryOp.SILU), GluOp.SWIGLU)
    wide = b.cont(b.transpose(b.cast(x, F16)))
    return b.finish(scores, wide)


def lay_out(graph: Graph) -> tuple[dict[int, int], int]:
    """Return the place of each tensor by identity, none sharing memory, and the bytes of all."""
    size = 0
    offsets: dict[int, int] = {}
    for tensor in graph.tensors():
        if tensor.view_src is None:
            offsets[id(tensor)] = size
            size += -(-tensor.nbytes // 64) * 64
        else:
            offsets[id(tensor)] = offsets[id(tensor.view_src)] + tensor.view_offs
    return offsets, size


def fill(leaf: Tensor) -> bytes:
    """Return values that suit a leaf of the sample graph."""
    rng = random.Random(leaf.name)
    if leaf.type in (I32, I64):
        width = 4 if leaf.type == I32 else 8
        return b"".join(i.to_bytes(width, "little") for i in range(leaf.ne[0]))
    if leaf.type == F32:
        return b"\x00\x00\x80\x3f" * leaf.n_elements
    if leaf.type == F16:
        return bytes(leaf.nbytes)
    # A scale of 0.03 before each block; the quants may be anything.
    block = 18 if leaf.type == GGMLType.Q4_0 else 34
    return b"".join(b"\xae\x27" + rng.randbytes(block - 2) for _ in range(leaf.nbytes // block))


class Canary:
    """Its own client of `device`; keeps the answer of its first run."""

    def __init__(self, device: Device) -> None:
        self._link = MemoryLink([device])
        self._graph = sample_graph()
        self._offsets, size = lay_out(self._graph)
        self._place = self._link.alloc(size)
        for leaf in self._graph.leaves():
            self._link.call(m.SetTensor(self._wire(leaf), 0, 0), fill(leaf))
        message = describe_graph(self._graph, 0, self._at)
        self._uid = message.uid
        self._link.call(message)
        self._answer = self._read()

    def check(self) -> None:
        """Run again and compare to the bit."""
        self._link.call(m.GraphRecompute(0, self._uid))
        assert self._read() == self._answer, "another client's answer has changed"

    def close(self) -> None:
        """Leave."""
        self._link.session.close()

    def _at(self, tensor: Tensor) -> Place:
        return Place(self._place.handle, self._place.address + self._offsets[id(tensor)])

    def _wire(self, tensor: Tensor) -> WireTensor:
        return self._link.put(tensor, self._place, self._offsets[id(tensor)])

    def _read(self) -> list[bytes]:
        nodes = list(self._graph.compute_nodes())
        reads = [self._link.call(m.GetTensor(self._wire(n), 0, n.nbytes)) for n in nodes]
        return [bytes(read) for read in reads if isinstance(read, bytearray)]


class Witness:
    """The same over a socket."""

    TIMEOUT_S = 60.0

    def __init__(self, port: int, settings: ClientSettings | None = None) -> None:
        (self._device,) = open_workers([f"127.0.0.1:{port}"], settings)
        self._graph = sample_graph()
        offsets, size = lay_out(self._graph)
        buffer = self._device.alloc(size, BufferUsage.ANY)
        for tensor in self._graph.tensors():
            tensor.buffer, tensor.offset = buffer, offsets[id(tensor)]
        for leaf in self._graph.leaves():
            self._device.set_tensor(leaf, fill(leaf))
        self._answer = self._run()

    def check(self) -> None:
        """Run again and compare to the bit."""
        assert self._run() == self._answer, "another client's answer has changed"

    def close(self) -> None:
        """Leave."""
        self._device.close()

    def _run(self) -> list[bytes]:
        self._device.compute(self._graph)
        nodes = list(self._graph.compute_nodes())
        reads = [self._device.get_tensor(node, 0, node.nbytes) for node in nodes]
        return [read.result(self.TIMEOUT_S) for read in reads]
