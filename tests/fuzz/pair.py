"""COMM_INIT, COMM_ALLREDUCE and COMM_FREE with another rank beside the worker, which may behave or
send too little, too much, nothing, or go.
"""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from app.ggml.tensor import new_tensor
from app.ggml.types import GGMLType
from app.rpc_backend.wire import messages as m
from app.rpc_backend.wire.constants import CAPABILITY_BYTES
from app.rpc_backend.wire.tensor import Place, to_wire
from app.rpc_backend.worker.all_reduce import ROUNDED_FROM
from tests.fuzz.caller import WAIT_S, Caller, Room
from tests.fuzz.damage import damaged_tensor
from tests.fuzz.dice import Dice
from tests.helpers.process import free_port

_COUNTS: Final = (0, 1, 33, 1000, ROUNDED_FROM, ROUNDED_FROM + 7)
_TYPES: Final = (GGMLType.F32, GGMLType.F32, GGMLType.F16, GGMLType.BF16, GGMLType.Q8_0)
_HOSTS: Final = (b"127.0.0.1", b"localhost", b"", b"\xff" * 63, b"127.0.0.1" * 7)
_FIRST_VERSION: Final = 8
_RETRY_S: Final = 0.005


def reduce(dice: Dice, link: Caller) -> None:
    """Be the client of one worker of a pair; only the tensor may change, and to the sum if the
    other rank behaves. Version 7 has no pairs.

    Raises: SessionError.
    """
    if link.version < _FIRST_VERSION:
        return
    count, type_ = dice.choice(_COUNTS), dice.choice(_TYPES)
    tensor = new_tensor(type_, (-(-count // 32) * 32 if type_ is GGMLType.Q8_0 else count,), "sum")
    room = link.take(tensor.nbytes + 64)
    own, other = (np.array(dice.choices(range(9), k=count), "<f4").tobytes() for _ in range(2))
    is_exact = type_ is GGMLType.F32 and 0 < count < ROUNDED_FROM
    start = (own if is_exact else b"").ljust(room.size, b"\x2a")
    link.call(m.SetTensor(room.whole, 0, 0), start)
    rank, port = dice.choice((0, 1)), free_port()
    behaves = dice.chance(0.5)
    n_wire = 2 * count if type_ is not GGMLType.F32 or count >= ROUNDED_FROM else 4 * count
    script = _script(dice, other if is_exact else bytes(n_wire), behaves=behaves)
    wire = to_wire(tensor, Place(room.place.handle, room.place.address))
    said = wire if behaves or dice.chance(0.3) else damaged_tensor(dice, wire, 1)
    with _other(rank, port, script):
        n_errors = link.n_errors
        link.call(_init(dice, rank, port, behaves=behaves))
        link.call(m.CommAllreduce(0, said))
        done = link.n_errors == n_errors
        if not behaves and dice.chance(0.3):
            link.call(m.CommAllreduce(0, wire))
    after = link.read(room)
    if not behaves and dice.chance(0.5):
        link.call(m.CommFree(dice.choice((0, 0, 1))))
        return
    link.call(m.CommFree(0))
    if said == wire:
        _compare(room, tensor.nbytes, start, after)
    if behaves and done and is_exact:
        total = np.frombuffer(own, "<f4") + np.frombuffer(other, "<f4")
        assert after[: tensor.nbytes] == total.tobytes(), "not the sum of both"


def _compare(room: Room, n_bytes: int, before: bytes, after: bytes) -> None:
    assert len(after) in (0, room.size)
    assert after[n_bytes:] in (b"", before[n_bytes:]), "bytes beside the tensor were written"


def _init(dice: Dice, rank: int, port: int, *, behaves: bool) -> m.CommInit:
    host = _HOSTS[0] if behaves or dice.chance(0.6) else dice.choice(_HOSTS)
    made = m.CommInit(0, rank, 2, port, host.ljust(64, b"\0"))
    if behaves or dice.chance(0.7):
        return made
    wrong = {"rank": dice.u32(), "world": dice.u32(), "port": dice.u32(), "device": dice.u32()}
    field = dice.choice(sorted(wrong))
    return replace(made, **{field: wrong[field]})  # type: ignore[arg-type]  # numbers all


@dataclass(frozen=True, slots=True)
class _Script:
    """What the other rank sends, piece by piece, and whether it resets the connection then."""

    pieces: tuple[bytes, ...]
    resets: bool = False
    is_absent: bool = False


def _script(dice: Dice, data: bytes, *, behaves: bool) -> _Script:
    plain = bytes(CAPABILITY_BYTES)
    if behaves:
        return _Script((plain, data))
    hello = dice.choice((plain, plain, dice.randbytes(CAPABILITY_BYTES), plain[:9], b""))
    cut = data[: dice.randrange(len(data) + 1)]
    rest = dice.choice((data, cut, b"", data + dice.randbytes(99), dice.randbytes(len(data))))
    return _Script((hello, rest), dice.chance(0.3), dice.chance(0.15))


@contextmanager
def _other(rank: int, port: int, script: _Script) -> Iterator[None]:
    """Be the rank that the worker is not, in a thread, for as long as the block runs."""
    end = threading.Event()
    listener = None
    if rank == 1 and not script.is_absent:
        listener = socket.create_server(("127.0.0.1", port))
        listener.settimeout(4 * WAIT_S)
    thread = threading.Thread(target=_play, args=(listener, port, script, end), name="rank")
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
        if listener is not None:
            listener.close()


def _play(listener: socket.socket | None, port: int, script: _Script, end: threading.Event) -> None:
    if script.is_absent:
        return
    with suppress(OSError):
        sock = _connect(port, end) if listener is None else listener.accept()[0]
        with sock:
            sock.settimeout(4 * WAIT_S)
            for piece in script.pieces:
                sock.sendall(piece)
            if script.resets:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                return
            while not end.is_set() and sock.recv(1 << 16):
                pass


def _connect(port: int, end: threading.Event) -> socket.socket:
    """Connect to the worker as soon as it listens.

    Raises: OSError when it never does.
    """
    deadline = time.monotonic() + 4 * WAIT_S
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), WAIT_S)
        except ConnectionRefusedError:
            if end.wait(_RETRY_S) or time.monotonic() > deadline:
                raise
