"""Renders chat templates in a process of its own, so that no template can harm the server.

Used by `chat_template` from the server's thread pool. Why a process: a template is a program that
came with a file. jinja2's sandbox keeps it from Python's insides, but not from looping for ever
or from building a string of 10 GB, and a thread that is busy in one long call cannot be stopped.
The process is cheap (one per server, started at the first render, about 0.1 s, then 0.2 ms per
render) and the operating system limits its time and memory; see `template_worker`. Over its limit
it is killed and the next render starts a new one. The server itself never imports jinja2.
"""

import json
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.errors import RequestError

_HEADER: Final = struct.Struct(">I")
_WORKER_FILE: Final = Path(__file__).with_name("template_worker.py")
# A new process imports jinja2 before it reads; a busy machine may take seconds for that.
_START_GRACE_S: Final = 20.0
_MAX_REQUEST_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """What one render may take."""

    time_s: float = 2.0
    output_chars: int = 8 << 20


@dataclass(frozen=True, slots=True)
class _Worker:
    process: subprocess.Popen[bytes]
    channel: socket.socket

    def stop(self) -> None:
        self.channel.close()
        self.process.kill()
        self.process.wait()


class TemplateLimitError(RequestError):
    """A render took too long, or its process died: trying the same again would cost as much."""


class _Gone(Exception):
    """The process ended, or did not answer in time."""


class TemplateSandbox:
    """Owns the rendering process; `render` may be called from any thread, one render at a time."""

    def __init__(self, limits: RenderLimits | None = None) -> None:
        self._limits = limits or RenderLimits()
        self._lock = threading.Lock()
        self._worker: _Worker | None = None
        self._stop_worker: Callable[[], object] = _nothing

    def render(self, source: str, context: Mapping[str, object]) -> str:
        """Return the text that the template makes of `context` (JSON values only).

        Raises:
            RequestError: the template is wrong, refuses the input, or goes over a limit.
            TemplateLimitError: in the last case, where the process had to be ended.
        """
        frame = self._encode(source, context)
        with self._lock:
            worker = self._worker or self._start()
            try:
                answer = self._exchange(worker, frame)
            except _Gone as error:
                self._stop()
                raise TemplateLimitError(f"chat template: {error}") from error
        text = answer.get("text")
        if isinstance(text, str):
            return text
        line = answer.get("line")
        where = f" (line {line} of the template)" if line else ""
        raise RequestError(f"chat template: {answer.get('error')}{where}")

    def close(self) -> None:
        """Stop the process; a later render starts another."""
        with self._lock:
            self._stop()

    def _encode(self, source: str, context: Mapping[str, object]) -> bytes:
        request = {
            "source": source,
            "context": dict(context),
            "time_limit_s": self._limits.time_s,
            "max_chars": self._limits.output_chars,
            "now": time.time(),
        }
        try:
            body = json.dumps(request).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise RequestError(
                f"chat template: the messages are no JSON values: {error}"
            ) from error
        if len(body) > _MAX_REQUEST_BYTES:
            raise RequestError(
                f"chat template: the messages take {len(body)} bytes, "
                f"expected at most {_MAX_REQUEST_BYTES}"
            )
        return _HEADER.pack(len(body)) + body

    def _start(self) -> _Worker:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                # -P: the folder of the script is no place to import from.
                [sys.executable, "-P", str(_WORKER_FILE)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # Ctrl-C in the terminal is for the server, which ends this process by itself.
                start_new_session=True,
            )
        worker = _Worker(process, ours)
        self._worker = worker
        self._stop_worker = weakref.finalize(self, worker.stop)
        return worker

    def _stop(self) -> None:
        self._stop_worker()
        self._worker, self._stop_worker = None, _nothing

    def _exchange(self, worker: _Worker, frame: bytes) -> dict[str, object]:
        deadline = time.monotonic() + self._limits.time_s + _START_GRACE_S
        try:
            worker.channel.settimeout(deadline - time.monotonic())
            worker.channel.sendall(frame)
            (n_bytes,) = _HEADER.unpack(_receive(worker.channel, _HEADER.size, deadline))
            # A character is at most 4 bytes, or 6 where JSON escapes it.
            if n_bytes > 6 * self._limits.output_chars + (1 << 16):
                raise _Gone(f"an answer of {n_bytes} bytes")
            body = _receive(worker.channel, n_bytes, deadline)
        except OSError as error:
            raise _Gone(self._reason(worker)) from error
        answer: dict[str, object] = json.loads(body.decode("utf-8", "surrogatepass"))
        return answer

    def _reason(self, worker: _Worker) -> str:
        try:
            status = worker.process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            return f"no answer within {self._limits.time_s + _START_GRACE_S:g} s"
        if status == -signal.SIGALRM:
            return f"rendering took longer than {self._limits.time_s:g} s"
        return f"the rendering process ended with status {status}"


def _nothing() -> None:
    return None


def _receive(channel: socket.socket, n_bytes: int, deadline: float) -> bytes:
    data = bytearray()
    while len(data) < n_bytes:
        channel.settimeout(max(deadline - time.monotonic(), 0.001))
        chunk = channel.recv(min(n_bytes - len(data), 1 << 20))
        if not chunk:
            raise ConnectionResetError("the rendering process has closed its end")
        data += chunk
    return bytes(data)
