"""Our masks are those of stock llama.cpp, token by token, on made-up grammars."""

import subprocess
import sys
from typing import Final

import pytest

from tests.helpers.assets import PROJECT_ROOT, asset

pytestmark = pytest.mark.peer_v7

N_GRAMMARS: Final = 400


def outcomes(first: int, end: int) -> dict[int, str]:
    """What a process reports until it is done, or a grammar is too much for stock llama.cpp."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.sampling.grammar.stock_masks", str(first), str(end)],
        cwd=PROJECT_ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
        text=True,
    )
    # A signal is the alarm, or the end of the memory; anything else is a fault of the comparison.
    assert done.returncode <= 0, done.stdout
    lines = [line.partition(" ") for line in done.stdout.splitlines()]
    return {int(seed): outcome for seed, _, outcome in lines}


def test_masks_are_those_of_stock_llama_cpp() -> None:
    asset("peer_v7")
    asset("stories260k")
    found: dict[int, str] = {}
    seed = n_too_much = 0
    while seed < N_GRAMMARS:
        found |= outcomes(seed, N_GRAMMARS)
        seed = max(found, default=seed) + 2
        n_too_much += seed < N_GRAMMARS
    assert n_too_much < 10
    assert not {seed: text for seed, text in found.items() if text.startswith("different")}
    assert sum(text.startswith("same") for text in found.values()) > N_GRAMMARS // 2
