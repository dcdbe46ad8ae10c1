"""Compiles a graph into a flat list of steps and runs it again and again.

The device calls it. All views, scratch memory and shapes are settled when the graph is compiled; a
run is one loop over functions without arguments. Every node is checked before the first kernel
runs. Plans are kept per graph object, the least recently used are dropped, and those that touch a
freed buffer are forgotten. One run at a time: the scratch memory is shared by all plans.
"""

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field

import torch

from app.devices.compiler import Compiler, Plan
from app.devices.plans import Plans
from app.devices.scratch import Scratch
from app.devices.torch_buffer import TorchBuffer
from app.devices.torch_errors import translated
from app.devices.turns import Turns
from app.devices.weight_cache import WeightCache
from app.errors import GraphError
from app.ggml.graph import Graph
from app.ggml.tensor import Tensor
from app.ggml.verify import verify_graph
from app.kernels.table import KernelTable
from app.kernels.torch_ref.context import Context


@dataclass(slots=True)
class Executor:
    """`name` is the device's, for messages; `buffers` are those that it has now; `admit` raises
    when memory for scratch is not there.
    """

    name: str
    device: torch.device
    table: KernelTable[Context]
    weights: WeightCache
    buffers: Set[TorchBuffer]
    admit: Callable[[int], None]
    lock: Turns = field(default_factory=Turns)
    _plans: Plans[Plan] = field(default_factory=Plans)
    _node_scratch: Scratch = field(init=False)
    _run_scratch: Scratch = field(init=False)

    def __post_init__(self) -> None:
        self._node_scratch = Scratch(self.device, self.admit)
        self._run_scratch = Scratch(self.device, self.admit)

    def unsupported(self, nodes: Sequence[Tensor]) -> str | None:
        """Return why one of `nodes` cannot run here, or None."""
        for node in nodes:
            try:
                reason = self.table.supports(node)
            except GraphError as error:
                reason = str(error)
            if reason is not None:
                return reason
        return None

    def compute(self, graph: Graph) -> None:
        """Run `graph`; one with a uid is compiled once.

        Raises: GraphError, UnsupportedError, OutOfMemoryError, DeviceLostError.
        """
        with self.lock, torch.inference_mode(), translated(self.name):
            plan = self._plans.get(graph)
            if plan is None:
                plan = self._compile(graph)
            self._run(plan)

    def forget(self, buffer: TorchBuffer) -> None:
        """Drop the plans and the decoded weights of a buffer."""
        with self.lock:
            self._plans.forget(buffer)
            self.weights.drop(buffer)

    def close(self) -> None:
        """Drop everything."""
        with self.lock:
            self._plans.clear()

    def _compile(self, graph: Graph) -> Plan:
        verify_graph(graph)
        self._node_scratch.reset()
        self._run_scratch.reset()
        compiler = Compiler(
            self.device, self.table, self.weights, self._node_scratch, self._run_scratch
        )
        plan = compiler.compile(graph)
        if not plan.buffers <= self.buffers:
            raise GraphError(
                f"{self.name}: a buffer of the graph is another device's, or was freed"
            )
        if graph.uid:
            self._plans.add(graph, plan)
        return plan

    def _run(self, plan: Plan) -> None:
        weights = self.weights
        weights.run += 1
        plan.last_run = weights.run
        for buffer, ranges in plan.written.items():
            weights.invalidate_all(buffer, ranges)
        for step in plan.steps:
            step()
