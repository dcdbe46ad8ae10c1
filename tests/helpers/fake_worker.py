"""A worker that misbehaves on purpose: each connection is handed to a script."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.helpers.rpc_frames import HELLO, response, u32, u64

Script = Callable[[socket.socket], None]

HELLO_V8 = response(bytes([8, 0, 0, 0]) + bytes(24))


@contextmanager
def fake_worker(script: Script) -> Iterator[str]:
    """Listen on loopback and run `script` for each connection in a thread of its own; yield the
    endpoint. Connections are closed when their script returns, all of them at the end.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    sockets: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def run(sock: socket.socket) -> None:
        try:
            script(sock)
        except OSError:
            return
        finally:
            sock.close()

    def accept() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            sockets.append(sock)
            threads.append(threading.Thread(target=run, args=(sock,)))
            threads[-1].start()

    acceptor = threading.Thread(target=accept)
    acceptor.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        shut(listener)
        acceptor.join()
        listener.close()
        for sock in sockets:
            shut(sock)
        for thread in threads:
            thread.join()


def shut(sock: socket.socket) -> None:
    """Wake whoever waits on a socket."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return


def read(sock: socket.socket, n: int) -> bytes:
    """Read exactly `n` bytes."""
    data = b""
    while len(data) < n:
        piece = sock.recv(n - len(data))
        if not piece:
            raise ConnectionError("closed")
        data += piece
    return data


def greet(sock: socket.socket) -> None:
    """Answer HELLO as a worker of version 8."""
    assert read(sock, len(HELLO)) == HELLO
    sock.sendall(HELLO_V8)


def introduce(sock: socket.socket) -> None:
    """Answer everything that `open_workers` asks of a worker with one device."""
    greet(sock)
    read(sock, 9)
    sock.sendall(response(u32(1)))
    for value in (32, 1 << 40):
        read(sock, 13)
        sock.sendall(response(u64(value)))


def wait_for_end(sock: socket.socket) -> None:
    """Say nothing more, until the other side is gone."""
    while sock.recv(1 << 16):
        pass
