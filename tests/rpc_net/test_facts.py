"""What our own workers say of their devices, read without trusting it."""

import json
import socket

import pytest

from app.devices.base import DeviceKind
from app.devices.null import NullDevice
from app.ggml.builder import GraphBuilder
from app.ggml.ops import Op
from app.ggml.types import GGMLType
from app.rpc_backend.client.connect import open_workers
from app.rpc_backend.client.facts import DeviceFacts, read_facts
from app.rpc_backend.errors import RemoteProtocolError
from app.version import BUILD_INFO
from tests.helpers.fake_worker import fake_worker, introduce, wait_for_end
from tests.helpers.rpc_link import serving


def test_a_worker_says_what_its_device_is() -> None:
    with serving([NullDevice("NULL3")]) as server:
        (device,) = open_workers([f"127.0.0.1:{server.port}"])
        facts = device.facts
        device.close()
    assert facts is not None
    assert (facts.name, facts.kind, facts.program) == ("NULL3", DeviceKind.CPU, BUILD_INFO)
    assert str(facts).startswith("NULL3: ")


def test_a_stock_worker_says_nothing() -> None:
    def script(sock: socket.socket) -> None:
        introduce(sock)
        wait_for_end(sock)

    with fake_worker(script) as endpoint:
        (device,) = open_workers([endpoint])
        assert device.facts is None
        device.close()


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"[" * 60_000, b"\xff\xfe", b"9" * 60_000])
def test_what_is_no_object_is_refused(text: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="DEVICE_FACTS"):
        read_facts(text)


def test_values_of_the_wrong_kind_count_as_not_said() -> None:
    odd = {
        "name": 5,
        "description": ["x"],
        "kind": {},
        "threads": -1,
        "ops": "ADD",
        "program": None,
    }
    unknown = DeviceFacts("unknown", "unknown", DeviceKind.REMOTE, None, None, "unknown")
    assert read_facts(json.dumps(odd).encode()) == unknown
    assert read_facts(b"{}") == unknown
    for threads in (b"true", b"9" * 4000):
        assert read_facts(b'{"threads": %s}' % threads) == unknown


def test_text_from_elsewhere_cannot_paint_the_terminal_or_fill_it() -> None:
    facts = read_facts(json.dumps({"name": "\x1b[31mCPU\n", "description": "x" * 9999}).encode())
    assert facts.name == "[31mCPU"
    assert len(facts.description) == 200


def test_operations_that_are_not_known_here_are_passed_over() -> None:
    facts = read_facts(json.dumps({"ops": ["ADD", "WARP", 7, None]}).encode())
    assert facts.ops == frozenset({Op.ADD})


def test_a_main_host_knows_which_operations_a_worker_lacks() -> None:
    with serving([NullDevice()]) as server:
        (device,) = open_workers([f"127.0.0.1:{server.port}"])
        b = GraphBuilder()
        x = b.input(GGMLType.F32, (4,), "x")
        nodes = b.finish(b.add(b.reshape(x, 2, 2), b.reshape(x, 2, 2))).nodes
        device._facts = read_facts(json.dumps({"ops": ["MUL"]}).encode())
        reason = device.unsupported(nodes)
        device.close()
    assert reason is not None and reason.startswith("ADD: 127.0.0.1:")
