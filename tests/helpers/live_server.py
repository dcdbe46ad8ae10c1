"""A real HTTP server on loopback for a Service, in a thread; and clients for it."""

import contextlib
import functools
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import uvicorn

from app.api.app import create_app
from app.api.service import Model, Service
from app.api.settings import ServerSettings
from app.tokenizer.chat_template import ChatTemplate
from tests.helpers.fake_engine import FakeEngine

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if tools %}(tools){{ tools[0].function.name }}{% endif %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
SETTINGS = ServerSettings(model_name="fake", aliases=("fake",))


@dataclass(frozen=True)
class LiveServer:
    """Where it listens, what it serves, and a client that knows the address."""

    port: int
    service: Service
    client: httpx.Client

    def connect(self) -> socket.socket:
        """Open a bare connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)


@functools.cache
def fake_template(source: str = TEMPLATE) -> ChatTemplate:
    """A template that shows what it was given; one for all tests, as each has a process."""
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>")


@contextlib.contextmanager
def live_server(
    engine: FakeEngine | None, settings: ServerSettings = SETTINGS
) -> Iterator[LiveServer]:
    """Serve a fake engine, or none: a server that is still loading."""
    service = Service(settings)
    if engine is not None:
        service.attach(Model(engine, fake_template(settings.chat.template or TEMPLATE)))
    with serving(service) as live:
        yield live


@contextlib.contextmanager
def serving(service: Service) -> Iterator[LiveServer]:
    """Serve a service as it is."""
    config = uvicorn.Config(
        create_app(service),
        lifespan="off",
        ws="none",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    sock = socket.create_server(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    thread = threading.Thread(target=server.run, args=([sock],))
    thread.start()
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            yield LiveServer(port, service, client)
    finally:
        server.should_exit = True
        thread.join()
