"""A client that goes away takes its generations with it: streamed, whole, and while queued."""

import json
import socket
from collections.abc import Iterator

import pytest

from app.engine.request import GenerationRequest, StopReason
from tests.helpers.fake_engine import FakeEngine, Hold, Step, finished, says
from tests.helpers.live_server import LiveServer, live_server

WAIT_S = 60.0
HELLO = [{"role": "user", "content": "hi"}]


def holding(at: int, hold: Hold) -> FakeEngine:
    """An engine that stops before event number `at`, as if it were busy."""

    def script(request: GenerationRequest) -> Iterator[Step]:
        events = says("a", "b", "c")(request)
        for _ in range(at):
            yield next(events)
        yield hold
        yield from events

    return FakeEngine(script)


def send(server: LiveServer, body: dict[str, object]) -> socket.socket:
    data = json.dumps(body).encode()
    head = f"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    sock = server.connect()
    sock.sendall(head.encode() + data)
    return sock


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("at", [0, 1, 3], ids=["queued", "prefill", "decode"])
def test_leaving_cancels(at: int, stream: bool) -> None:
    hold = Hold()
    engine = holding(at, hold)
    with live_server(engine) as server:
        sock = send(server, {"prompt": "a", "stream": stream})
        assert hold.reached.wait(WAIT_S)
        sock.close()
        assert engine.generations[0].cancelled.wait(WAIT_S)


def test_leaving_cancels_every_choice() -> None:
    hold = Hold()
    engine = holding(1, hold)
    with live_server(engine) as server:
        sock = send(server, {"prompt": ["a", "b"], "stream": True})
        assert hold.reached.wait(WAIT_S)
        sock.close()
        assert all(generation.cancelled.wait(WAIT_S) for generation in engine.generations)
        assert len(engine.generations) == 2


def test_twenty_departures_leave_a_server_that_serves() -> None:
    hold = Hold()
    engine = holding(2, hold)
    with live_server(engine) as server:
        for _ in range(20):
            hold.reached.clear()
            sock = send(server, {"prompt": "a", "stream": True})
            assert hold.reached.wait(WAIT_S)
            sock.close()
        assert all(generation.cancelled.wait(WAIT_S) for generation in engine.generations)
        engine.script = says("fine")
        answer = server.client.post("/completion", json={"prompt": "a"})
    assert answer.json()["content"] == "fine"


def test_an_answer_that_is_read_to_its_end_cancels_nothing() -> None:
    engine = FakeEngine(says("a"))
    with live_server(engine) as server:
        assert server.client.post("/completion", json={"prompt": "a"}).status_code == 200
    assert not engine.generations[0].cancelled.is_set()


def test_headers_come_as_soon_as_a_slot_is_found() -> None:
    hold = Hold()
    with live_server(holding(1, hold)) as server:
        sock = send(server, {"prompt": "a", "stream": True})
        sock.settimeout(WAIT_S)
        assert sock.recv(15) == b"HTTP/1.1 200 OK"
        assert not hold.release.is_set()
        sock.close()


@pytest.mark.parametrize(
    ("path", "body", "end"),
    [
        ("/completion", {"prompt": "a"}, '"stop":true'),
        ("/v1/chat/completions", {"messages": HELLO}, "[DONE]"),
        ("/v1/responses", {"input": "a"}, "response.completed"),
        ("/v1/messages", {"messages": HELLO}, "message_stop"),
    ],
)
def test_silence_in_a_stream_is_broken_by_comments(
    path: str, body: dict[str, object], end: str
) -> None:
    hold = Hold()
    with live_server(holding(1, hold)) as server:
        body = body | {"stream": True, "sse_ping_interval": 1}
        with server.client.stream("POST", path, json=body) as answer:
            parts = answer.iter_text()
            assert next(parts) == ":\n\n"
            hold.release.set()
            assert end in "".join(parts)


def test_no_comments_before_the_headers_or_when_switched_off() -> None:
    hold = Hold()
    with live_server(holding(1, hold)) as server:
        body = {"prompt": "a", "stream": True, "sse_ping_interval": -1}
        with server.client.stream("POST", "/completion", json=body) as answer:
            hold.release.set()
            assert ":\n\n" not in answer.read().decode().split("data:")[0]


def test_streams_of_several_clients_do_not_mix() -> None:
    def script(request: GenerationRequest) -> Iterator[Step]:
        name = chr(request.prompt[-1])
        yield from list(says(*[name] * 20)(request))[:-1]
        yield finished(request, 20, StopReason.EOS)

    with live_server(FakeEngine(script)) as server:
        socks = {name: send(server, {"prompt": name, "stream": True}) for name in "abcdefgh"}
        texts: dict[str, str] = {}
        for name, sock in socks.items():
            received = b""
            while not received.endswith(b"0\r\n\r\n"):
                received += sock.recv(65536)
            sock.close()
            events = [line[6:] for line in received.decode().split("\n") if line[:6] == "data: "]
            texts[name] = "".join(json.loads(event)["content"] for event in events)
    assert texts == {name: name * 20 for name in "abcdefgh"}
