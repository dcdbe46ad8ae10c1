"""What a lying worker makes of its answers: damaged, cut, doubled, late, replaced, or kept back."""

import json
import struct
from typing import Final

from app.rpc_backend.wire.constants import Cmd
from app.rpc_backend.wire.extensions import ERROR_BIT, ERROR_HEAD, MAX_TEXT_BYTES
from app.rpc_backend.wire.worker_core import Request
from tests.fuzz.dice import Dice

CLOSE: Final = None
PAUSE: Final = b""
Pieces = list[bytes | None]
"""What is sent one after the other; `CLOSE` ends the connection, `PAUSE` waits."""

_SIZE: Final = struct.Struct("<Q")
_WILD_JSON: Final = (
    b"",
    b"{}",
    b"null",
    b"[" * 60_000,
    b'{"threads":' + b"9" * 60_000 + b"}",
    b'{"threads":true,"ops":["ADD",1,null,{},"NO_SUCH"],"kind":[],"name":7}',
    b'{"threads":-1e999,"ops":{},"kind":"cpu","free":NaN,"description":"\\ud800\\u0000"}',
    b'{"name":"' + b"x" * 65_000 + b'"}',
    b'{"name":"' + b"x" * MAX_TEXT_BYTES + b'"}',
    b"\xff\xfe{\x00}\x00",
)


def distorted(
    dice: Dice, damage: float, answer: bytes, held: bytes, request: Request | None
) -> tuple[Pieces, bytes]:
    """Return what is sent for an answer, which belongs to the `request` read last, and what comes
    with the next one.
    """
    if not dice.chance(damage):
        return [held + answer], b""
    if request is not None and request.command.number is Cmd.DEVICE_FACTS and dice.chance(0.6):
        text = dice.choice((*_WILD_JSON, dice.damaged(json.dumps({"ops": ["ADD"]}).encode())))
        return [held + _SIZE.pack(len(text)) + text], b""
    at = dice.randrange(len(answer) + 1)
    number = 0 if request is None else request.number
    error = _error(dice, number)
    size = _SIZE.pack(dice.choice((dice.u64(), ERROR_BIT | dice.randrange(8192))))
    slow: Pieces = [bytes([byte]) for byte in answer[:500]]
    slow.append(answer[500:] or b"\0")
    ways: list[tuple[Pieces, bytes]] = [
        ([dice.damaged(answer)], b""),
        ([size + answer[8:]], b""),
        ([answer[:at]], b""),
        ([answer[:at], CLOSE], b""),
        ([CLOSE], b""),
        ([answer, answer], b""),
        ([answer[:at], PAUSE, answer[at:]], b""),
        (slow, b""),
        ([dice.randbytes(dice.randrange(300)), answer], b""),
        ([error, answer], b""),
        ([error, error, error], b""),
        ([error], b""),
        ([_failure(dice, number, b"no")], b""),
        ([_failure(dice, max(number - 1, 0), b"before"), answer], b""),
        ([], answer),
        ([PAUSE], b""),
    ]
    pieces, later = dice.choice(ways)
    return [held, *pieces] if held else pieces, later


def _error(dice: Dice, number: int) -> bytes:
    """Frame an error about a request near `number` or about none."""
    about = dice.choice((number, number, number + 1, max(number - 1, 0), 0, dice.u64()))
    size = dice.choice((0, 1, 100, 4000, 4087, 4088, 5000))
    return _failure(dice, about & (2**64 - 1), dice.randbytes(size))


def _failure(dice: Dice, number: int, text: bytes) -> bytes:
    body = ERROR_HEAD.pack(number, dice.choice((1, 2, 3, 4, 5, 6, 0, 255))) + text
    if dice.chance(0.05):
        body = body[: dice.randrange(len(body))]
    return _SIZE.pack(ERROR_BIT | len(body)) + body
