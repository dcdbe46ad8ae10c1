"""The capability bytes of HELLO, by the offsets of llama.cpp's own structure."""

import socket
import struct

from hypothesis import given
from hypothesis import strategies as st

from app.rpc_backend.wire.constants import PLAIN_TCP
from app.rpc_backend.wire.rdma import RdmaOffer, parse_offer


def test_zeros_are_no_offer() -> None:
    assert parse_offer(PLAIN_TCP) is None


def test_an_offer_names_queue_pair_sequence_and_address() -> None:
    mapped = bytes(10) + b"\xff\xff" + socket.inet_aton("192.168.1.20")
    offer = parse_offer(struct.pack("<II", 0x1234, 0xABCDEF) + mapped)
    assert offer == RdmaOffer(0x1234, 0xABCDEF, mapped)
    assert str(offer) == "queue pair 4660, packet sequence number 11259375, GID 192.168.1.20"


def test_an_address_of_version_6_is_shown_as_one() -> None:
    gid = socket.inet_pton(socket.AF_INET6, "fe80::1:2")
    assert str(parse_offer(struct.pack("<II", 1, 2) + gid)).endswith("GID fe80::1:2")


@given(st.binary(min_size=24, max_size=24))
def test_any_bytes_are_read_and_shown(capabilities: bytes) -> None:
    offer = parse_offer(capabilities)
    assert (offer is None) == (capabilities == bytes(24))
    assert str(offer)
