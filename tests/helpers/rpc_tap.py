"""What crosses between a client and a worker: a proxy on loopback that notes every request and
reply.
"""

import socket
import struct
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from app.rpc_backend.wire.commands import command_by_number
from tests.helpers.fake_worker import fake_worker, read, shut

Exchange = tuple[bytes, bytes | None]


@dataclass(slots=True, eq=False)
class Tap:
    """Everything that crossed, as (request, reply) by the command's name."""

    port: int
    version: int
    seen: dict[str, list[Exchange]] = field(default_factory=dict)
    unknown: list[int] = field(default_factory=list)

    def shortest(self) -> dict[str, Exchange]:
        """The shortest request of each command, the first one of several."""
        return {name: min(rows, key=lambda row: len(row[0])) for name, rows in self.seen.items()}


@contextmanager
def tapped(worker_port: int, version: int) -> Iterator[Tap]:
    """Listen on a free port of loopback and pass everything on to the worker."""

    def pass_on(client: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", worker_port)) as worker:
            line = _Line(tap, client, worker)
            replies = threading.Thread(target=line.replies)
            replies.start()
            line.requests()
            replies.join()

    with fake_worker(pass_on) as endpoint:
        tap = Tap(int(endpoint.rpartition(":")[2]), version)
        yield tap


class _Line:
    """One connection; a thread for each direction."""

    def __init__(self, tap: Tap, client: socket.socket, worker: socket.socket) -> None:
        self._tap = tap
        self._client = client
        self._worker = worker
        self._due: deque[tuple[str, bytes]] = deque()

    def requests(self) -> None:
        try:
            while True:
                head = read(self._client, 9)
                request = head + read(self._client, struct.unpack_from("<Q", head, 1)[0])
                self._note(request)
                self._worker.sendall(request)
        except OSError:
            shut(self._worker)

    def replies(self) -> None:
        try:
            while True:
                head = read(self._worker, 8)
                reply = head + read(self._worker, struct.unpack("<Q", head)[0])
                name, request = self._due.popleft()
                self._tap.seen.setdefault(name, []).append((request, reply))
                self._client.sendall(reply)
        except OSError:
            shut(self._client)

    def _note(self, request: bytes) -> None:
        command = command_by_number(request[0], self._tap.version)
        if command is None:
            self._tap.unknown.append(request[0])
        elif command.response is None:
            self._tap.seen.setdefault(command.number.name, []).append((request, None))
        else:
            self._due.append((command.number.name, request))
