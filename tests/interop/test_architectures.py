"""Every architecture of llama.cpp on our worker: its own test-llama-archs makes a tiny model of
each with random weights and compares the logits with those of ggml's CPU backend.

It runs prompts, steps, mixed batches and, where it can save a model, the same again from a file.
Architectures go by their first letters, so that one that fails leaves the others alone.
"""

from collections.abc import Iterator
from typing import Final

import pytest

from tests.helpers.assets import asset
from tests.helpers.backend_ops import ARCHITECTURES, run_architectures
from tests.helpers.process import Running, own_worker

pytestmark = [pytest.mark.peer_v7, pytest.mark.slow]

LETTERS: Final = ("ab", "c", "de", "f", "g", "hijk", "l", "m", "no", "p", "q", "r-z")


@pytest.fixture(scope="module")
def worker() -> Iterator[tuple[Running, int]]:
    asset("architectures")
    with own_worker("--protocol", "7", "-d", "CPU") as running:
        yield running


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("letters", LETTERS)
def test_logits_are_those_of_ggml(worker: tuple[Running, int], letters: str) -> None:
    program = asset("architectures") / ARCHITECTURES
    status, said = run_architectures(program, worker[1], f"^[{letters}]")
    assert status == 0, f"{said[-2000:]}\n{worker[0].output[-2000:]}"
    assert "OK (" in said
    assert "FAIL" not in said
