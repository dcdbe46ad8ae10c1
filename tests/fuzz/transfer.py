"""Reads and writes of every kind in one buffer, mostly of ranges that exist, against the same done
to plain bytes here.
"""

from collections.abc import Callable
from typing import Final

from app.rpc_backend.wire import messages as m
from tests.fuzz.caller import Caller, Room
from tests.fuzz.dice import Dice

_SIZES: Final = (64, 1000, 4096, 300_000)
_HAS_RECTANGLES: Final = 8


class _Mirror:
    """A buffer, and what must be in it."""

    def __init__(self, dice: Dice, link: Caller) -> None:
        self.dice = dice
        self.link = link
        self.room: Room = link.take(dice.choice(_SIZES))
        self.bytes = bytearray(self.room.size)
        self._call(m.SetTensor(self.room.whole, 0, 0), bytes(self.bytes))

    def write(self) -> None:
        at, n = self._range()
        data = self.dice.randbytes(n)
        if self._call(m.SetTensor(self.room.whole, self.dice.choice((0, 1)), at), data):
            self._put(at, data)

    def fill(self) -> None:
        (at, n), value = self._range(), self.dice.randrange(256)
        if self._call(m.MemsetTensor(self.room.whole, at, n, value)):
            self._put(at, bytes([value]) * n)

    def clear(self) -> None:
        value = self.dice.randrange(256)
        if self._call(m.BufferClear(self.room.place.handle, value)):
            self.bytes[:] = bytes([value]) * len(self.bytes)

    def copy(self) -> None:
        (at, n), other = self._range(), self._range()[0]
        if at + n > self.room.size or not n:
            return
        source, target = self.room.part(n, at), self.room.part(n, other)
        if self._call(m.CopyTensor(source, target)):
            self._put(other, bytes(self.bytes[at : at + n]))

    def write_rectangle(self) -> None:
        at, n, copies, stride = self._rectangle()
        data = self.dice.randbytes(n * copies) if n * copies < 1 << 20 else b"?"
        if self._call(m.SetTensor2D(self.room.whole, at, n, copies, stride), data):
            for i in range(copies):
                self._put(at + i * stride, data[i * n : (i + 1) * n])

    def read_rectangle(self) -> None:
        at, n, copies, stride = self._rectangle()
        data = self.link.call(m.GetTensor2D(self.room.whole, at, n, copies, stride))
        if isinstance(data, bytes):
            parts = [self.bytes[at + i * stride :][:n] for i in range(copies)]
            assert data == b"".join(parts), "a rectangle of something else"

    def compare(self) -> None:
        """All of it, once all is done."""
        assert self.link.read(self.room) in (b"", bytes(self.bytes)), "not what was written"

    def _call(self, message: m.Message, data: bytes = b"") -> bool:
        """Ask for something; return whether it was done."""
        n_errors = self.link.n_errors
        self.link.call(message, data)
        return self.link.n_errors == n_errors

    def _put(self, at: int, data: bytes) -> None:
        assert at + len(data) <= len(self.bytes) or not data, "a write past the end was accepted"
        if data:
            self.bytes[at : at + len(data)] = data

    def _range(self) -> tuple[int, int]:
        dice, whole = self.dice, self.room.size
        if dice.chance(0.1):
            return dice.size(whole), min(dice.size(whole), 1 << 20)
        at = dice.randrange(whole + 1)
        return at, dice.choice((0, 1, whole - at, dice.randrange(whole - at + 1)))

    def _rectangle(self) -> tuple[int, int, int, int]:
        """Offset, size, number and distance of pieces."""
        dice, whole = self.dice, self.room.size
        copies = dice.choice((0, 1, 2, 3, 7))
        stride = dice.randrange(1, whole // max(copies, 1) + 1)
        n = dice.choice((0, 1, stride, dice.randrange(stride + 1)))
        span = n + (copies - 1) * stride if copies else 0
        fields = [dice.randrange(whole - span + 1), n, copies, stride]
        if dice.chance(0.15):
            fields[dice.randrange(4)] = dice.size(whole)
        return fields[0], fields[1], min(fields[2], 1 << 12), fields[3]


def transfer(dice: Dice, link: Caller) -> None:
    """Do a few things to one buffer.

    Raises: SessionError, HasEndedError.
    """
    mirror = _Mirror(dice, link)
    ways: list[Callable[[], None]] = [mirror.write, mirror.fill, mirror.clear, mirror.copy]
    if link.version >= _HAS_RECTANGLES:
        ways += [mirror.write_rectangle, mirror.read_rectangle] * 2
    for _ in range(dice.randint(1, 6)):
        dice.choice(ways)()
    mirror.compare()
