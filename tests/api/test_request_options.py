"""Options that every generating endpoint shares: honoured, ignored or refused, never in silence."""

from collections.abc import Iterator

import pytest

from app.sampling.list_kinds import TokenBias
from tests.helpers.fake_engine import FakeEngine
from tests.helpers.live_server import LiveServer, live_server
from tests.helpers.sse import read_events, read_named_events

HELLO: list[dict[str, object]] = [{"role": "user", "content": "hi"}]
REQUESTS: dict[str, dict[str, object]] = {
    "/completion": {"prompt": "a"},
    "/v1/completions": {"prompt": "a"},
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": HELLO},
}
NAMED = ("/v1/responses", "/v1/messages")
everywhere = pytest.mark.parametrize("path", REQUESTS)


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server(FakeEngine(n_slots=4)) as live:
        yield live


@pytest.fixture
def engine(server: LiveServer) -> FakeEngine:
    made = server.service.engine
    assert isinstance(made, FakeEngine)
    made.submitted.clear()
    return made


def post(server: LiveServer, path: str, **fields: object) -> int:
    return server.client.post(path, json=REQUESTS[path] | fields).status_code


@everywhere
def test_options_of_no_meaning_here_are_ignored(
    server: LiveServer, engine: FakeEngine, path: str
) -> None:
    hints = {
        "user": "me",
        "store": True,
        "metadata": {"a": "b"},
        "service_tier": "auto",
        "prediction": {"type": "content", "content": "x"},
        "functions": [],
        "modalities": ["text"],
        "my_own": [1, {"two": 3}],
    }
    assert post(server, path, **hints) == 200
    assert len(engine.submitted) == 1


@everywhere
@pytest.mark.parametrize(
    "asked",
    [
        {"functions": [{"name": "f"}]},
        {"function_call": {"name": "f"}},
        {"modalities": ["text", "audio"]},
        {"audio": {"voice": "alloy"}},
        {"image_data": [{"data": "", "id": 1}]},
        {"web_search_options": {"search_context_size": "low"}},
        {"lora": [{"id": 0, "scale": 1.0}]},
        {"echo": True},
        {"best_of": 3},
    ],
    ids=str,
)
def test_what_cannot_be_honoured_is_refused(
    server: LiveServer, engine: FakeEngine, path: str, asked: dict[str, object]
) -> None:
    assert post(server, path, **asked) == 400
    assert not engine.submitted


@everywhere
def test_seed_bias_and_stop_reach_the_engine(
    server: LiveServer, engine: FakeEngine, path: str
) -> None:
    stop = {"stop_sequences" if path == "/v1/messages" else "stop": ["x"]}
    assert post(server, path, seed=7, logit_bias={"65": -100, "66": 2.5}, **stop) == 200
    (request,) = engine.submitted
    assert request.sampling.seed == 7
    assert request.sampling.logit_bias == (TokenBias(65, -100.0), TokenBias(66, 2.5))
    assert request.stop == ("x",)


@pytest.mark.parametrize(
    ("path", "limits", "n"),
    [
        ("/v1/chat/completions", {"max_completion_tokens": 3}, 3),
        ("/v1/chat/completions", {"max_completion_tokens": 3, "max_tokens": 5}, 3),
        ("/v1/chat/completions", {"max_completion_tokens": None, "max_tokens": 5}, 5),
        ("/v1/completions", {"max_tokens": 5, "n_predict": 2}, 2),
        ("/v1/responses", {"max_output_tokens": 4}, 4),
        ("/v1/messages", {"max_tokens": 4}, 4),
    ],
    ids=str,
)
def test_the_limit_by_any_name(
    server: LiveServer, engine: FakeEngine, path: str, limits: dict[str, object], n: int
) -> None:
    assert post(server, path, **limits) == 200
    assert engine.submitted[0].n_predict == n


def test_three_choices_have_indexes_and_count_once(server: LiveServer) -> None:
    for path in ("/v1/completions", "/v1/chat/completions"):
        answer = server.client.post(path, json=REQUESTS[path] | {"n": 3}).json()
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
        assert answer["usage"]["completion_tokens"] == 3 * len("Hello there!")
        assert post(server, path, n=5) == 400, "more than there are slots"


def test_no_candidates_still_have_the_token_itself(server: LiveServer) -> None:
    body = {"messages": HELLO, "logprobs": True, "top_logprobs": 0}
    answer = server.client.post("/v1/chat/completions", json=body).json()
    content = answer["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == list("Hello there!")


@everywhere
@pytest.mark.parametrize("wrong", [{"stream_options": 5}, {"sse_ping_interval": -2}, {"seed": "x"}])
def test_wrong_values_are_refused(
    server: LiveServer, engine: FakeEngine, path: str, wrong: dict[str, object]
) -> None:
    assert post(server, path, **wrong) == 400
    assert not engine.submitted


@everywhere
def test_a_stream_ends_as_its_clients_expect(server: LiveServer, path: str) -> None:
    body = REQUESTS[path] | {"stream": True}
    if path in NAMED:
        last = read_named_events(server, path, body)[-1]
        assert last["type"] in ("response.completed", "message_stop")
    else:
        is_done = read_events(server, path, body)[-1] == "[DONE]"
        assert is_done == path.startswith("/v1/")
