"""Whatever a client sends ends in replies or one SessionError; memory stays bounded and is freed.

Two kinds of damage: bytes of valid conversations are changed at random, and fields of valid graphs
are set to values that hurt. The second runs on real kernels. Seeds are fixed; the numbers of rounds
keep the default run short.
"""

import random
from contextlib import suppress
from typing import Final

import pytest
import torch

from app.devices.base import Device, DeviceInfo, DeviceKind
from app.devices.null import NullDevice
from app.devices.torch_device import TorchDevice
from app.errors import LlamaServeError
from app.ggml.builder import GraphBuilder
from app.ggml.graph import Graph
from app.ggml.op_params import AttentionParams, RopeParams
from app.ggml.ops import GluOp, UnaryOp
from app.ggml.tensor import TensorFlag
from app.ggml.types import GGMLType
from app.rpc_backend.wire import messages as m
from app.rpc_backend.wire.client_core import ClientCore
from app.rpc_backend.wire.constants import Cmd
from app.rpc_backend.wire.graph_codec import GraphCompute, describe_graph
from app.rpc_backend.wire.tensor import Place, WireTensor
from app.rpc_backend.worker.session import Session, SessionError
from tests.helpers.rpc_frames import captured, frame, response, u32, u64
from tests.helpers.rpc_link import MemoryLink

BYTE_ROUNDS: Final = 400
GRAPH_ROUNDS: Final = 250
REPLY_ROUNDS: Final = 400

F32, I32, I64, F16 = GGMLType.F32, GGMLType.I32, GGMLType.I64, GGMLType.F16
HURTFUL: Final = (0, 1, 2, 3, 7, 31, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1)


def test_damaged_bytes_end_a_conversation_or_do_nothing() -> None:
    device = NullDevice(total=1 << 20)
    frames = [captured(8)[name][0] for name in captured(8) if name != "GRAPH_COMPUTE"]
    for seed in range(BYTE_ROUNDS):
        rng = random.Random(seed)
        session = Session([device], 8)
        data = bytearray(captured(8)["HELLO"][0])
        # A real buffer whose handle the damaged requests may hit by chance.
        data += frame(Cmd.ALLOC_BUFFER, u32(0), u64(1 << 16))
        for _ in range(rng.randint(1, 4)):
            data += _damaged(rng, rng.choice(frames))
        with suppress(SessionError):
            _feed(session, bytes(data))
        session.close()
        assert not device.buffers


