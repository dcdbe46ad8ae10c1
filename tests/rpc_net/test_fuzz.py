"""Whatever a client sends ends in replies or one SessionError; memory stays bounded and is freed.

Two kinds of damage: bytes of valid conversations are changed at random, and fields of valid graphs
are set to values that hurt. The second runs on real kernels. Seeds are fixed; the numbers of rounds
keep the default run short. Whole conversations, with guards around memory, are in `tests/fuzz`.
"""

from contextlib import suppress
from typing import Final

import pytest
import torch

from app.devices.base import Device, DeviceInfo, DeviceKind
from app.devices.null import NullDevice
from app.devices.torch_device import TorchDevice
from app.errors import LlamaServeError
from app.rpc_backend.wire import messages as m
from app.rpc_backend.wire.client_core import ClientCore
from app.rpc_backend.wire.constants import Cmd
from app.rpc_backend.wire.graph_codec import describe_graph
from app.rpc_backend.wire.tensor import Place
from app.rpc_backend.worker.session import Session, SessionError
from tests.fuzz.canary import lay_out, sample_graph
from tests.fuzz.damage import damaged_graph
from tests.fuzz.dice import Dice
from tests.helpers.rpc_frames import captured, frame, response, u32, u64
from tests.helpers.rpc_link import MemoryLink, received

BYTE_ROUNDS: Final = 400
GRAPH_ROUNDS: Final = 250
REPLY_ROUNDS: Final = 400


def test_damaged_bytes_end_a_conversation_or_do_nothing() -> None:
    device = NullDevice(total=1 << 20)
    frames = [captured(8)[name][0] for name in captured(8) if name != "GRAPH_COMPUTE"]
    for seed in range(BYTE_ROUNDS):
        dice = Dice(seed)
        session = Session([device], 8)
        data = bytearray(captured(8)["HELLO"][0])
        # A real buffer whose handle the damaged requests may hit by chance.
        data += frame(Cmd.ALLOC_BUFFER, u32(0), u64(1 << 16))
        for _ in range(dice.randint(1, 4)):
            data += dice.damaged(dice.choice(frames))
        with suppress(SessionError):
            _feed(session, bytes(data))
        session.close()
        assert not device.buffers


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


def test_damaged_graphs_are_refused_or_run_but_nothing_else(device: Device) -> None:
    graph = sample_graph()
    offsets, size = lay_out(graph)
    outcomes = {"ran": 0, "refused": 0}
    for seed in range(GRAPH_ROUNDS):
        dice = Dice(seed)
        link = MemoryLink([device])
        place = link.alloc(size)
        places = {key: Place(place.handle, place.address + at) for key, at in offsets.items()}
        message = describe_graph(graph, 0, lambda t, at=places: at[id(t)])  # type: ignore[misc]
        if seed:
            message = damaged_graph(dice, message)
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


def test_damaged_replies_end_in_a_typed_error_or_are_read() -> None:
    good = response(u64(32)) + response(u64(1, 2)) + response(b"\x01") + response(bytes(64))
    wire = MemoryLink([NullDevice()]).put(sample_graph().nodes[0], Place(1, 1))
    for seed in range(REPLY_ROUNDS):
        dice = Dice(seed)
        core = ClientCore()
        core.hello()
        data = captured(8)["HELLO"][1]
        assert data is not None
        received(core, data)
        for message in (
            m.GetAlignment(0),
            m.GetDeviceMemory(0),
            m.CopyTensor(wire, wire),
            m.GetTensor(wire, 0, 64),
        ):
            core.request(message)
        try:
            received(core, dice.damaged(good))
        except LlamaServeError:
            continue
        assert core.n_expected < 5
