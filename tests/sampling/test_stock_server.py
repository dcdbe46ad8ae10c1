"""Our chain against a running stock llama-server: seeds, probabilities and settings end to end.

The server returns the log-probabilities of all 512 tokens of the tiny model at each step. They are
its logits up to a constant, which no sampler but the repetition penalty can see, so each of its
draws can be repeated.
"""

import socket
import subprocess
import threading
from collections.abc import Iterator
from typing import Final

import httpx
import numpy as np
import pytest

from app.sampling.candidates import F32
from app.sampling.chain import SamplerFactory
from app.sampling.logprobs import chain_logprobs, raw_logprobs
from app.sampling.params import SamplingParams, generation_settings, params_from_request
from tests.helpers.assets import asset
from tests.sampling.stock_library import StockLibrary
from tests.sampling.test_stock_library import StockVocab

pytestmark = pytest.mark.peer_v7

N_VOCAB: Final = 512
PROMPT: Final = [1, 403, 407, 261, 378]  # <s> and the start of a story
SEEDS: Final = (0, 1, 42, 4242, 2**32 - 2)


@pytest.fixture(scope="module")
def server() -> Iterator[httpx.Client]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [asset("peer_v7") / "bin/llama-server", "-m", asset("stories260k")]
    options = ["--host", "127.0.0.1", "--port", str(port), "--no-ui"]
    options += ["-c", "512", "-np", "1", "-t", "1"]
    process = subprocess.Popen(
        [*map(str, command), *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    log = process.stdout
    try:
        assert any("listening on" in line for line in log), "llama-server ended"
        drain = threading.Thread(target=lambda: [None for _ in log], daemon=True)
        drain.start()
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            yield client
    finally:
        process.terminate()
        process.wait()
        drain.join()
        log.close()


@pytest.fixture(scope="module")
def factory() -> SamplerFactory:
    library = StockLibrary(asset("peer_v7") / "bin", asset("stories260k"))
    return SamplerFactory(StockVocab(library, N_VOCAB))


def completion(server: httpx.Client, **request: object) -> dict[str, object]:
    body = {"prompt": PROMPT, "cache_prompt": False, "ignore_eos": False, **request}
    answer = server.post("/completion", json=body)
    assert answer.status_code == 200, answer.text
    result = answer.json()
    assert isinstance(result, dict)
    return result


def distributions(result: dict[str, object]) -> list[tuple[int, float, F32]]:
    """(token, its log-probability, log-probabilities of all tokens) of each step."""
    steps = []
    rows = result["completion_probabilities"]
    assert isinstance(rows, list)
    for row in rows:
        logits = np.full(N_VOCAB, -np.inf, dtype=np.float32)
        for entry in row["top_logprobs"]:
            logits[entry["id"]] = entry["logprob"]
        steps.append((int(row["id"]), float(row["logprob"]), logits))
    return steps


REQUESTS: Final[dict[str, dict[str, object]]] = {
    "default": {},
    "hot": {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    "greedy": {"temperature": 0},
    "penalties": {"presence_penalty": 0.7, "frequency_penalty": 0.3, "repeat_last_n": 16},
    "dry": {"dry_multiplier": 0.8, "dry_allowed_length": 1, "dry_sequence_breakers": ["the", "."]},
    "xtc": {"xtc_probability": 0.5, "xtc_threshold": 0.05},
    "typical": {"typical_p": 0.7, "temperature": 1.0},
    "sigma": {"top_n_sigma": 1.0, "temperature": 2.0},
    "dynamic": {"dynatemp_range": 0.5, "dynatemp_exponent": 0.7},
    "mirostat 1": {"mirostat": 1, "mirostat_tau": 3},
    "mirostat 2": {"mirostat": 2, "mirostat_tau": 3},
    "adaptive": {"samplers": ["top_k", "adaptive_p"], "adaptive_target": 0.3},
    "order": {"samplers": "tmpk", "temperature": 1.3},
    "bias": {"logit_bias": [[269, -3.5], [" a", False]]},
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", REQUESTS)
def test_seed_gives_the_server_s_own_tokens(
    server: httpx.Client, factory: SamplerFactory, name: str, seed: int
) -> None:
    request = {**REQUESTS[name], "seed": seed}
    result = completion(server, **request, n_probs=N_VOCAB, n_predict=48)
    ours = factory.build(params_from_request(request, SamplingParams()))
    ours.accept_prompt(PROMPT)
    steps = distributions(result)
    assert len(steps) > 10
    for token, _, logits in steps:
        assert ours.sample(logits).token == token
        ours.accept(token)


def test_raw_logprobs_are_the_server_s(server: httpx.Client) -> None:
    result = completion(server, seed=1, n_probs=N_VOCAB, n_predict=8)
    for token, logprob, logits in distributions(result):
        found = raw_logprobs(logits, token, N_VOCAB)
        # The server rounds probabilities to float32 before it takes their logarithm.
        assert found.logprob == pytest.approx(logprob, abs=1e-5)
        assert [entry.logprob for entry in found.top] == pytest.approx(
            sorted(logits.tolist(), reverse=True), abs=1e-5
        )


# After adaptive-p the server lists the candidates that were best before it, not the best.
@pytest.mark.parametrize("name", [name for name in REQUESTS if name != "adaptive"])
def test_probabilities_after_the_chain_are_the_server_s(
    server: httpx.Client, factory: SamplerFactory, name: str
) -> None:
    request = {**REQUESTS[name], "seed": 42}
    raw = completion(server, **request, n_probs=N_VOCAB, n_predict=8)
    after = completion(server, **request, n_probs=10, n_predict=8, post_sampling_probs=True)
    ours = factory.build(params_from_request(request, SamplingParams()))
    ours.accept_prompt(PROMPT)
    rows = after["completion_probabilities"]
    assert isinstance(rows, list)
    for (token, _, logits), row in zip(distributions(raw), rows, strict=True):
        found = chain_logprobs(ours.sample(logits), 10)
        ours.accept(token)
        assert row["id"] == token
        assert found.prob == pytest.approx(row["prob"], rel=1e-4)
        theirs = {entry["id"]: entry["prob"] for entry in row["top_probs"]}
        assert {entry.token: entry.prob for entry in found.top} == pytest.approx(theirs, rel=1e-4)


@pytest.mark.parametrize("name", REQUESTS)
def test_settings_are_shown_as_the_server_shows_them(
    server: httpx.Client, factory: SamplerFactory, name: str
) -> None:
    request = {**REQUESTS[name], "seed": 7, "temperature": 0.7, "min_keep": 2, "ignore_eos": True}
    theirs = completion(server, **{**request, "n_predict": 1})["generation_settings"]
    assert isinstance(theirs, dict)
    ours = generation_settings(factory.resolve(params_from_request(request, SamplingParams())))
    assert ours == {name: theirs[name] for name in ours}
