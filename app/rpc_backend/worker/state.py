"""What one client of the worker owns: its buffers, its graphs, its counters.

Made when a client connects and closed when it leaves, however it leaves; then everything that it
had is freed.
"""

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from app.devices.base import Device
from app.rpc_backend.errors import RemoteProtocolError
from app.rpc_backend.worker.access import OPEN, Access
from app.rpc_backend.worker.all_reduce import Groups
from app.rpc_backend.worker.budget import Budget
from app.rpc_backend.worker.buffers import BufferTable
from app.rpc_backend.worker.graphs import GraphStore
from app.rpc_backend.worker.lanes import Lanes
from app.rpc_backend.worker.mail import Mail
from app.rpc_backend.worker.tensor_cache import CacheWriter
from app.rpc_backend.worker.tensor_store import TensorStore

log = logging.getLogger(__name__)

_N_BESIDE: Final = 4
_MAX_NOTES: Final = 100
"""Most lines in the log about what one client could not have."""


@dataclass(slots=True)
class ClientState:
    """Owned by the thread that serves the client."""

    devices: Sequence[Device]
    version: int
    cache: TensorStore | None = None
    peer: str = "client"
    access: Access = OPEN
    budget: Budget = field(default_factory=Budget)
    proofs: tuple[bytes, bytes] | None = field(default=None, repr=False)
    """What PROVE has to show, and its answer; known from EXTEND on, for one try."""
    buffers: BufferTable = field(default_factory=BufferTable)
    graphs: GraphStore = field(init=False)
    lanes: Lanes = field(init=False)
    writer: CacheWriter | None = None
    n_graphs_sent: int = 0
    n_graph_runs: int = 0
    groups: Groups = field(default_factory=Groups)
    mail: Mail = field(default_factory=Mail)
    n_failures: int = 0
    """Commands that failed without ending the conversation."""
    _n_notes: int = 0
    _beside: ThreadPoolExecutor | None = None

    def __post_init__(self) -> None:
        self.graphs = GraphStore(self.version)
        self.lanes = Lanes(self.peer)

    def device(self, index: int) -> Device:
        """Return a device by the client's number.

        Raises: RemoteProtocolError.
        """
        if index >= len(self.devices):
            raise RemoteProtocolError(f"device {index}: this worker has {len(self.devices)}")
        return self.devices[index]

    def note(self, level: int, text: str, *values: object) -> None:
        """Log a line about the client, unless it has filled the log with enough of them."""
        self._n_notes += 1
        if self._n_notes <= _MAX_NOTES:
            log.log(level, f"%s: {text}", self.peer, *values)
        if self._n_notes == _MAX_NOTES:
            log.warning("%s: its further failures are only counted", self.peer)

    @property
    def beside(self) -> ThreadPoolExecutor:
        """Threads that restore weights beside one another."""
        if self._beside is None:
            self._beside = ThreadPoolExecutor(_N_BESIDE, f"restore-{self.peer}")
        return self._beside

    def drop_writer(self) -> None:
        """Give up what was being stored or delivered."""
        self.mail.drop_incoming()
        if self.writer is not None:
            self.writer.abandon()
            self.writer = None

    def close(self) -> None:
        """Free everything, once what runs has ended."""
        self.drop_writer()
        if self._beside is not None:
            self._beside.shutdown(cancel_futures=True)
        self.mail.stop()
        self.lanes.close()
        self.groups.close()
        self.graphs.forget_all()
        for held in self.buffers:
            self.buffers.remove(held.handle)
            try:
                held.device.free(held.buffer)
            except Exception:
                # Whatever a device raises, the other buffers are freed.
                log.exception("%s: a buffer was not freed", self.peer)
        self.mail.close()
