"""Each weak spot that the stock worker is known for, against a worker of ours on real kernels.

After every blow the same worker gives another client, who was there before, the same answer to the
bit. What exactly is refused and how is in `test_session.py`, `test_server.py`,
`test_tensor_cache.py` and `tests/kernels/test_limits.py`; that a command waits for the buffers that
it touches and for no other device is in `test_lanes.py`.
"""

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from app.devices.base import Device, DeviceKind
from app.devices.host_memory import touched_bytes
from app.errors import DeviceLostError, GraphError
from app.ggml.graph import Graph
from app.ggml.ops import FORBIDDEN_OPS, Op
from app.ggml.tensor import Tensor, TensorFlag, new_tensor
from app.ggml.types import GGMLType
from app.rpc_backend.client.connect import open_workers
from app.rpc_backend.client.device import RpcDevice
from app.rpc_backend.wire.constants import Cmd
from app.rpc_backend.wire.fnv import fnv1a_64
from app.rpc_backend.worker.server import RpcServer, ServerSettings
from app.rpc_backend.worker.tensor_cache import TensorCache
from tests.devices.graphs import cpu
from tests.fuzz.canary import Witness
from tests.helpers.eventually import eventually
from tests.helpers.fake_worker import read
from tests.helpers.native import native_cpu
from tests.helpers.rpc_frames import HELLO, frame, tensor_bytes, u32, u64
from tests.helpers.rpc_link import serving, spread
from tests.kernels.harness import Case, Source, make_leaf, make_node

TOP: Final = 2**64 - 1
F32, I32, I64, Q4_0, Q8_0 = (
    GGMLType.F32,
    GGMLType.I32,
    GGMLType.I64,
    GGMLType.Q4_0,
    GGMLType.Q8_0,
)


