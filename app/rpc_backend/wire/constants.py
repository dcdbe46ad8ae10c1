"""Numbers of the ggml RPC protocol, versions 7 and 8.

Command numbers, sizes and version rules follow ggml-rpc at llama.cpp b11434 (protocol 7.0.0) and
b11739 (8.0.0). Limits are ours. Operation and type numbers belong to the protocol as well; they
live in `app.ggml.ops` and `app.ggml.types`. Commands from 128 on are our own (`extensions.py`).
"""

from enum import IntEnum
from typing import Final, NamedTuple


class Cmd(IntEnum):
    """A command under its number on the wire."""

    ALLOC_BUFFER = 0
    GET_ALIGNMENT = 1
    GET_MAX_SIZE = 2
    BUFFER_GET_BASE = 3
    FREE_BUFFER = 4
    BUFFER_CLEAR = 5
    SET_TENSOR = 6
    SET_TENSOR_HASH = 7
    GET_TENSOR = 8
    COPY_TENSOR = 9
    GRAPH_COMPUTE = 10
    GET_DEVICE_MEMORY = 11
    INIT_TENSOR = 12
    GET_ALLOC_SIZE = 13
    HELLO = 14
    DEVICE_COUNT = 15
    GRAPH_RECOMPUTE = 16
    MEMSET_TENSOR = 17
    SET_TENSOR_2D = 18
    GET_TENSOR_2D = 19
    COMM_INIT = 20
    COMM_ALLREDUCE = 21
    COMM_FREE = 22
    EXTEND = 128
    PROVE = 129
    PING = 130
    DEVICE_FACTS = 131
    WAIT_BUFFER = 132
    OPEN_DOOR = 133
    PUSH_TENSOR = 134
    DELIVER = 135
    TAKE_DELIVERY = 136


class ProtocolVersion(NamedTuple):
    """A version as HELLO reports it."""

    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


VERSIONS: Final = {7: ProtocolVersion(7, 0, 0), 8: ProtocolVersion(8, 0, 0)}
"""Each major version that both ends speak, and the newest minor known of it."""

NEWEST: Final = max(VERSIONS)

DEFAULT_PORT: Final = 50052
CAPABILITY_BYTES: Final = 24
PLAIN_TCP: Final = bytes(CAPABILITY_BYTES)
"""Capabilities of a peer that offers no RDMA."""

KEPT_GRAPHS: Final = 1024
"""Graphs that a version 8 worker keeps per device before it forgets all of them."""

HASH_THRESHOLD_BYTES: Final = 10 * 1024 * 1024
"""Between stock peers, weights above this size are offered by hash first."""

MIN_HASHED_BYTES: Final = 64 * 1024
"""Between our own ends, weights from this size on are offered by hash and kept."""

CHUNK_BYTES: Final = 256 * 1024
"""Tensor data is handled in pieces of at most this size, so that a frame costs no more memory."""

MAX_GRAPH_BYTES: Final = 64 * 1024 * 1024
"""Largest graph that a worker accepts: about 220,000 tensors."""

MAX_DEVICES: Final = 64
"""Most devices that a client believes a worker to have."""
