"""What a connection's two ends need of the thing that carries their bytes.

Each kind of transport is one class: plain TCP, TLS, and room for others. The client's end never
waits (`settimeout(0)`) and polls `fileno()`, the worker's end waits with time limits. One thread
may send while another receives; any thread may shut down.
"""

from collections.abc import Sequence
from typing import Protocol

from app.rpc_backend.wire.layout import Body


class Stream(Protocol):
    """A connection, both ways; every call may raise OSError when it is broken."""

    @property
    def certificate_digest(self) -> bytes:
        """The sha256 of the worker's certificate (DER) as this end knows it, empty without TLS."""

    @property
    def has_data(self) -> bool:
        """Whether bytes have arrived that polling does not know of."""

    @property
    def has_unsent(self) -> bool:
        """Whether bytes that `send` took wait here until it is called again."""

    def fileno(self) -> int:
        """Return what can be polled."""

    def settimeout(self, seconds: float | None) -> None:
        """Set how long each call may wait: 0 for not at all, None for ever."""

    def send(self, parts: Sequence[memoryview]) -> int:
        """Send the head of `parts` and return how many bytes were taken; without parts only what
        was left unsent.

        Raises: BlockingIOError when nothing could be sent.
        """

    def sendall(self, data: Body) -> None:
        """Send everything, waiting."""

    def recv_into(self, room: memoryview) -> int:
        """Receive up to the length of `room` bytes and return how many, 0 at the end.

        Raises: BlockingIOError, TimeoutError when there is nothing.
        """

    def abort_on_close(self) -> None:
        """Make closing a reset instead of a farewell: a stock worker that later writes its reply to
        a peer that said goodbye dies of SIGPIPE, after a reset it only notes an error.
        """

    def shutdown(self) -> None:
        """End both directions and wake whoever waits."""

    def close(self) -> None:
        """Give the connection back."""
