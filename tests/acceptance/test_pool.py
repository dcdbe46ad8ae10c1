"""A model over several workers: the same text as without them; stock workers as good as ours."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from tests.acceptance.measure import (
    CLEAR_MARGIN,
    WANDERING,
    Record,
    distance,
    report,
    stock_on,
)
from tests.helpers.assets import asset
from tests.helpers.local_engine import running_engine, small_run
from tests.helpers.process import own_worker
from tests.helpers.prompts import PROMPTS
from tests.helpers.server_process import own_workers
from tests.helpers.stock_peers import stock_worker

N_PREDICT = 24
TEXT_PROMPTS = PROMPTS[:4]
SPLITS: list[tuple[float, ...]] = [(), (1, 1, 1), (5, 1, 1), (1, 0, 3), (0, 0, 1), (1, 2)]

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def workers() -> Iterator[list[str]]:
    """Three of our workers."""
    with own_workers(3) as endpoints:
        yield endpoints


def texts(path: Path, rpc: list[str], **changes: object) -> list[str]:
    """Greedy continuations of a few prompts."""
    with running_engine(small_run(path, rpc, **changes)) as asker:
        return [asker.greedy(prompt, N_PREDICT).text for prompt in TEXT_PROMPTS]


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_any_number_of_workers_gives_the_local_text(name: str, workers: list[str]) -> None:
    path = asset(name)
    local = texts(path, [])
    assert all(local)
    for n in (1, 2, 3):
        assert texts(path, workers[:n]) == local, f"{n} workers"


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_every_split_gives_the_local_text(name: str, workers: list[str]) -> None:
    path = asset(name)
    local = texts(path, [])
    for split in SPLITS:
        assert texts(path, workers, tensor_split=split) == local, f"-ts {split}"


def test_layers_kept_on_the_host_give_the_local_text(workers: list[str]) -> None:
    path = asset("smollm2")
    local = texts(path, [])
    for n_gpu_layers in (0, 1, 30):
        assert texts(path, workers[:2], n_gpu_layers=n_gpu_layers) == local, f"-ngl {n_gpu_layers}"


@pytest.mark.peer_v8
@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
@pytest.mark.parametrize("kind", ["two stock workers", "one stock and one of ours"])
def test_stock_workers_are_no_farther_from_exact_than_stock_llama_cpp(
    name: str, kind: str, record_property: Record
) -> None:
    path = asset(name)
    with ExitStack() as stack:
        ports = [stack.enter_context(stock_worker(8))]
        if kind == "two stock workers":
            ports.append(stack.enter_context(stock_worker(8)))
        else:
            ports.append(stack.enter_context(own_worker())[1])
        rpc = [f"127.0.0.1:{port}" for port in ports]
        with running_engine(small_run(path, rpc)) as asker:
            tokens = [asker.tokens(prompt) for prompt in PROMPTS]
            distances = [distance(asker, path, prompt) for prompt in PROMPTS]
    stock = stock_on(path, tokens)
    report(f"{name} on {kind}", distances, record_property)
    record_property(f"{name} stock mean distance", stock.mean)
    assert float(np.mean([d.mean for d in distances])) <= WANDERING * stock.mean
    for ours, choice, margin in zip(distances, stock.choices, stock.margins, strict=True):
        assert ours.choice == choice or margin <= CLEAR_MARGIN
