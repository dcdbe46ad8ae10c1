"""/cors-proxy: what goes on to the other server, what comes back, what is refused."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from app.api.routes.proxy import passed_headers, proxied_headers
from tests.helpers.fake_engine import FakeEngine
from tests.helpers.live_server import SETTINGS, LiveServer, live_server


class Target(BaseHTTPRequestHandler):
    """Answers what it was asked."""

    seen: list[tuple[str, str, dict[str, str], bytes]]

    def answer(self) -> None:
        n = int(self.headers.get("content-length") or 0)
        self.seen.append((self.command, self.path, dict(self.headers), self.rfile.read(n)))
        status = {"/empty": 204, "/away": 302, "/bad": 418}.get(self.path, 200)
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "ftp://127.0.0.1/x")
        self.send_header("Set-Cookie", "a=b")
        self.send_header("Access-Control-Allow-Origin", "http://else.where")
        self.send_header("X-Own", "1")
        self.end_headers()
        if status != 204:
            self.wfile.write(b"said \xff")

    do_GET = do_POST = answer

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    Target.seen = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Target)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server(FakeEngine(), replace(SETTINGS, cors_proxy=True)) as live:
        yield live


def test_only_headers_meant_for_it_reach_the_other_server(server: LiveServer, target: str) -> None:
    headers = {
        "Authorization": "Bearer ours",
        "Cookie": "session=ours",
        "X-Llama-Server-Proxy-Header-Authorization": "Bearer theirs",
        "x-llama-server-proxy-header-": "nothing",
    }
    url = f"{target}/mcp?x=1"
    answer = server.client.post("/cors-proxy", params={"url": url}, headers=headers, content=b"ab")
    assert answer.status_code == 200
    method, path, seen, body = Target.seen[-1]
    assert (method, path, body) == ("POST", "/mcp?x=1", b"ab")
    names = {name.lower(): value for name, value in seen.items()}
    assert names.pop("authorization") == "Bearer theirs"
    assert set(names) == {"host", "content-length"}


def test_answers_come_back_as_they_are(server: LiveServer, target: str) -> None:
    headers = {"Origin": "http://page"}
    answer = server.client.get("/cors-proxy", params={"url": f"{target}/bad"}, headers=headers)
    assert (answer.status_code, answer.content) == (418, b"said \xff")
    assert answer.headers["x-own"] == "1"
    assert "set-cookie" not in answer.headers
    assert answer.headers["server"] == "llama.cpp"
    assert answer.headers.get_list("access-control-allow-origin") == ["http://page"]


def test_an_answer_without_content_has_none(server: LiveServer, target: str) -> None:
    answer = server.client.post("/cors-proxy", params={"url": f"{target}/empty"})
    assert (answer.status_code, answer.content) == (204, b"")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "nonsense",
        "file:///etc/passwd",
        "ftp://127.0.0.1/",
        "http://",
        "http://a:b@127.0.0.1/",
        "http://[::1",
        "http://127.0.0.1:99999/",
        "gopher://x",
        "//127.0.0.1/",
    ],
)
def test_only_plain_web_addresses_are_targets(server: LiveServer, url: str) -> None:
    answer = server.client.get("/cors-proxy", params={"url": url})
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_a_redirect_elsewhere_than_the_web_is_an_error(server: LiveServer, target: str) -> None:
    answer = server.client.get("/cors-proxy", params={"url": f"{target}/away"})
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "server_error"


def test_a_server_that_is_not_there_is_an_error(server: LiveServer) -> None:
    answer = server.client.get("/cors-proxy", params={"url": "http://127.0.0.1:1/"})
    assert answer.status_code == 500


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_switched_off_it_says_so(method: str) -> None:
    with live_server(FakeEngine()) as closed:
        answer = closed.client.request(method, "/cors-proxy", params={"url": "http://127.0.0.1/"})
        assert closed.client.get("/props").json()["cors_proxy_enabled"] is False
    assert answer.status_code == 403
    assert answer.json()["error"]["type"] == "feature_disabled"


def test_which_headers_pass() -> None:
    assert proxied_headers({"X-Llama-Server-Proxy-Header-Accept": "a", "Accept": "b"}) == {
        "accept": "a"
    }
    assert passed_headers({"Connection": "close", "Access-Control-Max-Age": "1", "ETag": "x"}) == {
        "ETag": "x"
    }
