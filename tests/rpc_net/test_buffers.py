"""The only bounds check, without a device behind it that might catch what it lets through."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.devices.base import BufferUsage
from app.devices.null import NullDevice
from app.errors import GraphError
from app.ggml.tensor import new_tensor
from app.ggml.types import GGMLType
from app.rpc_backend.errors import RemoteProtocolError
from app.rpc_backend.wire.tensor import Place, WireTensor, to_wire
from app.rpc_backend.worker.buffers import MAX_BUFFERS, BufferTable, HeldBuffer

SIZE = 256
U64 = st.one_of(st.integers(0, 2 * SIZE), st.integers(0, 2**64 - 1), st.just(2**64 - 1))


def table_with(*sizes: int) -> tuple[BufferTable, list[HeldBuffer]]:
    table, device = BufferTable(), NullDevice()
    return table, [table.add(0, device, device.alloc(n, BufferUsage.ANY)) for n in sizes]


def bytes_at(held: HeldBuffer, at: int, n: int) -> WireTensor:
    place = Place(held.handle, (held.base + at) % 2**64)
    return to_wire(new_tensor(GGMLType.I8, (n,), "x"), place)


@settings(deadline=None, max_examples=200)
@given(U64, st.integers(0, 2 * SIZE), U64, U64)
def test_a_range_passes_if_and_only_if_it_is_inside(
    at: int, n_bytes: int, offset: int, size: int
) -> None:
    table, (held, _) = table_with(SIZE, 64)
    # Addresses are 64-bit numbers, so that far ones come round to the front.
    start = (held.base + at) % 2**64 - held.base
    inside = start >= 0 and start + n_bytes <= SIZE and offset + size <= n_bytes
    wire = bytes_at(held, at, n_bytes)
    for _ in range(2):
        if inside:
            region = table.resolve_region(wire, offset, size)
            assert (region.tensor.offset, region.offset, region.size) == (start, offset, size)
            assert region.tensor.buffer is held.buffer
        else:
            with pytest.raises(GraphError):
                table.resolve_region(wire, offset, size)


def test_without_a_size_the_rest_of_the_tensor_is_meant() -> None:
    table, (held,) = table_with(SIZE)
    assert table.resolve_region(bytes_at(held, 0, 100), 30).size == 70
    with pytest.raises(GraphError):
        table.resolve_region(bytes_at(held, 0, 100), 101)


def test_what_was_found_before_is_not_found_after_freeing() -> None:
    table, (held, other) = table_with(SIZE, SIZE)
    wire = bytes_at(held, 0, 8)
    table.resolve_region(wire)
    table.remove(held.handle)
    with pytest.raises(RemoteProtocolError, match="not a buffer of this client"):
        table.resolve_region(wire)
    assert table.resolve_region(bytes_at(other, 0, 8)).held is other


def test_a_null_buffer_is_refused_whatever_its_data() -> None:
    table, (held,) = table_with(SIZE)
    for data in (0, held.base, 2**64 - 1):
        wire = bytes_at(held, 0, 8)._replace(buffer=0, data=data)
        with pytest.raises(RemoteProtocolError, match="no buffer"):
            table.resolve_region(wire)


def test_a_tensor_of_one_buffer_does_not_lie_in_another() -> None:
    table, (held, other) = table_with(SIZE, SIZE)
    with pytest.raises(GraphError):
        table.resolve_region(bytes_at(held, 0, 8)._replace(data=other.base))


def test_remembered_tensors_stay_few() -> None:
    table, (held,) = table_with(5000)
    for at in range(1000):
        table.resolve_region(bytes_at(held, at, 8))
    assert len(table._located) <= 256


def test_addresses_run_out_before_they_repeat() -> None:
    table, _ = table_with(SIZE)
    assert table.has_room_for(1 << 61)
    assert not table.has_room_for(1 << 62)


def test_a_client_has_so_many_buffers_and_no_more() -> None:
    table, held = table_with(*[1] * (MAX_BUFFERS - 1))
    assert table.has_room_for(1)
    table, held = table_with(*[1] * MAX_BUFFERS)
    assert not table.has_room_for(1)
    table.remove(held[0].handle)
    assert table.has_room_for(1)
