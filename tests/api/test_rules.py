"""What holds for every path: error form, server name, CORS, keys, loading, limits, prefix."""

from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest

from app.api.cors import allowed_headers, allowed_origin
from app.api.middleware import PAGE_PATHS
from app.api.routes.absent import ABSENT
from app.api.settings import CorsSettings, ServerSettings
from app.engine.facade import EngineState
from tests.helpers.fake_engine import FakeEngine
from tests.helpers.live_server import SETTINGS, LiveServer, live_server

KEYS = replace(SETTINGS, api_keys=("first", "sécond"))


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server(FakeEngine(), replace(SETTINGS, api_prefix="/llm")) as live:
        yield live


@pytest.fixture(scope="module")
def guarded() -> Iterator[LiveServer]:
    with live_server(FakeEngine(), KEYS) as live:
        yield live


@pytest.fixture(scope="module")
def loading() -> Iterator[LiveServer]:
    with live_server(None, KEYS) as live:
        yield live


def is_error(answer: httpx.Response, status: int, kind: str) -> bool:
    """Whether an answer is an error in llama-server's form."""
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    error = answer.json()["error"]
    return (answer.status_code, error["code"], error["type"]) == (status, status, kind)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/nothing"),
        ("GET", "/completion"),
        ("DELETE", "/health"),
        ("PUT", "/props"),
        ("GET", "/v1/"),
        ("GET", "/health/"),
    ],
)
def test_unknown_paths_and_methods(server: LiveServer, method: str, path: str) -> None:
    answer = server.client.request(method, path)
    assert is_error(answer, 404, "not_found_error")
    assert answer.json()["error"]["message"] == "File Not Found"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"a": NaN}',
        b'{"a": "\\ud800"}',
        b"\xff\xfe",
        b'{"n_predict": ' + b"1" * 5000 + b"}",
        b"[" * 100_000,
        b'{"a": ' + b"[" * 500 + b"]" * 500 + b"}",
    ],
    ids=lambda data: data[:12],
)
def test_broken_json_is_a_bad_request(server: LiveServer, data: bytes) -> None:
    assert is_error(server.client.post("/completion", content=data), 400, "invalid_request_error")
    assert server.client.get("/health").status_code == 200


def test_large_bodies_are_refused_with_and_without_a_declared_length() -> None:
    small = replace(SETTINGS, max_body_bytes=1000)
    with live_server(FakeEngine(), small) as server:
        body = b'{"prompt": "' + b"a" * 2000 + b'"}'
        declared = server.client.post("/completion", content=body)
        chunked = server.client.post("/completion", content=iter([body[:900], body[900:]]))
    assert is_error(declared, 413, "invalid_request_error")
    assert is_error(chunked, 413, "invalid_request_error")


@pytest.mark.parametrize("path", ["/health", "/nothing", "/completion"])
def test_every_answer_names_the_server(server: LiveServer, path: str) -> None:
    assert server.client.get(path).headers["server"] == "llama.cpp"


def test_prefix_serves_the_same(server: LiveServer) -> None:
    assert server.client.get("/llm/health").json() == {"status": "ok"}
    assert server.client.get("/llm").text.startswith("<!doctype html>")
    assert server.client.get("/llmx/health").status_code == 404


def test_page_can_be_switched_off(server: LiveServer) -> None:
    assert all(server.client.get(path).status_code == 200 for path in PAGE_PATHS)
    with live_server(FakeEngine(), replace(SETTINGS, ui=False)) as bare:
        assert is_error(bare.client.get("/"), 404, "not_found_error")


@pytest.mark.parametrize("row", ABSENT, ids=lambda row: row.paths[0])
def test_what_is_not_offered_says_so(server: LiveServer, row: object) -> None:
    assert row in ABSENT
    for method, path in [(m, p) for r in ABSENT if r is row for p in r.paths for m in r.methods]:
        answer = server.client.request(method, path.replace("{id_slot}", "0"))
        assert is_error(answer, 501, "not_supported_error"), path


def test_disabled_helpers_have_their_own_form(server: LiveServer) -> None:
    answer = server.client.get("/tools")
    assert answer.status_code == 403
    assert answer.json() == {
        "error": {"message": "this feature is disabled", "type": "feature_disabled"}
    }


@pytest.mark.parametrize(
    "headers",
    [
        (b"Authorization", b"Bearer first"),
        (b"Authorization", b"first"),
        (b"X-Api-Key", b"first"),
        (b"Authorization", "Bearer sécond".encode()),
    ],
    ids=str,
)
def test_any_of_the_keys_opens(guarded: LiveServer, headers: tuple[bytes, bytes]) -> None:
    assert guarded.client.get("/v1/models", headers=[headers]).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer fir"},
        {"Authorization": "Bearer first second"},
        {"X-Api-Key": "firstt"},
    ],
    ids=str,
)
@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/props", "/nothing"])
def test_no_other_key_does(guarded: LiveServer, headers: dict[str, str], path: str) -> None:
    answer = guarded.client.get(path, headers=headers)
    assert is_error(answer, 401, "authentication_error")
    assert answer.json()["error"]["message"] == "Invalid API Key"


