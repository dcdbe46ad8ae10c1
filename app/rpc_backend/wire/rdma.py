"""What a peer's HELLO says about RDMA: the 24 capability bytes.

Zeros are plain TCP. On Linux a stock peer describes a queue pair: its number, its first packet
sequence number, and the 16-byte GID of the port it listens on (on Apple machines the second field
is a local identifier). Neither of our ends has such a transport, so both answer zeros and both
sides stay on TCP; a second transport would be made of what is parsed here.
"""

import struct
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import Final

from app.rpc_backend.wire.constants import CAPABILITY_BYTES

_CAPABILITIES: Final = struct.Struct("<II16s")
assert _CAPABILITIES.size == CAPABILITY_BYTES


@dataclass(frozen=True, slots=True)
class RdmaOffer:
    """One end of a queue pair."""

    queue_pair: int
    packet_sequence: int
    gid: bytes

    def __str__(self) -> str:
        address = IPv6Address(self.gid)
        return (
            f"queue pair {self.queue_pair}, packet sequence number {self.packet_sequence}, "
            f"GID {address.ipv4_mapped or address}"
        )


def parse_offer(capabilities: bytes) -> RdmaOffer | None:
    """Read 24 capability bytes; None when they are zeros."""
    if not any(capabilities):
        return None
    return RdmaOffer(*_CAPABILITIES.unpack(capabilities))
