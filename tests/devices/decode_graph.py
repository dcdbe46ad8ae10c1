"""A llama-shaped decode graph with as many nodes as SmolLM2-135M, for measuring the executor.

`python -m tests.devices.decode_graph [tiny|full] [n_tokens]` prints the time per run and per kind
of step: tiny matrices leave only the cost of calling, full ones have SmolLM2's sizes.
"""

import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np
import torch

from app.devices.torch_device import TorchDevice
from app.ggml.builder import GraphBuilder
from app.ggml.graph import Graph
from app.ggml.op_params import AttentionParams, RopeParams
from app.ggml.ops import GluOp
from app.ggml.tensor import Tensor
from app.ggml.types import GGMLType
from tests.devices.graphs import cpu, place

F32, F16 = GGMLType.F32, GGMLType.F16
HEAD, HEADS, HEADS_KV, CELLS = 64, 9, 3, 512
KV_ROW = HEAD * HEADS_KV


@dataclass(frozen=True, slots=True)
class Sizes:
    """Widths of the model; heads and caches are SmolLM2's."""

    n_embd: int
    n_ff: int
    n_vocab: int
    type: GGMLType
    n_layer: int = 30


TINY = Sizes(32, 32, 32, F32)
FULL = Sizes(576, 1536, 49152, GGMLType.Q4_1)


class DecodeGraph:
    """Builds the graph of `n_tokens` tokens that look at `n_kv` cells."""

    def __init__(self, sizes: Sizes, n_tokens: int, n_kv: int) -> None:
        self.sizes, self.n_tokens, self.n_kv = sizes, n_tokens, n_kv
        self._b = GraphBuilder()
        self._tokens = self._b.input(GGMLType.I32, [n_tokens], "tokens")
        self._positions = self._b.input(GGMLType.I32, [n_tokens], "positions")
        self.cells = self._b.input(GGMLType.I64, [n_tokens], "cells")
        self._mask = self._b.input(F16, [n_kv, n_tokens], "mask")

    def build(self) -> Graph:
        """Return the whole graph; its last node holds the logits."""
        b, embedding = self._b, self._weight(self.sizes.n_embd, self.sizes.n_vocab)
        x = b.get_rows(embedding, self._tokens)
        for _ in range(self.sizes.n_layer):
            x = b.add(x, self._attention(self._norm(x)))
            x = b.add(x, self._feed_forward(self._norm(x)))
        return b.finish(b.mul_mat(embedding, self._norm(x)))

    def _weight(self, k: int, n: int) -> Tensor:
        return self._b.input(self.sizes.type, [k, n], "weight")

    def _norm(self, x: Tensor) -> Tensor:
        scale = self._b.input(F32, [self.sizes.n_embd], "norm")
        return self._b.mul(self._b.rms_norm(x, 1e-5), scale)

    def _attention(self, x: Tensor) -> Tensor:
        b, n = self._b, self.n_tokens
        rope = RopeParams(HEAD, 2, 2048, 10000.0, 1.0, 0.0, 1.0, 32.0, 1.0)
        q = b.mul_mat(self._weight(self.sizes.n_embd, HEAD * HEADS), x)
        k = b.mul_mat(self._weight(self.sizes.n_embd, KV_ROW), x)
        v = b.mul_mat(self._weight(self.sizes.n_embd, KV_ROW), x)
        q = b.rope(b.reshape(q, HEAD, HEADS, n), self._positions, None, rope)
        k = b.rope(b.reshape(k, HEAD, HEADS_KV, n), self._positions, None, rope)
        keys, values = self._stored(b.reshape(k, KV_ROW, n)), self._stored(v)
        query = b.permute(q, 0, 2, 1, 3)
        mixed = b.flash_attn(query, keys, values, self._mask, AttentionParams(HEAD**-0.5))
        rows = b.reshape(mixed, HEAD * HEADS, n)
        return b.mul_mat(self._weight(HEAD * HEADS, self.sizes.n_embd), rows)

    def _stored(self, rows: Tensor) -> Tensor:
        """Write rows to a cache and return its cells by head."""
        b, cache = self._b, self._b.input(F16, [KV_ROW, CELLS], "cache")
        b.set_rows(cache, rows, self.cells)
        heads = b.view(cache, [HEAD, HEADS_KV, self.n_kv], [2 * HEAD, 2 * KV_ROW])
        return b.permute(heads, 0, 2, 1, 3)

    def _feed_forward(self, x: Tensor) -> Tensor:
        b, n_embd, n_ff = self._b, self.sizes.n_embd, self.sizes.n_ff
        gate = b.mul_mat(self._weight(n_embd, n_ff), x)
        up = b.mul_mat(self._weight(n_embd, n_ff), x)
        return b.mul_mat(self._weight(n_ff, n_embd), b.glu_split(gate, up, GluOp.SWIGLU))


def ready(device: TorchDevice, sizes: Sizes, n_tokens: int, n_kv: int) -> Graph:
    """Build, place and run the graph once."""
    model = DecodeGraph(sizes, n_tokens, n_kv)
    graph = model.build()
    place(device, graph)
    device.set_tensor(model.cells, np.arange(n_tokens, dtype=np.int64).tobytes())
    device.compute(graph)
    return graph


def best_cpu_seconds(device: TorchDevice, graph: Graph, runs: int) -> float:
    """Return the least processor time of this thread for one run: other load disturbs it least."""
    times = []
    for _ in range(runs):
        start = time.thread_time()
        device.compute(graph)
        times.append(time.thread_time() - start)
    return min(times)


def by_kind(device: TorchDevice, graph: Graph, runs: int) -> list[tuple[str, int, float]]:
    """Return name, number per run and seconds per run of each kind of step, slowest first."""
    plan = device._executor._plans[graph]
    seconds: dict[str, float] = defaultdict(float)
    count: Counter[str] = Counter()
    with torch.inference_mode():
        for _ in range(runs):
            for step in plan.steps:
                function = getattr(step, "func", step)
                name = getattr(function, "__qualname__", str(function))
                start = time.perf_counter()
                step()
                seconds[name] += time.perf_counter() - start
                count[name] += 1
    slowest = sorted(seconds.items(), key=lambda item: -item[1])
    return [(name, count[name] // runs, each / runs) for name, each in slowest]


def main() -> None:
    """Print the figures."""
    sizes = FULL if "full" in sys.argv else TINY
    n_tokens = int(sys.argv[-1]) if sys.argv[-1].isdigit() else 1
    torch.set_num_threads(1)
    device = cpu()
    graph = ready(device, sizes, n_tokens, max(256, n_tokens))
    runs = 50 if n_tokens == 1 else 3
    seconds = best_cpu_seconds(device, graph, runs)
    sys.stdout.write(f"{1000 * seconds:.2f} ms of processor time per run of {n_tokens} tokens\n")
    for name, number, each in by_kind(device, graph, runs):
        sys.stdout.write(f"{1000 * each:9.3f} ms {number:5d} × {name}\n")


if __name__ == "__main__":
    main()
