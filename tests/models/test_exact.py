"""The yardstick against stock llama.cpp: two programs that have nothing in common."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.helpers.assets import asset
from tests.helpers.exact import exact_logits
from tests.helpers.stock_logits import stock_logits
from tests.helpers.tiny_gguf import write_tiny
from tests.models.cases import CASES, TOKENS


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.peer_v8
@pytest.mark.parametrize("name", CASES)
def test_exact_logits_are_those_of_stock_on_tiny_models(name: str, tmp_path: Path) -> None:
    path = write_tiny(tmp_path / f"exact-{name}.gguf", asset("stories260k"), CASES[name])
    exact = exact_logits(path, TOKENS)
    for n, stock in zip((3, len(TOKENS)), stock_logits(path, [TOKENS[:3], TOKENS]), strict=True):
        row = exact[n - 1]
        cosine = row @ stock / np.linalg.norm(row) / np.linalg.norm(stock)
        assert cosine > 0.99999
        # Stock looks GELU up in a table of half precision, which costs gemma3 some 0.002.
        assert np.abs(row - stock).max() < (0.01 if name.startswith("gemma3") else 1e-4)
