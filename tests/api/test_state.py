"""GET /health, /v1/models, /props, /slots, /metrics, and the two text endpoints."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.api.metrics import render_metrics
from app.api.rate_window import RateWindow
from app.api.settings import RequestDefaults, ServerSettings
from app.engine.facade import EngineStats, SlotInfo, WorkerStats
from app.sampling.params import SamplingParams
from tests.helpers.fake_engine import BOS, EOS, N_CTX, FakeEngine, idle_slot
from tests.helpers.live_server import SETTINGS, LiveServer, live_server

OPEN = ServerSettings(
    model_name="code",
    aliases=("code", "fim", "tiny"),
    tags=("chat", "small"),
    endpoint_metrics=True,
    endpoint_props=True,
    defaults=RequestDefaults(sampling=SamplingParams(seed=42)),
)
STATS = EngineStats(
    prompt_tokens=12_345_679,
    prompt_tokens_cached=5,
    prompt_seconds=2.0,
    predicted_tokens=100,
    predicted_seconds=4.0,
    n_decode=50,
    n_tokens_max=77,
    n_busy_slots=75,
    requests_processing=1,
    requests_deferred=2,
    workers=(WorkerStats("RPC0", 'ho"st:50052', True, 10, 20),),
)
N_WORKER_METRICS = 3
COUNTERS = (
    "prompt_tokens_total",
    "prompt_tokens_cached_total",
    "prompt_seconds_total",
    "tokens_predicted_total",
    "tokens_predicted_seconds_total",
    "n_decode_total",
    "n_tokens_max",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total",
    "spec_decode_num_drafts_total",
)
GAUGES = (
    "prompt_tokens_seconds",
    "predicted_tokens_seconds",
    "requests_processing",
    "requests_deferred",
    "n_busy_slots_per_decode",
)


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    return FakeEngine(n_slots=2)


@pytest.fixture(scope="module")
def server(engine: FakeEngine) -> Iterator[LiveServer]:
    with live_server(engine, OPEN) as live:
        yield live


@pytest.fixture(scope="module")
def closed() -> Iterator[LiveServer]:
    with live_server(FakeEngine(), replace(SETTINGS, endpoint_slots=False)) as live:
        yield live


@pytest.mark.parametrize("path", ["/models", "/v1/models"])
def test_models(server: LiveServer, path: str) -> None:
    body = server.client.get(path).json()
    (entry,) = body["data"]
    assert body["object"] == "list"
    assert (entry["id"], entry["aliases"]) == ("code", ["code", "fim", "tiny"])
    assert entry["tags"] == ["chat", "small"]
    assert entry["owned_by"] == "llamacpp"
    assert entry["architecture"]["input_modalities"] == ["text"]
    assert entry["meta"]["n_ctx_train"] == 2 * N_CTX
    assert body["models"][0]["details"]["format"] == "gguf"


def test_props(server: LiveServer) -> None:
    body = server.client.get("/props").json()
    settings = body["default_generation_settings"]
    assert (settings["n_ctx"], settings["params"]["seed"]) == (N_CTX, 42)
    assert "grammar" not in settings["params"]
    assert (body["total_slots"], body["model_path"]) == (2, "/models/fake.gguf")
    assert (body["bos_token"], body["eos_token"]) == ("<s>", "</s>")
    assert body["chat_template"].startswith("{{ bos_token }}")
    assert body["chat_template_caps"]["supports_system_role"] is True
    assert body["endpoint_slots"] is True
    assert body["is_sleeping"] is False


def test_props_change_only_when_allowed(server: LiveServer, closed: LiveServer) -> None:
    assert server.client.post("/props", json={}).json() == {"success": True}
    assert closed.client.post("/props", json={}).status_code == 501


def test_slots_tell_about_a_task_only_after_one(server: LiveServer, engine: FakeEngine) -> None:
    engine.slot_infos = (idle_slot(0),)
    assert server.client.get("/slots").json() == [
        {"id": 0, "n_ctx": N_CTX, "speculative": False, "is_processing": False}
    ]
    body = {"prompt": "abc", "temperature": 0, "n_predict": 3}
    assert server.client.post("/completion", json=body).status_code == 200
    request = engine.submitted[-1]
    task = engine.generations[-1].id
    engine.slot_infos = (SlotInfo(0, N_CTX, True, task, 4, 4, 0, request, 2, 1, True, False),)
    (slot,) = server.client.get("/slots").json()
    assert slot["is_processing"] is True
    assert (slot["id_task"], slot["n_prompt_tokens"]) == (task, 4)
    assert (slot["params"]["temperature"], slot["params"]["n_predict"]) == (0.0, 3)
    assert slot["next_token"] == [
        {"has_next_token": True, "has_new_line": False, "n_remain": 1, "n_decoded": 2}
    ]
    assert "prompt" not in slot
    busy = server.client.get("/slots?fail_on_no_slot=1")
    assert busy.status_code == 503


def test_slots_can_be_switched_off(closed: LiveServer) -> None:
    assert closed.client.get("/slots").status_code == 501


def test_metrics_can_be_switched_off(closed: LiveServer) -> None:
    assert closed.client.get("/metrics").status_code == 501


def test_metrics_have_llama_servers_names_and_types(server: LiveServer, engine: FakeEngine) -> None:
    engine.statistics = STATS
    answer = server.client.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4"
    assert answer.headers["process-start-time-unix"].isdecimal()
    lines = answer.text.splitlines()
    assert answer.text.endswith("\n")
    for kind, names in (("counter", COUNTERS), ("gauge", GAUGES)):
        for name in names:
            assert f"# TYPE llamacpp:{name} {kind}" in lines
            assert any(line.startswith(f"# HELP llamacpp:{name} ") for line in lines)
            assert any(line.startswith(f"llamacpp:{name} ") for line in lines)


def test_metrics_can_be_parsed_and_keep_every_digit() -> None:
    text = render_metrics(STATS, RateWindow()).decode()
    samples = {
        (sample.name, sample.labels.get("worker")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["llamacpp:prompt_tokens_total", None] == 12_345_679
    # The reader adds the suffix that this counter of llama-server lacks.
    assert samples["llamacpp:n_tokens_max_total", None] == 77
    assert samples["llamacpp:n_busy_slots_per_decode", None] == 1.5
    assert samples["llamaserve:worker_up", "RPC0"] == 1
    assert samples["llamaserve:worker_sent_bytes_total", "RPC0"] == 10
    assert sum(worker == "RPC0" for _, worker in samples) == N_WORKER_METRICS


def test_rates_speak_of_the_time_since_the_last_scrape() -> None:
    window = RateWindow()
    assert window.rates(replace(STATS, prompt_tokens=10)) == (5.0, 25.0)
    assert window.rates(replace(STATS, prompt_tokens=10)) == (0.0, 0.0)
    later = replace(STATS, prompt_tokens=10, predicted_tokens=120, predicted_seconds=5.0)
    assert window.rates(later) == (0.0, 20.0)


def tokenize(server: LiveServer, **body: object) -> object:
    answer = server.client.post("/tokenize", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["tokens"]


def test_tokenize(server: LiveServer) -> None:
    assert tokenize(server, content="ab") == [97, 98]
    assert tokenize(server, content="ab", add_special=True) == [BOS, 97, 98]
    assert tokenize(server, content=[5, "a"]) == [5, 97]
    assert tokenize(server) == []


def test_pieces_that_are_no_text_are_bytes(server: LiveServer) -> None:
    assert tokenize(server, content="aé", with_pieces=True) == [
        {"id": 97, "piece": "a"},
        {"id": 0xC3, "piece": [0xC3]},
        {"id": 0xA9, "piece": [0xA9]},
    ]


def test_detokenize_writes_control_tokens_out(server: LiveServer) -> None:
    answer = server.client.post("/detokenize", json={"tokens": [BOS, 97, EOS]})
    assert answer.json() == {"content": "<s>a</s>"}
    assert server.client.post("/detokenize", json={}).json() == {"content": ""}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"content": 1}),
        ("/tokenize", {"content": [None]}),
        ("/tokenize", {"content": "a", "add_special": 1}),
        ("/detokenize", {"tokens": "a"}),
        ("/detokenize", {"tokens": ["a"]}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": [True]}),
    ],
)
def test_malformed_text_requests(server: LiveServer, path: str, body: dict[str, object]) -> None:
    answer = server.client.post(path, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
