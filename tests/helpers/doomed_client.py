"""Main hosts that are killed: a program that forks one for each line it reads.

A line names a phase. The child opens the worker, loads weights, and computes without end; it prints
its number when it has come to the phase, and goes on until somebody kills it. Forking spares every
client the imports.
"""

import os
import sys
from itertools import count
from typing import Final

from app.devices.base import BufferUsage
from app.ggml.tensor import Tensor, new_tensor
from app.ggml.types import GGMLType
from app.rpc_backend.client.connect import open_workers
from tests.fuzz.canary import fill, lay_out, sample_graph

PHASES: Final = ("connected", "allocated", "loading", "computing")
WEIGHT_BYTES: Final = 1 << 20
N_WEIGHTS: Final = 8
GRAPHS: Final = 3


def live(port: int, doom: str) -> None:
    """Be one client; never returns."""

    def reach(phase: str) -> None:
        if phase == doom:
            os.write(1, f"{os.getpid()}\n".encode("ascii"))

    (device,) = open_workers([f"127.0.0.1:{port}"])
    reach("connected")
    weights = [new_tensor(GGMLType.I8, (WEIGHT_BYTES,), f"w{i}") for i in range(N_WEIGHTS)]
    buffer = device.alloc(WEIGHT_BYTES * N_WEIGHTS, BufferUsage.WEIGHTS)
    graph = sample_graph()
    offsets, size = lay_out(graph)
    room = device.alloc(size, BufferUsage.ANY)
    reach("allocated")
    for i, weight in enumerate(weights):
        weight.buffer, weight.offset = buffer, i * WEIGHT_BYTES
        device.set_tensor(weight, os.urandom(WEIGHT_BYTES))
        if i == N_WEIGHTS // 2:
            reach("loading")

    def put(tensor: Tensor) -> None:
        tensor.buffer, tensor.offset = room, offsets[id(tensor)]

    for tensor in graph.tensors():
        put(tensor)
    for leaf in graph.leaves():
        device.set_tensor(leaf, fill(leaf))
    for n in count():
        device.compute(graph)
        device.get_tensor(graph.nodes[-1], 0, 4).result(60)
        if n == GRAPHS:
            reach("computing")


def main() -> int:
    """Fork a client per line; say "gone" when it is."""
    port = int(sys.argv[1])
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            live(port, line.strip())
        os.waitpid(pid, 0)
        os.write(1, b"gone\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
