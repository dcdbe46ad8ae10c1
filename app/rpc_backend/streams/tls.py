"""Bytes over TLS over TCP.

Python's own TLS sockets may not be used by two threads at once and cannot send several buffers, so
the TLS state works on memory here, under a lock that is never held while the network is waited for.
What was encrypted but not taken by the socket waits in `_unsent`, at most one piece.
"""

import hashlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from app.rpc_backend.streams.plain import reset_on_close, shut
from app.rpc_backend.wire.layout import Body

_PIECE_BYTES: Final = 256 * 1024
"""Most that is encrypted at once: what the socket does not take has to be kept."""

_SMALL_BYTES: Final = 16 * 1024
"""Parts below this, a record's most, are joined: a record of its own costs more than a copy."""

_SHORTEST_WAIT_S: Final = 0.001


class TlsStream:
    """A TCP connection that speaks TLS; the contract is `base.Stream`. `handshake` comes first."""

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        host: str | None = None,
        own_digest: bytes = b"",
    ) -> None:
        """`host` is whom a client expects to meet; a worker leaves it out and gives the digest of
        its own certificate.
        """
        self.certificate_digest = own_digest
        self.has_data = False
        self._sock = sock
        self._from_net, self._to_net = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._from_net, self._to_net, server_side=host is None, server_hostname=host
        )
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._scratch = memoryview(bytearray(_PIECE_BYTES))
        self._unsent = memoryview(b"")
        self._n_sent = 0

    @property
    def has_unsent(self) -> bool:
        """Whether encrypted bytes wait for the socket."""
        return len(self._unsent) > 0

    def handshake(self, deadline: float) -> None:
        """Agree on keys before `deadline` (monotonic seconds); the other end is told why not.

        Raises: ssl.SSLError, TimeoutError, OSError.
        """
        is_done = False
        while not is_done:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._sock.settimeout(max(left, _SHORTEST_WAIT_S))
            is_done = self.go_on_with_handshake()

    def go_on_with_handshake(self) -> bool:
        """Go on as far as the bytes go that are here or that one receive gets; return whether it is
        done.

        Raises: BlockingIOError when the socket has nothing; what `handshake` does.
        """
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            self._receive()
            return False
        except ssl.SSLError:
            with suppress(OSError):
                self._flush()
            raise
        self._flush()
        certificate = self._tls.getpeercert(binary_form=True)
        if certificate is not None:
            self.certificate_digest = hashlib.sha256(certificate).digest()
        return True

    def fileno(self) -> int:
        """Return the socket's number."""
        return self._sock.fileno()

    def settimeout(self, seconds: float | None) -> None:
        """Set how long each call may wait for the socket."""
        self._sock.settimeout(seconds)

    def send(self, parts: Sequence[memoryview]) -> int:
        """Encrypt and send until the socket takes no more; the last piece may wait in part."""
        with self._sending:
            before = self._n_sent
            taken = 0
            if not self._flush():
                if self._n_sent == before:
                    raise BlockingIOError
                return 0
            for piece in _pieces(parts):
                self._encrypt(piece)
                taken += len(piece)
                if not self._flush():
                    break
            return taken

    def sendall(self, data: Body) -> None:
        """Send everything; the socket waits."""
        self.send([memoryview(data).cast("B")])

    def recv_into(self, room: memoryview) -> int:
        """Decrypt what is here, or else what the socket has."""
        limit, begin = self._sock.gettimeout(), time.monotonic()
        while (n := self._decrypt(room)) is None:
            # The socket counts from each byte anew, and a record can come in thousands of them.
            if limit and time.monotonic() - begin > limit:
                raise TimeoutError
            self._receive()
        return n

    def abort_on_close(self) -> None:
        """Make closing a reset."""
        reset_on_close(self._sock)

    def shutdown(self) -> None:
        """End both directions."""
        shut(self._sock)

    def close(self) -> None:
        """Close the socket; the wire's own frames say whether anything is missing."""
        self._sock.close()

    def _encrypt(self, piece: memoryview) -> None:
        with self._lock:
            while piece:
                piece = piece[self._tls.write(piece) :]

    def _flush(self) -> bool:
        """Send what is encrypted; return whether all of it went."""
        while True:
            if not self._unsent:
                with self._lock:
                    self._unsent = memoryview(self._to_net.read())
                if not self._unsent:
                    return True
            try:
                n = self._sock.send(self._unsent)
            except BlockingIOError:
                return False
            self._unsent = self._unsent[n:]
            self._n_sent += n

    def _receive(self) -> None:
        """Take what the socket has, or its end."""
        n = self._sock.recv_into(self._scratch)
        with self._lock:
            if n:
                self._from_net.write(self._scratch[:n])
            else:
                self._from_net.write_eof()

    def _decrypt(self, room: memoryview) -> int | None:
        """Fill `room` as far as there is something; None when the socket is needed first."""
        filled, is_over = 0, False
        with self._lock:
            try:
                while filled < len(room) and not is_over:
                    # With a buffer it is a number already; older type stubs know bytes only.
                    n = int(self._tls.read(len(room) - filled, room[filled:]))
                    filled += n
                    is_over = n == 0
            except ssl.SSLWantReadError:
                pass
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                is_over = True
            owes_answer = self._to_net.pending > 0 and not is_over
        self.has_data = filled > 0 and (is_over or filled == len(room))
        if owes_answer:
            # The other end asked for new keys.
            with self._sending:
                self._flush()
        return filled if filled or is_over else None


def _pieces(parts: Sequence[memoryview]) -> Iterator[memoryview]:
    """Cut large parts and join small neighbours."""
    small: list[memoryview] = []
    n_small = 0
    for part in parts:
        if small and (len(part) >= _SMALL_BYTES or n_small + len(part) > _PIECE_BYTES):
            yield memoryview(b"".join(small))
            small, n_small = [], 0
        if len(part) < _SMALL_BYTES:
            small.append(part)
            n_small += len(part)
        else:
            yield from (part[at : at + _PIECE_BYTES] for at in range(0, len(part), _PIECE_BYTES))
    if small:
        yield memoryview(b"".join(small))
