"""Frames of the RPC protocol made without the code under test: by field offsets, and as captured
from stock peers (tests/golden/README.md).
"""

import gzip
import json
import struct
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np

from app.rpc_backend.wire.constants import Cmd

GOLDEN: Final = Path(__file__).resolve().parents[1] / "golden" / "rpc_frames.json.gz"

_LAST: Final = {7: 17, 8: 22}

TENSOR: Final = np.dtype(
    {
        "names": [
            "id",
            "type",
            "buffer",
            "ne",
            "nb",
            "op",
            "op_params",
            "flags",
            "src",
            "view_src",
            "view_offs",
            "data",
            "name",
            "use_count",
        ],
        "formats": [
            "<u8",
            "<u4",
            "<u8",
            "4<u4",
            "4<u4",
            "<u4",
            "16<i4",
            "<i4",
            "10<u8",
            "<u8",
            "<u8",
            "<u8",
            "S64",
            "<i4",
        ],
        "offsets": [0, 8, 12, 20, 36, 52, 56, 120, 124, 204, 212, 220, 228, 292],
        "itemsize": 296,
    }
)
"""rpc_tensor by the offsets of the protocol's description."""


def tensor_bytes(**fields: object) -> bytes:
    """Make one rpc_tensor; fields that are not named are zero."""
    record = np.zeros((), TENSOR)
    for name, value in fields.items():
        record[name] = value
    return record.tobytes()


def frame(command: int, *parts: bytes) -> bytes:
    """Make a request."""
    body = b"".join(parts)
    return bytes([command]) + struct.pack("<Q", len(body)) + body


def response(body: bytes) -> bytes:
    """Make a reply."""
    return struct.pack("<Q", len(body)) + body


def u32(*values: int) -> bytes:
    """Pack 32-bit numbers."""
    return struct.pack(f"<{len(values)}I", *values)


def u64(*values: int) -> bytes:
    """Pack 64-bit numbers."""
    return struct.pack(f"<{len(values)}Q", *values)


HELLO: Final = frame(14, bytes(24))


def stock_commands(version: int) -> set[str]:
    """Return the names of the commands that stock peers of a version know."""
    return {cmd.name for cmd in Cmd if cmd <= _LAST[version]}


@cache
def captured(version: int) -> dict[str, tuple[bytes, bytes | None]]:
    """Return request and reply of each command that stock peers of a version exchanged."""
    rows = json.loads(gzip.decompress(GOLDEN.read_bytes()))[str(version)]
    return {
        name: (
            bytes.fromhex(row["request"]),
            None if row["reply"] is None else bytes.fromhex(row["reply"]),
        )
        for name, row in rows.items()
    }
