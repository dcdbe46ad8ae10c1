"""Which operations a kind of hardware can run, and how each is made ready to run.

A kernel is compiled once per graph node into a list of steps: functions without arguments whose
views, shapes and scratch memory are settled, so that running a graph again is one flat loop. The
executor (`app.devices.executor`) owns the loop; each folder of kernels offers one `KernelTable`.
`supports` gives the reason for a "no" and runs nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from app.errors import UnsupportedError
from app.ggml.ops import VIEW_OPS, Op
from app.ggml.tensor import Tensor

Step = Callable[[], object]
Steps = list[Step]
SupportFn = Callable[[Tensor], str | None]

ContextT = TypeVar("ContextT")


@dataclass(frozen=True, slots=True)
class Kernel(Generic[ContextT]):
    """One operation: how to compile a node, and why a node of it may not run."""

    compile: Callable[[ContextT, Tensor], Steps]
    supports: SupportFn


class KernelTable(Generic[ContextT]):
    """Operation → kernel."""

    def __init__(self, rows: Mapping[Op, Kernel[ContextT]]) -> None:
        self._rows = dict(rows)

    @property
    def ops(self) -> frozenset[Op]:
        """The operations that have a kernel."""
        return frozenset(self._rows)

    def supports(self, node: Tensor) -> str | None:
        """Return why `node` cannot run, or None when it can."""
        if node.op in VIEW_OPS:
            return None
        kernel = self._rows.get(node.op)
        if kernel is None:
            return f"{node.op.name} '{node.name}': no kernel for this operation"
        reason = kernel.supports(node)
        return None if reason is None else f"{node.op.name} '{node.name}': {reason}"

    def compile(self, context: ContextT, node: Tensor) -> Steps:
        """Return the steps that compute `node`.

        Raises: UnsupportedError, GraphError.
        """
        reason = self.supports(node)
        if reason is not None:
            raise UnsupportedError(reason)
        return self._rows[node.op].compile(context, node)
