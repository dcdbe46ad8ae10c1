"""The receive buffer gives back what went in, in whatever portions, and claims no memory on a
peer's word.
"""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from app.rpc_backend.wire.framing import ReceiveBuffer

SCRATCH = 64 * 1024


def feed(buffer: ReceiveBuffer, data: bytes) -> None:
    while data:
        room = buffer.writable()
        n = min(len(room), len(data))
        room[:n] = data[:n]
        room.release()
        buffer.wrote(n)
        data = data[n:]
        if n == 0:
            raise AssertionError("writable() was empty")


SIZES = st.one_of(st.integers(1, 400), st.integers(60_000, 70_000))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.booleans(), SIZES), max_size=6), st.integers(97, 9999))
def test_pieces_come_out_in_order_however_they_arrive(
    wanted: list[tuple[bool, int]], portion: int
) -> None:
    sizes = [(whole, n if whole else min(n, SCRATCH)) for whole, n in wanted]
    data = random.Random(portion).randbytes(sum(n for _, n in sizes))
    buffer, at, sent = ReceiveBuffer(), 0, 0
    for whole, n in sizes:
        while (piece := buffer.fill(n) if whole else buffer.take(n)) is None:
            assert sent < len(data)
            room = buffer.writable()
            m = min(len(room), portion, len(data) - sent)
            assert m > 0
            room[:m] = data[sent : sent + m]
            room.release()
            buffer.wrote(m)
            sent += m
        assert bytes(piece) == data[at : at + n]
        at += n


def test_a_length_that_never_arrives_claims_little() -> None:
    buffer = ReceiveBuffer()
    assert buffer.fill(1 << 62) is None
    assert len(buffer.writable()) <= 1 << 18
    feed_some = bytes(1 << 18)
    feed(buffer, feed_some)
    assert buffer.fill(1 << 62) is None
    assert len(buffer.writable()) <= len(feed_some)


def test_a_trusted_length_is_claimed_at_once() -> None:
    buffer = ReceiveBuffer()
    assert buffer.fill(1 << 20, trusted=True) is None
    assert len(buffer.writable()) == 1 << 20


def test_unread_bytes_are_counted() -> None:
    buffer = ReceiveBuffer()
    feed(buffer, b"abcdef")
    assert buffer.n_unread == 6
    assert buffer.take(2) == b"ab"
    assert buffer.fill(10) is None
    assert buffer.n_unread == 4
