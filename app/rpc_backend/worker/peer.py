"""One client's connection: a thread that reads, lets the session answer, and sends.

What fails while that thread waits for the client is told at once, by the thread in which it failed.
The thread ends when the client closes, breaks the protocol, is not through with TLS, HELLO and the
secret in time, or is told to stop. Whatever the end, the client's memory is freed and one line in
the log says how it went.
"""

import logging
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from app.logs import TRACE
from app.rpc_backend.streams.base import Stream
from app.rpc_backend.streams.context import Certificate
from app.rpc_backend.streams.plain import shut
from app.rpc_backend.wire.constants import VERSIONS
from app.rpc_backend.wire.layout import Body
from app.rpc_backend.worker.door import NotAdmittedError, admit, remaining
from app.rpc_backend.worker.refusals import Refusals
from app.rpc_backend.worker.session import Session, SessionError

log = logging.getLogger(__name__)

_MIB: Final = 1024 * 1024


class Peer:
    """A connected client. Any thread may `stop` it or `tell_failures`."""

    def __init__(
        self,
        sock: socket.socket,
        name: str,
        session: Session,
        tls: Certificate | None,
        hello_timeout_s: float,
        on_end: Callable[["Peer"], None],
        refusals: Refusals,
    ) -> None:
        self.name = name
        self.last_active_at = time.monotonic()
        self._sock = sock
        self._session = session
        self._tls = tls
        self._hello_timeout_s = hello_timeout_s
        self._on_end = on_end
        self._refusals = refusals
        self._began_at = time.monotonic()
        self._was_heard = False
        self._was_served = False
        self._bytes_in = 0
        self._bytes_out = 0
        self._stop_reason: str | None = None
        self._stream: Stream | None = None
        self._sending = threading.Lock()
        self.thread = threading.Thread(target=self._run, name=f"peer-{name}", daemon=True)

    @property
    def is_admitted(self) -> bool:
        """Whether the client is through the greeting, the secret included."""
        return self._session.has_said_hello

    @property
    def holds_buffers(self) -> bool:
        """Whether the client would lose anything by being cut off."""
        return len(self._session.state.buffers) > 0

    def has_left(self) -> bool:
        """Whether the client has hung up or is being cut off, for a handler that waits for somebody
        else.
        """
        # The thread that serves the client may close the socket meanwhile.
        number = self._sock.fileno()
        if self._stop_reason is not None or number < 0:
            return True
        poller = select.poll()
        # Without the option, which is Linux's, only a broken connection counts.
        poller.register(number, getattr(select, "POLLRDHUP", 0))
        return bool(poller.poll(0))

    def stop(self, reason: str) -> None:
        """Cut the client off."""
        self._stop_reason = self._stop_reason or reason
        shut(self._sock)

    def tell_failures(self) -> None:
        """Say what there is to say, unless another thread is sending: that one looks afterwards."""
        while self._session.has_late_failures and self._sending.acquire(blocking=False):
            try:
                self._send(self._session.late_failures())
            except OSError as error:
                log.debug("%s: a failure could not be told: %s", self.name, error)
            except SessionError as error:
                self.stop(str(error))
            finally:
                self._sending.release()

    def _run(self) -> None:
        try:
            reason, level = self._serve_to_the_end()
            self._report(self._stop_reason or reason, level)
        finally:
            self._on_end(self)

    def _serve_to_the_end(self) -> tuple[str, int]:
        """Serve and clean up; return how it ended, and the level of that."""
        reason, level = "closed by the client", logging.INFO
        try:
            self._serve()
        except NotAdmittedError as error:
            # It never became a client, so the line about clients would only be a port check's.
            reason = str(error)
            self._refusals.tell(logging.WARNING, "%s: %s", self.name, reason)
        except SessionError as error:
            reason, level = str(error), logging.WARNING
        except OSError as error:
            reason = f"connection lost {self._session.position}: {error.strerror or error}"
            # The system's own limits, which have a number, may end any connection.
            if isinstance(error, TimeoutError) and error.errno is None:
                reason = f"its greeting was not complete after {self._hello_timeout_s:g} s"
                level = logging.WARNING
        except Exception as error:
            reason, level = f"internal error: {error!r}", logging.ERROR
            log.exception("%s failed", self.name)
        finally:
            # Another thread may be telling of a failure; closing alone would not wake it.
            shut(self._sock)
            self._sock.close()
            self._session.close()
        return reason, level

    def _serve(self) -> None:
        deadline = self._began_at + self._hello_timeout_s
        stream = admit(self._sock, self._tls, deadline)
        if stream is None:
            return
        self._was_heard, self._stream = True, stream
        state = self._session.state
        state.access = replace(state.access, certificate=stream.certificate_digest)
        while n := stream.recv_into(self._session.writable()):
            self.last_active_at = time.monotonic()
            self._bytes_in += n
            with self._sending:
                self._send(self._session.wrote(n))
            self.tell_failures()
            if not self._was_served:
                self._was_served = self._session.has_said_hello
                stream.settimeout(None if self._was_served else remaining(deadline))
        if self._bytes_in and not self._session.is_between_requests:
            raise SessionError(f"closed by the client {self._session.position}")
        if self._session.has_only_greeted and self._stop_reason is None:
            raise SessionError(
                f"closed by the client when it heard v{VERSIONS[state.version]}: "
                "a stock one speaks only its own version (--protocol)"
            )

    def _send(self, pieces: Iterator[Body]) -> None:
        assert self._stream is not None
        for piece in pieces:
            self._stream.sendall(piece)
            self._bytes_out += len(piece)

    def _report(self, reason: str, level: int) -> None:
        state = self._session.state
        is_stranger = self._was_heard and not self._was_served
        say = self._refusals.tell if is_stranger else log.log
        # A connection that sends nothing is a port check; those come by the thousand.
        say(
            level if self._was_heard else TRACE,
            "%s: %s v%s%s, %.1f s, %.2f MiB in, %.2f MiB out, %d graphs, %d runs%s: %s",
            self.name,
            "llama-serve" if self._session.is_extended else "stock client",
            VERSIONS[state.version],
            " over TLS" if state.access.certificate else "",
            time.monotonic() - self._began_at,
            self._bytes_in / _MIB,
            self._bytes_out / _MIB,
            state.n_graphs_sent,
            state.n_graph_runs,
            f", {state.n_failures} failures" if state.n_failures else "",
            reason,
        )
