"""One run of the server: HTTP in the main thread, the model in a loading thread, an orderly end."""

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

import uvicorn

from app.api.app import create_app
from app.api.service import Service, model_of
from app.cli.http_protocol import BoundedProtocol
from app.cli.listen import Listener, remove_unix_paths
from app.cli.options import Command
from app.engine.facade import EngineState
from app.errors import LlamaServeError

if TYPE_CHECKING:
    from app.engine.engine import LlamaEngine

_log = logging.getLogger(__name__)

_GRACE_S: Final = 1
"""How long running answers may take to end by themselves when the server is told to stop."""


_TRY: Final = """
Try it:  curl {url}/v1/chat/completions -H 'Content-Type: application/json' \\
           -d '{{"messages": [{{"role": "user", "content": "What is the capital of France?"}}]}}'
Ctrl-C stops everything.
"""


class _Server(uvicorn.Server):
    """uvicorn without its own way with signals, which would end the process before the engine."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class ServerProcess:
    """Runs until a signal comes or the model cannot be loaded. Used from the main thread."""

    def __init__(self, command: Command, listeners: Sequence[Listener]) -> None:
        self._command = command
        self._listeners = listeners
        self._service = Service(command.server, without_model=command.source.is_empty)
        self._server = _Server(_uvicorn_config(command, self._service))
        self._engine: LlamaEngine | None = None
        self._stopping = threading.Event()
        self._status = 0
        self._cleanup = ExitStack()

    def run(self) -> int:
        """Serve; return the exit status."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        loading = threading.Thread(target=self._load_or_end, name="loading", daemon=True)
        loading.start()
        self._server.run([listener.socket for listener in self._listeners])
        self._stopping.set()
        self._end(loading)
        return self._status

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._stopping.is_set():
            os._exit(1)
        self._stopping.set()
        self._server.should_exit = True

    def _load_or_end(self) -> None:
        """The loading thread: what goes wrong here ends the server."""
        try:
            self._load()
        except LlamaServeError as error:
            self._give_up(str(error))
        except Exception as error:  # noqa: BLE001 - the loop of this thread: told once, then the end
            _log.exception("loading ended unexpectedly")
            self._give_up(f"{type(error).__name__}: {error}")

    def _tell_urls(self) -> None:
        for listener in self._listeners:
            _log.info("server is listening on %s", listener.url)

    def _load(self) -> None:
        if self._service.without_model:
            self._tell_urls()
            return
        from app.cli.model_source import prepare_model
        from app.cli.progress import load_progress

        path, endpoints = prepare_model(self._command, self._cleanup)
        config = replace(self._command.engine, model_path=path, rpc_endpoints=endpoints)
        if self._stopping.is_set():
            return
        from app.engine.engine import LlamaEngine

        with load_progress("loading weights") as progress:
            engine = LlamaEngine(config, progress=progress, said=self._said)
            self._engine = engine
            engine.start()
            state = engine.wait_settled()
        if self._stopping.is_set():
            return
        if state is not EngineState.READY:
            self._give_up(engine.error or f"the engine is {state.value}")
            return
        model = model_of(engine, self._command.server)
        self._cleanup.callback(model.template.close)
        self._service.attach(model)
        _log.info("model loaded: %s", Path(engine.model.path).name)
        self._tell_urls()
        if self._command.source.demo:
            print(_TRY.format(url=self._listeners[0].url), flush=True)
        # The first use starts a process; better now than when somebody waits.
        _ = model.template.caps

    def _said(self, text: str) -> None:
        if not self._command.logs.disabled:
            print(text, file=sys.stderr, flush=True)

    def _give_up(self, reason: str) -> None:
        if self._stopping.is_set():
            return
        print(f"error: the model cannot be loaded: {reason}", file=sys.stderr, flush=True)
        self._status = 1
        self._server.should_exit = True

    def _end(self, loading: threading.Thread) -> None:
        """Stop engine and workers, but do not wait for either longer than a second."""
        finished = _within(_GRACE_S, self._stop_everything)
        if not finished or loading.is_alive():
            _log.debug("some threads are still busy, leaving them")
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            remove_unix_paths(self._listeners)
            os._exit(self._status)

    def _stop_everything(self) -> None:
        if self._engine is not None:
            self._engine.stop()
        self._cleanup.close()


def _within(seconds: float, work: Callable[[], None]) -> bool:
    """Do the work in a thread; return whether it was done in time."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def _uvicorn_config(command: Command, service: Service) -> uvicorn.Config:
    tls = command.server.tls
    config = uvicorn.Config(
        create_app(service),
        http=BoundedProtocol,
        lifespan="off",
        ws="none",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=_GRACE_S,
        ssl_keyfile=None if tls is None else tls.key_file,
        ssl_certfile=None if tls is None else tls.cert_file,
    )
    if tls is not None:
        from app.cli.https import renew_certificate

        config.load()
        assert config.ssl is not None
        renew_certificate(config.ssl, tls)
    return config