def _damaged(rng: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(rng.randint(0, 4)):
        at = rng.choice((rng.randrange(len(out)), rng.randrange(min(len(out), 40))))
        out[at] = rng.choice((0, 1, 255, rng.randrange(256)))
    if rng.random() < 0.2:
        del out[rng.randrange(len(out)) :]
    return bytes(out)


def _feed(session: Session, data: bytes) -> None:
    answered = 0
    while data:
        room = session.writable()
        n = min(len(room), len(data))
        room[:n] = data[:n]
        room.release()
        data = data[n:]
        for piece in session.wrote(n):
            answered += len(piece)
            assert answered < 1 << 24


@pytest.fixture(scope="module")
def device() -> Device:
    torch.set_num_threads(1)
    return TorchDevice(DeviceInfo("CPU", "test", DeviceKind.CPU), torch.device("cpu"))


def sample_graph() -> Graph:
    """Most operations that a stock client sends, small."""
    b = GraphBuilder()
    table = b.input(GGMLType.Q4_0, (64, 8), "table")
    x = b.get_rows(table, b.input(I32, (4,), "tokens"))
    x = b.mul(b.rms_norm(x, 1e-5), b.input(F32, (64,), "norm"))
    q = b.mul_mat(b.input(GGMLType.Q8_0, (64, 64), "wq"), x)
    rope = RopeParams(16, 0, 128, 10000.0, 1.0, 0.0, 1.0, 32.0, 1.0)
    q = b.rope(b.reshape(q, 16, 4, 4), b.input(I32, (4,), "pos"), None, rope)
    cache = b.input(F16, (32, 8), "cache")
    rows = b.reshape(b.scale(b.view(x, (32, 4), (256,)), 0.5), 32, 4)
    cache = b.set_rows(cache, rows, b.input(I64, (4,), "cells"))
    k = b.permute(b.reshape(cache, 16, 2, 8), 0, 2, 1, 3)
    mask = b.input(F16, (8, 4), "mask")
    attention = b.flash_attn(b.permute(q, 0, 2, 1, 3), k, k, mask, AttentionParams(0.25))
    x = b.add(b.reshape(attention, 64, 4), x)
    scores = b.soft_max(b.mul_mat(x, x), None, 1.0)
    x = b.glu_split(x, b.unary(x, UnaryOp.SILU), GluOp.SWIGLU)
    wide = b.cont(b.transpose(b.cast(x, F16)))
    return b.finish(scores, wide)


def test_damaged_graphs_are_refused_or_run_but_nothing_else(device: Device) -> None:
    graph = sample_graph()
    size = 0
    offsets: dict[int, int] = {}
    for tensor in graph.tensors():
        if tensor.view_src is None:
            offsets[id(tensor)] = size
            size += -(-tensor.nbytes // 64) * 64
        else:
            offsets[id(tensor)] = offsets[id(tensor.view_src)] + tensor.view_offs
    outcomes = {"ran": 0, "refused": 0}
    for seed in range(GRAPH_ROUNDS):
        rng = random.Random(seed)
        link = MemoryLink([device])
        place = link.alloc(size)
        places = {key: Place(place.handle, place.address + at) for key, at in offsets.items()}
        message = describe_graph(graph, 0, lambda t, at=places: at[id(t)])  # type: ignore[misc]
        if seed:
            message = _hurt(rng, message)
        try:
            link.call(message)
            outcomes["ran"] += 1
        except (SessionError, LlamaServeError) as error:
            assert "internal error" not in str(error), (seed, error)
            outcomes["refused"] += 1
        finally:
            link.session.close()
        assert seed or outcomes["ran"] == 1
    assert min(outcomes.values()) > GRAPH_ROUNDS // 20


def _hurt(rng: random.Random, message: GraphCompute) -> GraphCompute:
    """Change one field of one or two tensors."""
    tensors = list(message.tensors)
    for _ in range(rng.randint(1, 2)):
        at = rng.randrange(len(tensors))
        tensors[at] = _hurt_tensor(rng, tensors[at], len(tensors))
    return GraphCompute(0, message.node_ids, tuple(tensors), message.uid)


def _hurt_tensor(rng: random.Random, t: WireTensor, n_tensors: int) -> WireTensor:
    field = rng.choice(("type", "ne", "nb", "op", "params", "src", "view", "data", "flags"))
    value, at = rng.choice(HURTFUL), rng.randrange(4)
    if field in ("ne", "nb"):
        four = list(t.ne if field == "ne" else t.nb)
        four[at] = rng.choice((value, four[at] + 1, four[at] * 2)) & (2**32 - 1)
        shape = (four[0], four[1], four[2], four[3])
        return t._replace(ne=shape) if field == "ne" else t._replace(nb=shape)
    if field == "params":
        params = bytearray(t.params)
        params[4 * at : 4 * at + 4] = value.to_bytes(4, "little")
        return t._replace(params=bytes(params))
    if field == "src":
        sources = list(t.src)
        sources[at] = rng.randrange(n_tensors + 1)
        return t._replace(src=tuple(sources))
    changes: dict[str, WireTensor] = {
        "type": t._replace(type=rng.randrange(45)),
        "op": t._replace(op=rng.randrange(103)),
        "view": t._replace(view_src=rng.randrange(n_tensors + 1), view_offs=value),
        "data": t._replace(data=t.data + rng.choice((-64, -1, 1, 4, 64, value))),
        "flags": t._replace(flags=rng.choice((0, -1, int(TensorFlag.COMPUTE)))),
    }
    return changes[field]


def test_damaged_replies_end_in_a_typed_error_or_are_read() -> None:
    good = response(u64(32)) + response(u64(1, 2)) + response(b"\x01") + response(bytes(64))
    wire = MemoryLink([NullDevice()]).put(sample_graph().nodes[0], Place(1, 1))
    for seed in range(REPLY_ROUNDS):
        rng = random.Random(seed)
        core = ClientCore()
        core.hello()
        data = captured(8)["HELLO"][1]
        assert data is not None
        _receive(core, data)
        for message in (
            m.GetAlignment(0),
            m.GetDeviceMemory(0),
            m.CopyTensor(wire, wire),
            m.GetTensor(wire, 0, 64),
        ):
            core.request(message)
        try:
            _receive(core, _damaged(rng, good))
        except LlamaServeError:
            continue
        assert core.n_expected < 5


def _receive(core: ClientCore, data: bytes) -> None:
    while data:
        room = core.writable()
        n = min(len(room), len(data))
        room[:n] = data[:n]
        room.release()
        core.wrote(n)
        data = data[n:]
        while core.next_reply() is not None:
            pass
