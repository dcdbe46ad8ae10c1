"""One client's socket: a thread that reads, lets the session answer, and sends.

The thread ends when the client closes, breaks the protocol, says nothing before HELLO for too long,
or is told to stop. Whatever the end, the client's memory is freed and one line in the log says how
it went.
"""

import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

from app.logs import TRACE
from app.rpc_backend.wire.constants import VERSIONS
from app.rpc_backend.worker.session import Session, SessionError

log = logging.getLogger(__name__)

_MIB: Final = 1024 * 1024


class Peer:
    """A connected client. `stop` may be called from any thread, the rest belongs to its own."""

    def __init__(
        self,
        sock: socket.socket,
        name: str,
        session: Session,
        hello_timeout_s: float,
        on_end: Callable[["Peer"], None],
    ) -> None:
        self.name = name
        self.last_active_at = time.monotonic()
        self._sock = sock
        self._session = session
        self._hello_timeout_s = hello_timeout_s
        self._on_end = on_end
        self._began_at = time.monotonic()
        self._bytes_in = 0
        self._bytes_out = 0
        self._stop_reason: str | None = None
        self.thread = threading.Thread(target=self._run, name=f"peer-{name}", daemon=True)

    @property
    def holds_buffers(self) -> bool:
        """Whether the client would lose anything by being cut off."""
        return len(self._session.state.buffers) > 0

    def stop(self, reason: str) -> None:
        """Cut the client off."""
        self._stop_reason = self._stop_reason or reason
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            log.debug("%s: already disconnected", self.name)

    def _run(self) -> None:
        reason, level = "closed by the client", logging.INFO
        try:
            self._serve()
        except SessionError as error:
            reason, level = str(error), logging.WARNING
        except TimeoutError:
            reason, level = f"no HELLO within {self._hello_timeout_s:g} s", logging.WARNING
        except OSError as error:
            reason = f"connection lost {self._session.position}: {error.strerror or error}"
        except Exception as error:
            reason, level = f"internal error: {error!r}", logging.ERROR
            log.exception("%s failed", self.name)
        finally:
            self._sock.close()
            self._session.close()
            self._on_end(self)
        self._report(self._stop_reason or reason, level)

    def _serve(self) -> None:
        self._sock.settimeout(self._hello_timeout_s)
        greeted = False
        while n := self._sock.recv_into(self._session.writable()):
            self.last_active_at = time.monotonic()
            self._bytes_in += n
            for piece in self._session.wrote(n):
                self._sock.sendall(piece)
                self._bytes_out += len(piece)
            if not greeted and self._session.has_said_hello:
                greeted = True
                self._sock.settimeout(None)
        if self._bytes_in and not self._session.is_between_requests:
            raise SessionError(f"closed by the client {self._session.position}")

    def _report(self, reason: str, level: int) -> None:
        state = self._session.state
        # A connection that sends nothing is a port check; those come by the thousand.
        log.log(
            level if self._bytes_in else TRACE,
            "%s: v%s, %.1f s, %.2f MiB in, %.2f MiB out, %d graphs, %d runs: %s",
            self.name,
            VERSIONS[state.version],
            time.monotonic() - self._began_at,
            self._bytes_in / _MIB,
            self._bytes_out / _MIB,
            state.n_graphs_sent,
            state.n_graph_runs,
            reason,
        )
