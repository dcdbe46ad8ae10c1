"""A page of another origin in Chromium: it may send its key, and reads streams and errors."""

import json
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.clients.programs import chat_server, system_program
from tests.helpers.assets import PROJECT_ROOT
from tests.helpers.process import running

PAGE = PROJECT_ROOT / "tests" / "clients" / "page.html"
BROWSER_TIMEOUT_S = 200
CHROMIUM_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

pytestmark = pytest.mark.clients


class PageServer(ThreadingHTTPServer):
    """Serves the page and keeps what it tells."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), PageHandler)
        self.told: queue.Queue[dict[str, object]] = queue.Queue()


class PageHandler(BaseHTTPRequestHandler):
    """GET is the page, POST is what it saw."""

    server: PageServer

    def do_GET(self) -> None:
        is_page = self.path.startswith("/?")
        self._answer(200 if is_page else 404, PAGE.read_bytes() if is_page else b"")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.told.put(json.loads(body))
        self._answer(200, b"")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextmanager
def page_server() -> Iterator[PageServer]:
    with PageServer() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    profile: Path = tmp_path_factory.mktemp("profile")
    chromium = system_program("chromium")
    with chat_server("--api-key", "sekrit") as server, page_server() as page:
        address = f"http://localhost:{page.server_port}/?server={quote(server.url)}"
        command = [chromium, *CHROMIUM_FLAGS, f"--user-data-dir={profile}", address]
        with running(command) as browser:
            try:
                return page.told.get(timeout=BROWSER_TIMEOUT_S)
            except queue.Empty:
                pytest.fail(f"the page told nothing: {browser.output[-4000:]}")


def test_the_page_may_ask_at_all(seen: dict[str, object]) -> None:
    assert "failure" not in seen, seen["failure"]
    assert seen["models"] == 1


def test_the_page_reads_a_stream_as_it_comes(seen: dict[str, object]) -> None:
    assert seen["type"] == "text/event-stream"
    assert str(seen["text"]).endswith("data: [DONE]\n\n")
    assert isinstance(seen["reads"], int) and seen["reads"] > 3


def test_the_page_may_send_cookies_and_headers_of_its_own(seen: dict[str, object]) -> None:
    assert (seen["included"], seen["stainless"]) == (200, 200)


def test_the_page_can_read_why_it_is_refused(seen: dict[str, object]) -> None:
    assert (seen["refused"], seen["reason"]) == (401, "Invalid API Key")