@pytest.mark.parametrize("path", ["/health", "/v1/health", "/", "/sw.js", "/_app/version.json"])
def test_public_paths_need_no_key(guarded: LiveServer, path: str) -> None:
    assert guarded.client.get(path).status_code == 200


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/nothing"])
def test_while_loading_everything_is_unavailable(loading: LiveServer, path: str) -> None:
    answer = loading.client.get(path)
    assert is_error(answer, 503, "unavailable_error")
    assert answer.json()["error"]["message"] == "Loading model"


def test_while_loading_page_and_preflight_work(loading: LiveServer) -> None:
    assert loading.client.get("/").status_code == 200
    assert loading.client.options("/completions").status_code == 200


def test_a_failed_engine_says_why_on_health() -> None:
    engine = FakeEngine()
    engine.state, engine.error = EngineState.FAILED, "worker RPC1 10.0.0.3:50052 is gone"
    with live_server(engine) as server:
        answer = server.client.get("/health")
    assert is_error(answer, 503, "unavailable_error")
    assert "RPC1" in answer.json()["error"]["message"]


def preflight(server: LiveServer, origin: str, headers: str) -> httpx.Headers:
    asked = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": headers,
    }
    answer = server.client.options("/completions", headers=asked)
    assert (answer.status_code, answer.content) == (200, b"")
    return answer.headers


def test_preflight_has_llama_servers_headers(guarded: LiveServer) -> None:
    headers = preflight(guarded, "web.mydomain.fr", "Authorization")
    assert headers["access-control-allow-origin"] == "web.mydomain.fr"
    assert headers["access-control-allow-credentials"] == "true"
    assert headers["access-control-allow-methods"] == "GET, POST, DELETE, OPTIONS"
    assert headers["access-control-allow-headers"] == "*"


def test_a_browser_may_send_its_key(guarded: LiveServer) -> None:
    headers = preflight(guarded, "http://app.example", "authorization,content-type")
    assert headers["access-control-allow-headers"] == "authorization,content-type"


def test_errors_can_be_read_by_pages_too(guarded: LiveServer) -> None:
    answer = guarded.client.get("/v1/models", headers={"Origin": "http://app.example"})
    assert answer.status_code == 401
    assert answer.headers["access-control-allow-origin"] == "http://app.example"
    assert answer.headers["access-control-allow-credentials"] == "true"


def test_without_an_origin_nothing_is_said_about_credentials(guarded: LiveServer) -> None:
    assert "access-control-allow-credentials" not in guarded.client.get("/health").headers


@pytest.mark.parametrize(
    ("origins", "origin", "allowed"),
    [
        ("*", "http://a", "http://a"),
        ("*", "", None),
        ("localhost", "http://localhost", "http://localhost"),
        ("localhost", "http://127.0.0.1:3000", "http://127.0.0.1:3000"),
        ("localhost", "http://[::1]:3000", "http://[::1]:3000"),
        ("localhost", "http://localhost.evil.com", None),
        ("localhost", "http://notlocalhost", None),
        ("localhost", "http://[::1", None),
        ("localhost", "", None),
        ("http://a", "http://b", "http://a"),
        ("http://a, http://b", "http://b", "http://b"),
        ("http://a, http://b", "http://c", None),
    ],
)
def test_origins(origins: str, origin: str, allowed: str | None) -> None:
    assert allowed_origin(CorsSettings(origins=origins), origin) == allowed


def test_without_credentials_any_origin_is_a_star() -> None:
    assert allowed_origin(CorsSettings(credentials=False), "http://a") == "*"


def test_a_configured_list_of_headers_is_not_extended() -> None:
    assert allowed_headers(CorsSettings(headers="X-One"), "authorization") == "X-One"


def test_defaults_are_those_of_llama_server() -> None:
    settings = ServerSettings()
    assert (settings.hosts, settings.port) == (("127.0.0.1",), 8080)
    assert (settings.endpoint_slots, settings.endpoint_metrics, settings.endpoint_props) == (
        True,
        False,
        False,
    )


def test_names_of_headers_have_llama_servers_capitals(guarded: LiveServer) -> None:
    with guarded.connect() as sock:
        sock.sendall(b"OPTIONS / HTTP/1.1\r\nHost: x\r\nOrigin: o\r\nConnection: close\r\n\r\n")
        received = b""
        while part := sock.recv(65536):
            received += part
    assert b"\r\nAccess-Control-Allow-Origin: o\r\n" in received
    assert b"\r\nServer: llama.cpp\r\n" in received
    assert received.count(b"ontent-") == 2, "length and type, once each"
