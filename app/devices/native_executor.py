"""Compiles graphs for the native core and runs them: one call per run, without the interpreter
lock.

The native device calls it. Plans are kept per graph object, the least recently used are dropped,
and those that touch a freed buffer are forgotten. One run at a time: threads and scratch memory are
shared by all plans. torch is imported when a graph has a node without a native kernel, and not
before.
"""

import ctypes
import mmap
import time
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from app.devices.native_buffer import NativeBuffer, region
from app.devices.native_compiler import NativeCompiler, is_native
from app.devices.native_plan import NativePlan, NativeSegment
from app.devices.native_weights import GroupedWeights
from app.devices.plans import Plans
from app.devices.profile import Profile
from app.devices.turns import Turns
from app.errors import GraphError, OutOfMemoryError, UnsupportedError
from app.ggml.graph import Graph
from app.ggml.ops import VIEW_OPS, Op
from app.ggml.tensor import Tensor
from app.ggml.types import GGMLType
from app.ggml.verify import verify_graph
from app.kernels.cpu.layout import Status
from app.kernels.cpu.library import NativeLibrary, RunResult, ThreadPool
from app.kernels.table import Steps

if TYPE_CHECKING:
    from app.devices.native_reference import ReferenceKernels

# Which source of a node has indices, and how many things they choose from.
_INDEXED: dict[Op, Callable[[Tensor], tuple[int, int]]] = {
    Op.GET_ROWS: lambda node: (1, node.require(0).ne[1]),
    Op.SET_ROWS: lambda node: (1, node.ne[1]),
    Op.MUL_MAT_ID: lambda node: (2, node.require(0).ne[2]),
    Op.ADD_ID: lambda node: (2, node.require(1).ne[1]),
}
_SMALLEST_SCRATCH = 1 << 20


@dataclass(slots=True)
class NativeExecutor:
    """`name` is the device's, for messages; `buffers` are those that it has now; `admit` raises
    when memory for scratch is not there. `profile`, when set, gets the time of every step.
    """

    name: str
    lib: NativeLibrary
    pool: ThreadPool
    buffers: Set[NativeBuffer]
    admit: Callable[[int], None]
    lock: Turns = field(default_factory=Turns)
    profile: Profile | None = None
    weights: GroupedWeights = field(init=False)
    _plans: Plans[NativePlan] = field(default_factory=Plans)
    _scratch: mmap.mmap | None = None
    _kernels: "ReferenceKernels | None" = None
    _runs: int = 0

    def __post_init__(self) -> None:
        self.weights = GroupedWeights(self.pool)

    def unsupported(self, nodes: Sequence[Tensor]) -> str | None:
        """Return why one of `nodes` cannot run here, or None."""
        for node in nodes:
            try:
                if node.op in VIEW_OPS or is_native(self.lib, node):
                    continue
                reason = self._reference().unsupported(node)
            except GraphError as error:
                reason = str(error)
            if reason is not None:
                return reason
        return None

    def compute(self, graph: Graph) -> None:
        """Run `graph`; one with a uid is compiled once.

        Raises: GraphError, UnsupportedError, OutOfMemoryError.
        """
        with self.lock:
            plan = self._plans.get(graph)
            if plan is None:
                plan = self._compile(graph)
            self._run(plan)

    def forget(self, buffer: NativeBuffer) -> None:
        """Drop the plans of a buffer."""
        with self.lock:
            self._plans.forget(buffer)

    def close(self) -> None:
        """Drop everything and end the threads."""
        with self.lock:
            self._plans.clear()
            self.pool.close()

    def _compile(self, graph: Graph) -> NativePlan:
        verify_graph(graph)
        compiler = NativeCompiler(
            self.lib, self.pool.n_threads, self._reference_steps, self._take_memory
        )
        plan = compiler.compile(graph)
        if not plan.buffers <= self.buffers:
            raise GraphError(
                f"{self.name}: a buffer of the graph is another device's, or was freed"
            )
        if graph.uid:
            self._plans.add(graph, plan)
        return plan

    def _run(self, plan: NativePlan) -> None:
        self._runs += 1
        plan.last_run = self._runs
        if plan.settled_in != self.weights.epoch:
            self.weights.settle(plan.grouped, plan.plain)
            plan.settled_in = self.weights.epoch
        profile = self.profile
        for segment in plan.segments:
            if isinstance(segment, NativeSegment):
                if profile is None:
                    failure = self.pool.run(segment.address, segment.count, None)
                else:
                    failure = self._timed(segment, profile)
                if failure is not None:
                    raise self._error(segment, failure)
            else:
                start = time.perf_counter()
                self._reference().run(segment.steps)
                if profile is not None:
                    name = "torch: " + " ".join(sorted(set(segment.names)))
                    profile.add(name, time.perf_counter() - start)

    def _timed(self, segment: NativeSegment, profile: Profile) -> RunResult | None:
        times = (ctypes.c_int64 * segment.count)()
        failure = self.pool.run(segment.address, segment.count, ctypes.addressof(times))
        for kind, nanoseconds in zip(segment.kinds, times, strict=True):
            profile.add(kind.name, nanoseconds * 1e-9)
        return failure

    def _error(self, segment: NativeSegment, failure: RunResult) -> GraphError:
        node = segment.nodes[failure.failed]
        what = f"{node.op.name} '{node.name}'"
        if failure.status != Status.BAD_INDEX:
            kind = segment.kinds[failure.failed].name
            return GraphError(f"{self.name}: {what}: the native kernel {kind} refused it")
        which, count = _INDEXED[node.op](node)
        low, high = _index_range(node.require(which))
        return GraphError(f"{what}: indices {low}…{high}: expected 0…{count - 1}")

    def _take_memory(self, size: int) -> tuple[int, object]:
        """Return scratch memory for a plan; all plans share it, since one runs at a time.

        Raises: OutOfMemoryError.
        """
        if self._scratch is None or len(self._scratch) < size:
            wanted = max(size, _SMALLEST_SCRATCH, 2 * len(self._scratch or b""))
            self.admit(wanted)
            try:
                self._scratch = mmap.mmap(-1, wanted, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            except OSError as error:
                raise OutOfMemoryError(f"{self.name}: {wanted} bytes of scratch asked") from error
        return ctypes.addressof(ctypes.c_char.from_buffer(self._scratch)), self._scratch

    def _reference_steps(self, nodes: Sequence[Tensor]) -> Steps:
        kernels = self._reference()
        for node in nodes:
            reason = kernels.unsupported(node)
            if reason is not None:
                raise UnsupportedError(reason)
        return kernels.compile(nodes)

    def _reference(self) -> "ReferenceKernels":
        if self._kernels is None:
            from app.devices.native_reference import ReferenceKernels

            self._kernels = ReferenceKernels(self.name, self.pool.n_threads, self.admit)
        return self._kernels


def _index_range(indices: Tensor) -> tuple[int, int]:
    buffer, start = region(indices, 0, 0)
    dtype = np.dtype(np.int64 if indices.type == GGMLType.I64 else np.int32)
    values = np.ndarray(indices.ne, dtype, buffer.mapping(), start, indices.nb)
    return int(values.min()), int(values.max())
