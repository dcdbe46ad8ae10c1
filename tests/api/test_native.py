"""POST /completion: llama-server's own form, whole and streamed."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from app.api.settings import RequestDefaults
from app.engine.request import GrammarKind
from tests.helpers.fake_engine import BOS, FakeEngine, says
from tests.helpers.live_server import SETTINGS, LiveServer, live_server
from tests.helpers.sse import read_events


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    return FakeEngine(says("Hello", " there", "!"))


@pytest.fixture(scope="module")
def server(engine: FakeEngine) -> Iterator[LiveServer]:
    defaults = RequestDefaults(n_predict=64, stop=("STOP",))
    with live_server(engine, replace(SETTINGS, defaults=defaults)) as live:
        yield live


def post(server: LiveServer, **body: object) -> dict[str, object]:
    answer = server.client.post("/completion", json=body)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert isinstance(found, dict)
    return found


def test_whole_answer_has_the_fields_of_llama_server(server: LiveServer) -> None:
    body = post(server, prompt="ab")
    assert body["content"] == "Hello there!"
    assert body["tokens"] == []
    assert body["stop"] is True
    assert (body["stop_type"], body["stopping_word"]) == ("eos", "")
    assert body["prompt"] == "<s>ab"
    assert (body["tokens_predicted"], body["tokens_evaluated"]) == (12, 3)
    assert body["tokens_cached"] == 15
    assert body["model"] == "fake"
    assert set(body) >= {"index", "id_slot", "has_new_line", "truncated", "timings"}


def test_generation_settings_show_what_was_used(server: LiveServer) -> None:
    body = post(server, prompt="a", temperature=0, top_k=None, n_predict=7, seed=3)
    settings = body["generation_settings"]
    assert isinstance(settings, dict)
    assert settings["temperature"] == 0.0
    assert settings["top_k"] == 40
    assert (settings["n_predict"], settings["max_tokens"]) == (7, 7)
    assert settings["seed"] == 3
    assert settings["stop"] == ["STOP"]
    assert settings["speculative.types"] == "none"


def test_no_limit_in_the_request_means_the_limit_of_the_server(
    server: LiveServer, engine: FakeEngine
) -> None:
    body = post(server, prompt="a", n_predict=-1)
    settings = body["generation_settings"]
    assert isinstance(settings, dict)
    assert settings["n_predict"] == -1
    assert engine.submitted[-1].n_predict == 64


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"n_predict": 3, "max_tokens": 9, "max_completion_tokens": 8}, 3),
        ({"max_tokens": 9, "max_completion_tokens": 8}, 8),
        ({"n_predict": None, "max_tokens": 9}, 9),
        ({"max_tokens": 4.0}, 4),
    ],
)
def test_names_of_the_token_limit_have_an_order(
    server: LiveServer, engine: FakeEngine, given: dict[str, object], expected: int
) -> None:
    post(server, prompt="a", **given)
    assert engine.submitted[-1].n_predict == expected


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", [BOS, 97, 98]),
        ([97, 98], [97, 98]),
        (["a", 98, "c"], [BOS, 97, 98, 99]),
        ([97, "b"], [97, 98]),
        ({"prompt_string": "ab"}, [BOS, 97, 98]),
    ],
)
def test_every_form_of_one_prompt(
    server: LiveServer, engine: FakeEngine, prompt: object, expected: list[int]
) -> None:
    post(server, prompt=prompt)
    assert list(engine.submitted[-1].prompt) == expected


def test_several_prompts_give_an_array_in_their_order(server: LiveServer) -> None:
    answer = server.client.post(
        "/completion", json={"prompt": ["a", [98, 98], {"prompt_string": "c"}]}
    )
    assert [item["prompt"] for item in answer.json()] == ["<s>a", "bb", "<s>c"]
    assert [item["index"] for item in answer.json()] == [0, 1, 2]


def test_choices_differ_in_their_seed_only(server: LiveServer, engine: FakeEngine) -> None:
    answer = server.client.post(
        "/completion", json={"prompt": "a", "n": 2, "seed": 5, "id_slot": 1}
    )
    assert len(answer.json()) == 2
    first, second = engine.submitted[-2:]
    assert (first.sampling.seed, second.sampling.seed) == (5, 6)
    assert (first.id_slot, second.id_slot) == (1, -1)


def test_response_fields_pick_and_flatten(server: LiveServer) -> None:
    paths = ["content", "generation_settings/n_predict", "timings/nothing", "none"]
    body = post(server, prompt="a", n_predict=32, response_fields=paths)
    assert body == {"content": "Hello there!", "generation_settings/n_predict": 32}


def test_tokens_are_returned_on_request(server: LiveServer) -> None:
    assert post(server, prompt="a", return_tokens=True)["tokens"] == [*b"Hello there!"]


def test_probabilities_of_each_token(server: LiveServer) -> None:
    entries = post(server, prompt="a", n_probs=2, n_predict=5)["completion_probabilities"]
    assert isinstance(entries, list) and len(entries) == 5
    assert entries[0] == {
        "id": 72,
        "token": "H",
        "bytes": [72],
        "logprob": -0.5,
        "top_logprobs": [
            {"id": 72, "token": "H", "bytes": [72], "logprob": -0.5},
            {"id": 73, "token": "I", "bytes": [73], "logprob": -1.5},
        ],
    }


def test_probabilities_after_sampling_have_other_names(server: LiveServer) -> None:
    body = post(server, prompt="a", n_probs=1, n_predict=5, post_sampling_probs=True)
    entries = body["completion_probabilities"]
    assert isinstance(entries, list)
    assert entries[0]["prob"] == pytest.approx(0.60653, abs=1e-5)
    assert set(entries[0]) == {"id", "token", "bytes", "prob", "top_probs"}


def test_stream_ends_with_the_final_object_and_nothing_more(server: LiveServer) -> None:
    events = read_events(server, "/completion", {"prompt": "a", "stream": True})
    assert events[-1] != "[DONE]"
    chunks = [event for event in events if isinstance(event, dict)]
    assert [c["stop"] for c in chunks] == [False, False, False, True]
    assert "".join(str(c["content"]) for c in chunks) == "Hello there!"
    assert chunks[0]["tokens"] == [*b"Hello"]
    assert chunks[0]["tokens_predicted"] == 5
    assert chunks[-1]["tokens"] == []
    assert "timings" not in chunks[0] and "timings" in chunks[-1]


def test_stream_and_whole_are_the_same_text(server: LiveServer) -> None:
    chunks = read_events(server, "/completion", {"prompt": "a", "stream": True})
    streamed = "".join(str(c["content"]) for c in chunks if isinstance(c, dict))
    assert streamed == post(server, prompt="a")["content"]


def test_progress_and_timings_of_each_chunk(server: LiveServer) -> None:
    body = {"prompt": "abc", "stream": True, "return_progress": True, "timings_per_token": True}
    chunks = [c for c in read_events(server, "/completion", body) if isinstance(c, dict)]
    progress = [c for c in chunks if "prompt_progress" in c]
    assert [c["prompt_progress"] for c in progress] == [
        {"total": 4, "cache": 0, "processed": 0, "time_ms": 0},
        {"total": 4, "cache": 0, "processed": 4, "time_ms": 5},
    ]
    first, last = progress[0]["timings"], progress[1]["timings"]
    assert isinstance(first, dict) and isinstance(last, dict)
    assert (first["prompt_n"], first["prompt_ms"], first["predicted_ms"]) == (0, 0.0, 0.0)
    assert (last["prompt_n"], last["prompt_ms"]) == (4, 5.0)
    assert all("timings" in chunk for chunk in chunks)


@pytest.mark.parametrize(
    ("field", "kind", "source"),
    [
        ({"grammar": "root ::= x"}, GrammarKind.GBNF, "root ::= x"),
        ({"json_schema": {"const": 1}}, GrammarKind.JSON_SCHEMA, '{"const": 1}'),
        ({"json_schema": {}}, GrammarKind.JSON_SCHEMA, '{"type": "object"}'),
    ],
)
def test_constraints_reach_the_engine(
    server: LiveServer,
    engine: FakeEngine,
    field: dict[str, object],
    kind: GrammarKind,
    source: str,
) -> None:
    post(server, prompt="a", **field)
    grammar = engine.submitted[-1].grammar
    assert grammar is not None
    assert (grammar.kind, grammar.source) == (kind, source)


def test_fields_that_clients_add_are_ignored(server: LiveServer) -> None:
    post(server, prompt="a", user="me", store=True, metadata={"a": 1}, service_tier="auto")


@pytest.mark.parametrize(
    ("field", "named"),
    [
        ({"n_predict": "many"}, "n_predict"),
        ({"n_predict": -2}, "n_predict"),
        ({"n_predict": True}, "n_predict"),
        ({"n_keep": -2}, "n_keep"),
        ({"n": 0}, "n"),
        ({"n": 3}, "n"),
        ({"stream": "yes"}, "stream"),
        ({"stop": [1]}, "stop"),
        ({"repeat_last_n": -1}, "repeat_last_n"),
        ({"response_fields": "content"}, "response_fields"),
        ({"grammar": "a", "json_schema": {}}, "grammar"),
        ({"lora": [{"id": 0, "scale": 1}]}, "lora"),
        ({"suffix": "end"}, "suffix"),
        ({"prompt": []}, "prompt"),
        ({"prompt": {"text": "a"}}, "prompt"),
        ({"prompt": [999]}, "token"),
        ({"prompt": [["a", ["b"]]]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": ["a"] * 1025}, "prompts"),
        ({"stop": ["a"] * 1025}, "stop"),
        ({"n_probs": 10**6, "prompt": ["a"] * 1000}, "probabilities"),
    ],
)
def test_wrong_fields_are_named(server: LiveServer, field: dict[str, object], named: str) -> None:
    answer = server.client.post("/completion", json={"prompt": "a"} | field)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert named in error["message"]


def test_media_are_an_error_of_the_server(server: LiveServer) -> None:
    prompt = {"prompt_string": "a", "multimodal_data": ["aGk="]}
    answer = server.client.post("/completion", json={"prompt": prompt})
    assert answer.status_code == 500


def test_ignoring_the_end_shows_as_forbidden_tokens(server: LiveServer) -> None:
    settings = post(server, prompt="a", ignore_eos=True)["generation_settings"]
    assert isinstance(settings, dict)
    assert settings["logit_bias"] == [{"bias": None, "token": 257}]