@pytest.fixture(params=[native_cpu, cpu], ids=["native", "reference"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RpcServer]:
    """A worker whose other client finds everything as it was."""
    open_device: Callable[[], Device] = request.param
    device = open_device()
    cache = TensorCache(tmp_path / "rpc", min_bytes=1000, max_bytes=10_000)
    assert cache.prepare()
    with serving([device], ServerSettings(cache=cache)) as server:
        witness = Witness(server.port)
        yield server
        witness.check()
        witness.close()
    device.close()


class Attacker:
    """A stock-like client with one buffer of 4 KiB, full of ones."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.sendall(HELLO)
        read(sock, 36)
        sock.sendall(frame(Cmd.ALLOC_BUFFER, u32(0), u64(4096)))
        self.handle, _ = struct.unpack("<QQ", read(sock, 24)[8:])
        sock.sendall(frame(Cmd.BUFFER_GET_BASE, u64(self.handle)))
        (self.base,) = struct.unpack("<Q", read(sock, 16)[8:])
        sock.sendall(frame(Cmd.BUFFER_CLEAR, u64(self.handle), b"\1"))

    def tensor(self, **fields: object) -> bytes:
        """Describe 16 floats at the start of the buffer, but for `fields`."""
        plain = {"id": 1, "buffer": self.handle, "data": self.base, "ne": (16, 1, 1, 1)}
        return tensor_bytes(**(plain | {"nb": (4, 64, 64, 64)} | fields))

    def strike(self, data: bytes) -> None:
        """Send something that costs the connection, and see it closed without an answer."""
        self.sock.sendall(data)
        with suppress(ConnectionResetError):
            assert self.sock.recv(1) == b""


@contextmanager
def attacker(server: RpcServer) -> Iterator[Attacker]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as sock:
        yield Attacker(sock)


@contextmanager
def own_client(server: RpcServer) -> Iterator[RpcDevice]:
    (device,) = open_workers([f"127.0.0.1:{server.port}"])
    yield device
    device.close()


def graph_of(*tensors: bytes) -> bytes:
    """Frame a graph of version 8 whose only node is the last tensor, which has the id 9."""
    return frame(
        Cmd.GRAPH_COMPUTE, u32(0), u64(7), u32(1), u64(9), u32(len(tensors)), b"".join(tensors)
    )


def node(attack: Attacker, **fields: object) -> bytes:
    """Describe a node over tensor 1, to be computed into the second KiB of the buffer."""
    plain = {"id": 9, "data": attack.base + 1024, "flags": int(TensorFlag.COMPUTE)}
    return attack.tensor(**(plain | {"src": (1,) + (0,) * 9} | fields))


def test_one_client_at_a_time(server: RpcServer) -> None:
    with attacker(server) as first, attacker(server) as second:
        first.sock.sendall(frame(Cmd.GET_TENSOR, first.tensor(), u64(0), u64(64))[:200])
        second.sock.sendall(frame(Cmd.GET_TENSOR, second.tensor(), u64(0), u64(64)))
        assert read(second.sock, 72) == u64(64) + b"\1" * 64


def test_a_failure_closes_without_a_word(
    server: RpcServer, caplog: pytest.LogCaptureFixture
) -> None:
    with own_client(server) as device:
        rows = new_tensor(F32, (4, 1), "rows")
        bad = Tensor(F32, (4, 2, 1, 1), (4, 16, 32, 32), Op.SUM_ROWS, src=(rows,), name="bad")
        spread(device, [rows, bad])
        device.compute(Graph([bad]))
        with pytest.raises(GraphError, match=r"RPC worker .*SUM_ROWS 'bad'"):
            device.synchronize()
        device.synchronize()
    with attacker(server) as attack:
        attack.strike(graph_of(attack.tensor(), node(attack, op=int(Op.SUM_ROWS))))
    eventually(lambda: any("SUM_ROWS" in r.getMessage() for r in caplog.records))


def test_a_failure_costs_the_main_host_a_typed_error() -> None:
    with serving([native_cpu()]) as dying:
        (device,) = open_workers([f"127.0.0.1:{dying.port}"])
    with pytest.raises(DeviceLostError, match=f"RPC worker {device.connection.endpoint}"):
        device.synchronize()
    with suppress(DeviceLostError):
        device.close()


def test_a_worker_says_what_it_cannot_run(
    server: RpcServer, caplog: pytest.LogCaptureFixture
) -> None:
    with own_client(server) as device:
        rows = new_tensor(F32, (16, 1), "rows")
        loss = Tensor(F32, (1, 1, 1, 1), (4, 4, 4, 4), Op.CROSS_ENTROPY_LOSS, src=(rows, rows))
        assert "CROSS_ENTROPY_LOSS" in (device.unsupported([loss]) or "")
    with attacker(server) as attack:
        unknown = node(attack, op=int(Op.CROSS_ENTROPY_LOSS), src=(1, 1) + (0,) * 8)
        attack.strike(graph_of(attack.tensor(), unknown))
    eventually(lambda: any("CROSS_ENTROPY_LOSS" in r.getMessage() for r in caplog.records))


def test_a_device_is_of_its_own_kind(server: RpcServer) -> None:
    with own_client(server) as device:
        assert device.facts is not None
        assert device.facts.kind is DeviceKind.CPU


def test_handles_and_addresses_are_no_pointers(server: RpcServer) -> None:
    lines = Path("/proc/self/maps").read_text("utf-8").splitlines()
    ranges = [[int(end, 16) for end in line.split()[0].split("-")] for line in lines]
    with attacker(server) as attack:
        for number in (attack.handle, attack.base):
            assert not any(start <= number < end for start, end in ranges), hex(number)


def test_a_null_buffer_with_data(server: RpcServer) -> None:
    requests: list[Callable[[bytes], bytes]] = [
        lambda raw: frame(Cmd.GET_TENSOR, raw, u64(0), u64(64)),
        lambda raw: frame(Cmd.SET_TENSOR, raw, b"\0", u64(0), bytes(64)),
        lambda raw: frame(Cmd.COPY_TENSOR, raw, raw),
        lambda raw: frame(Cmd.INIT_TENSOR, raw),
    ]
    for request in requests:
        with attacker(server) as attack:
            attack.strike(request(attack.tensor(buffer=0, data=0x7FFF_0000_1000)))
    with attacker(server) as attack:
        leaf = attack.tensor(buffer=0, data=0x7FFF_0000_1000)
        attack.strike(graph_of(leaf, node(attack, op=int(Op.SQR))))


@pytest.mark.parametrize("op", sorted(FORBIDDEN_OPS), ids=lambda op: op.name)
def test_operations_with_function_pointers(server: RpcServer, op: Op) -> None:
    with attacker(server) as attack:
        pointers = np.full(16, 0x41414141, np.int32)
        attack.strike(graph_of(attack.tensor(), node(attack, op=int(op), op_params=pointers)))


def test_rows_that_are_not_whole_blocks(server: RpcServer) -> None:
    uneven = {"type": int(Q4_0), "ne": (33, 1, 1, 1), "nb": (18, 36, 36, 36)}
    requests: list[Callable[[bytes], bytes]] = [
        lambda raw: frame(Cmd.INIT_TENSOR, raw),
        lambda raw: frame(Cmd.SET_TENSOR, raw, b"\0", u64(0), bytes(18)),
        lambda raw: frame(Cmd.GET_ALLOC_SIZE, u32(0), raw, bytes(2960)),
        lambda raw: graph_of(raw, raw),
    ]
    for request in requests:
        with attacker(server) as attack:
            attack.strike(request(attack.tensor(**uneven)))


def fixed(*values: int) -> Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]:
    return lambda rng, shape: np.array(values).reshape(shape)


def with_index(op: Op, index: int) -> Case:
    """A node of three rows or experts that is told to take row `index`."""
    pair = fixed(0, index)
    cases = {
        Op.GET_ROWS: (Source((32, 3), Q8_0), Source((2,), I32, pair)),
        Op.SET_ROWS: (Source((32, 2)), Source((2,), I64, pair), Source((32, 3))),
        Op.MUL_MAT_ID: (Source((32, 4, 3)), Source((32, 1, 1)), Source((2, 1), I32, pair)),
        Op.ADD_ID: (Source((32, 2, 1)), Source((32, 3)), Source((2, 1), I32, pair)),
    }
    return Case(op.name, op, cases[op])


@pytest.mark.parametrize("index", [-1, 3, 2**31 - 1, -(2**31), 2**62, -(2**63)])
@pytest.mark.parametrize("op", [Op.GET_ROWS, Op.SET_ROWS, Op.MUL_MAT_ID, Op.ADD_ID])
def test_indices_out_of_range(server: RpcServer, op: Op, index: int) -> None:
    if op != Op.SET_ROWS and not -(2**31) <= index < 2**31:
        return
    case = with_index(op, index)
    rng = np.random.default_rng(0)
    with own_client(server) as device:
        leaves = [make_leaf(rng, source) for source in case.sources if source is not None]
        stored = [leaf.stored for leaf in leaves]
        bad = make_node(case, stored)
        bad.view_src = stored[2] if op == Op.SET_ROWS else None
        spread(device, [*stored, bad])
        for leaf in leaves:
            device.set_tensor(leaf.stored, leaf.data)
        with pytest.raises(GraphError, match=rf"{op.name}.*expected 0…2"):
            device.compute(Graph([bad]))
            device.synchronize()


OVERFLOWING: Final[dict[str, dict[str, object]]] = {
    "sizes": {"ne": (2**32 - 1,) * 4},
    "strides": {"ne": (16, 2**31, 2**31, 2), "nb": (4, 2**32 - 1, 2**32 - 1, 2**32 - 1)},
    # 2^66 bytes, which 64 bits would see as 0.
    "wraps to nothing": {"ne": (2**31, 2**31, 4, 1), "nb": (4, 0, 0, 0), "type": int(F32)},
    "larger": {"ne": (4096, 1, 1, 1), "nb": (4, 2**14, 2**14, 2**14)},
}


@pytest.mark.parametrize("huge", OVERFLOWING.values(), ids=OVERFLOWING)
def test_sizes_that_overflow_in_a_copy(server: RpcServer, huge: dict[str, object]) -> None:
    for swapped in (False, True):
        with attacker(server) as attack:
            pair = [attack.tensor(), attack.tensor(**huge)]
            attack.strike(frame(Cmd.COPY_TENSOR, *(pair[::-1] if swapped else pair)))


@pytest.mark.parametrize("size", [1 << 63, TOP, (1 << 63) + 305, 1 << 40])
def test_length_fields_beyond_all_memory(server: RpcServer, size: int) -> None:
    before = touched_bytes()
    for command in (*(c for c in Cmd if c < 32), 200):
        with attacker(server) as attack:
            head = bytes([command]) + u64(size)
            if command in (Cmd.SET_TENSOR, Cmd.SET_TENSOR_2D):
                # Whatever size the data claims to have, its target is 64 bytes.
                head += attack.tensor() + bytes(1 << 18) + bytes(64)
            attack.strike(head)
    assert touched_bytes() - before < 32 << 20


def cached(attack: Attacker, data: bytes) -> int:
    """Have the worker store data; return its hash."""
    fields = {"ne": (len(data), 1, 1, 1), "nb": (1,) + (len(data),) * 3, "type": int(GGMLType.I8)}
    attack.sock.sendall(frame(Cmd.SET_TENSOR, attack.tensor(**fields), b"\1", u64(0), data))
    return fnv1a_64(data)


def offer(attack: Attacker, hash_: int, size: int) -> int:
    """Offer data by its hash; return 1 when the worker had it."""
    fields = {"ne": (size, 1, 1, 1), "nb": (1,) + (size,) * 3, "type": int(GGMLType.I8)}
    attack.sock.sendall(frame(Cmd.SET_TENSOR_HASH, attack.tensor(**fields), u64(0), u64(hash_)))
    return read(attack.sock, 9)[8]


def test_truncated_cache_files(server: RpcServer, tmp_path: Path) -> None:
    with attacker(server) as attack:
        hash_ = cached(attack, bytes(range(250)) * 12)
        assert offer(attack, hash_, 3000) == 1
        path = tmp_path / "rpc" / f"{hash_:016x}"
        path.write_bytes(path.read_bytes()[:2000])
        assert offer(attack, hash_, 3000) == 0
        assert not path.exists()


def test_a_cache_folder_without_bounds(server: RpcServer, tmp_path: Path) -> None:
    with attacker(server) as attack:
        for number in range(20):
            hash_ = cached(attack, number.to_bytes(2, "little") * 1500)
        assert offer(attack, hash_, 3000) == 1
    assert sum(path.stat().st_size for path in (tmp_path / "rpc").iterdir()) <= 10_000
