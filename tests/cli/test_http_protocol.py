"""A request without an end of its head does not fill the memory."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from app.cli.http_protocol import MAX_HEAD_BYTES, BoundedProtocol


async def echo_size(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the number of bytes in the body."""
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    body = str(size).encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    config = uvicorn.Config(
        echo_size, http=BoundedProtocol, lifespan="off", ws="none", log_config=None
    )
    server = uvicorn.Server(config)
    sock = socket.create_server(("127.0.0.1", 0))
    found = sock.getsockname()[1]
    thread = threading.Thread(target=server.run, args=([sock],))
    thread.start()
    yield found
    server.should_exit = True
    thread.join()


def exchange(port: int, data: bytes) -> bytes:
    """Send everything that the server takes and return all that it says."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        with contextlib.suppress(ConnectionError):
            sock.sendall(data)
        received = b""
        with contextlib.suppress(ConnectionError):
            while part := sock.recv(65536):
                received += part
        return received


@pytest.mark.parametrize(
    "endless", [b"X-Long: " + b"a" * 10_000_000, b"A: b\r\n" * 2_000_000], ids=["one", "many"]
)
def test_an_endless_head_ends_the_connection(port: int, endless: bytes) -> None:
    answer = exchange(port, b"GET / HTTP/1.1\r\nHost: x\r\n" + endless)
    assert b"200" not in answer[:16]


@pytest.mark.parametrize("size", [0, MAX_HEAD_BYTES // 2, 1_000_000])
def test_bodies_of_any_size_pass_twice_on_one_connection(port: int, size: int) -> None:
    head = f"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n"
    first = head.encode() + b"\r\n" + b"a" * size
    last = head.encode() + b"Connection: close\r\n\r\n" + b"a" * size
    answer = exchange(port, first + last)
    assert answer.count(b"200 OK") == 2
    assert answer.endswith(str(size).encode())
