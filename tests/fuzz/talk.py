"""Requests at random, from the protocol's own table of commands: a new command comes in by itself.

Fields are filled by their type and name: handles and tensors mostly of buffers that exist, sizes
that mostly fit.
"""

import dataclasses
import typing
from collections.abc import Callable
from typing import Final

from app.errors import LlamaServeError
from app.ggml.tensor import MAX_SRC, Tensor, contiguous_strides
from app.ggml.types import TRAITS, GGMLType
from app.rpc_backend.wire.commands import COMMANDS, Command, Tail
from app.rpc_backend.wire.constants import Cmd
from app.rpc_backend.wire.framing import REQUEST_HEADER
from app.rpc_backend.wire.messages import Message
from app.rpc_backend.wire.tensor import NULL_TENSOR, Place, WireTensor, to_wire
from tests.fuzz.caller import Room
from tests.fuzz.damage import damaged_tensor
from tests.fuzz.dice import Dice

# COMM_INIT makes a worker wait for another one and is sent where there is one (`pair.py`).
_NOT_HERE: Final = {Cmd.HELLO, Cmd.GRAPH_COMPUTE, Cmd.COMM_INIT}
_LARGEST_DATA: Final = 1 << 16


def request(dice: Dice, version: int, rooms: list[Room]) -> bytes:
    """Return one framed request with its data, mostly well formed."""
    rows = [c for c in COMMANDS if version in c.versions and c.number not in _NOT_HERE]
    command = dice.choice(rows)
    body = _body(dice, command, rooms)
    data = b""
    if command.tail is Tail.DATA:
        data = dice.randbytes(dice.choice((0, 1, 4, 64, dice.randrange(_LARGEST_DATA))))
    number, length = int(command.number), len(body) + len(data)
    if dice.chance(0.04):
        length = dice.choice((length + 1, max(length - 1, 0), dice.u64()))
    if dice.chance(0.02):
        number = dice.randrange(256)
    frame = REQUEST_HEADER.pack(number, length) + body + data
    return dice.damaged(frame) if dice.chance(0.1) else frame


def _body(dice: Dice, command: Command, rooms: list[Room]) -> bytes:
    while True:
        message = _message(dice, command.message, rooms)
        try:
            return command.request.pack(message)
        except LlamaServeError:  # a number that is too wide for its field
            continue


def _message(dice: Dice, kind: type, rooms: list[Room]) -> Message:
    room = dice.choice(rooms) if rooms else Room(Place(0, 0), 64)
    hints = typing.get_type_hints(kind)

    def several(name: str) -> object:
        return _tensors(dice, room)

    makers: dict[object, Callable[[str], object]] = {
        int: lambda name: _number(dice, name, room),
        bool: lambda name: dice.choice((False, True)),
        bytes: lambda name: dice.randbytes(24),
        str: lambda name: dice.choice(("", "x", "127.0.0.1:1", "\0", "é" * 40)),
        WireTensor: lambda name: tensor(dice, room),
    }
    values = {
        one.name: makers.get(hints[one.name], several)(one.name) for one in dataclasses.fields(kind)
    }
    made: Message = kind(**values)
    return made


def _number(dice: Dice, name: str, room: Room) -> int:
    if name == "device":
        return 0 if dice.chance(0.9) else dice.u32()
    if name == "buffer":
        return room.place.handle if dice.chance(0.9) else dice.u64()
    if name == "n_copies":
        return dice.choice((0, 1, 2, 3)) if dice.chance(0.8) else dice.u64()
    if name in ("value", "cache"):
        return dice.choice((0, 1, 255))
    return dice.size(room.size)


def _tensors(dice: Dice, room: Room) -> tuple[WireTensor, ...]:
    some = [tensor(dice, room) for _ in range(dice.randrange(3))]
    return (*some, *[NULL_TENSOR] * (MAX_SRC - len(some)))


def tensor(dice: Dice, room: Room) -> WireTensor:
    """Describe a tensor in a buffer; now and then with one wrong field."""
    type_ = dice.choice((GGMLType.F32, GGMLType.I8, GGMLType.F16, GGMLType.Q4_0, *GGMLType))
    traits = TRAITS[type_]
    row = traits.block_size * dice.choice((1, 1, 2, 4))
    n_rows = max(1, dice.choice((1, 2, room.size // traits.type_size // 4)))
    ne = (row, n_rows, 1, 1)
    made = Tensor(type_, ne, contiguous_strides(type_, ne), name="t")
    spare = max(room.size - made.nbytes, 0)
    offset = dice.choice((0, 0, spare, dice.randrange(spare + 1) // 64 * 64))
    wire = to_wire(made, Place(room.place.handle, room.place.address + offset))
    return damaged_tensor(dice, wire, 1) if dice.chance(0.15) else wire
