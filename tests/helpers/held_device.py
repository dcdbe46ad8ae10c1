"""A device without arithmetic whose graphs end when a test lets them."""

import threading
from typing import Final

from app.devices.base import Bytes
from app.devices.null import NullDevice
from app.errors import GraphError
from app.ggml.graph import Graph
from app.ggml.tensor import Tensor

_LIMIT_S: Final = 60


class HeldDevice(NullDevice):
    """Computing waits for `gate`, and fails while `broken`; `log` has what was done, in order."""

    def __init__(self, name: str = "HELD0") -> None:
        super().__init__(name, total=1 << 24)
        self.gate = threading.Event()
        self.begun = threading.Semaphore(0)
        self.log: list[str] = []
        self.broken = False

    def wait_begun(self) -> None:
        """Wait until one more graph has begun."""
        assert self.begun.acquire(timeout=_LIMIT_S)

    def compute(self, graph: Graph) -> None:
        """Wait for the gate, then fail or note the graph."""
        self.begun.release()
        assert self.gate.wait(_LIMIT_S)
        if self.broken:
            raise GraphError("the graph broke")
        self.log.append(f"compute {graph.nodes[-1].name}")
        super().compute(graph)

    def set_tensor(self, tensor: Tensor, data: Bytes, offset: int = 0) -> None:
        """Note a write."""
        self.log.append(f"set {tensor.name}")
        super().set_tensor(tensor, data, offset)
