"""A worker that lies, in threads of this process: a real session whose answers are distorted on
their way. With TLS also what is on the wire is damaged.
"""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final

from app.devices.null import NullDevice
from app.errors import LlamaServeError
from app.rpc_backend.streams.base import Stream
from app.rpc_backend.streams.context import Certificate
from app.rpc_backend.worker.access import OPEN, Access
from app.rpc_backend.worker.all_reduce import Groups
from app.rpc_backend.worker.door import admit
from app.rpc_backend.worker.link import LinkLimits
from app.rpc_backend.worker.mail import Mail
from tests.fuzz.census import CountedSession
from tests.fuzz.dice import Dice
from tests.fuzz.lies import CLOSE, PAUSE, distorted
from tests.helpers.fake_worker import fake_worker

STALL_S: Final = 0.15
WAIT_S: Final = 60.0
_BRIEF_S: Final = 0.05
_TOTAL: Final = 1 << 24
# How often an answer is changed. Without a change now and then no round would come far.
_DAMAGE: Final = (0.0, 0.02, 0.1, 0.5)


@dataclass(frozen=True, slots=True)
class Manner:
    """How it greets: its protocol version, a secret, a certificate."""

    version: int
    access: Access = OPEN
    tls: Certificate | None = None


@contextmanager
def liar(dice: Dice, manner: Manner) -> Iterator[str]:
    """Listen for clients, whose number is the client's choice; yield the endpoint."""
    end = threading.Event()
    with fake_worker(lambda sock: _lie(sock, Dice(dice.u64()), manner, end)) as endpoint:
        try:
            yield endpoint
        finally:
            end.set()


def _lie(sock: socket.socket, dice: Dice, manner: Manner, end: threading.Event) -> None:
    with suppress(OSError, LlamaServeError), sock:
        sock.settimeout(WAIT_S)
        if manner.tls is not None and dice.chance(0.2):
            sock.sendall(dice.randbytes(dice.randrange(1, 300)))
        stream = admit(sock, manner.tls, time.monotonic() + STALL_S)
        if stream is None:
            return
        access = replace(manner.access, certificate=stream.certificate_digest)
        session = CountedSession([NullDevice(total=_TOTAL)], manner.version, access=access)
        session.state.groups = Groups(limits=LinkLimits(_BRIEF_S, _BRIEF_S, _BRIEF_S))
        session.state.mail = Mail(timeout_s=_BRIEF_S)
        try:
            _serve(sock, stream, session, dice, end)
        finally:
            session.close()


def _serve(
    sock: socket.socket, stream: Stream, session: CountedSession, dice: Dice, end: threading.Event
) -> None:
    damage, held = dice.choice(_DAMAGE), b""
    stream.settimeout(WAIT_S)
    while n := stream.recv_into(session.writable()):
        for answer in session.wrote(n):
            pieces, held = distorted(dice, damage, bytes(answer), held, session.last)
            for piece in pieces:
                if piece is CLOSE:
                    return
                if piece == PAUSE:
                    end.wait(dice.choice((0.01, 2 * STALL_S)))
                if stream.certificate_digest and dice.chance(damage / 4):
                    # A record that nobody sealed.
                    sock.sendall(dice.choice((b"\x17\x03\x03\0\x20", b"")) + dice.randbytes(40))
                stream.sendall(piece)
