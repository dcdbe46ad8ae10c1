"""Graphs of all architectures on a stock worker: llama.cpp computes what we describe."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from app.rpc_backend.client.connect import open_workers
from tests.helpers.assets import asset
from tests.helpers.exact import exact_logits
from tests.helpers.stock_peers import stock_worker
from tests.helpers.tiny_gguf import write_tiny
from tests.models.cases import CASES, TOKENS
from tests.models.local_stages import LocalModel

pytestmark = pytest.mark.peer_v8


@pytest.fixture(scope="module")
def worker() -> Iterator[str]:
    with stock_worker(8) as port:
        yield f"127.0.0.1:{port}"


@pytest.mark.parametrize("flash_attn", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_a_stock_worker_computes_exact_logits(
    worker: str, name: str, flash_attn: bool, tmp_path: Path
) -> None:
    path = write_tiny(tmp_path / "tiny.gguf", asset("stories260k"), CASES[name])
    exact = exact_logits(path, TOKENS)
    # Stock looks GELU up in a table of half precision, which costs gemma3 some 0.003.
    tolerance = 0.01 if name.startswith("gemma3") else 2e-4
    with LocalModel(path, n_cells=64, device=open_workers([worker])[0]) as model:
        whole = model.run(TOKENS, flash_attn=flash_attn)
        model.run(TOKENS[:30], n_outputs=0, flash_attn=flash_attn)
        step = model.run(TOKENS[30:31], n_past=30, flash_attn=flash_attn)
    assert whole is not None
    assert step is not None
    assert np.abs(whole - exact).max() < tolerance
    assert np.abs(step - exact[30:31]).max() < tolerance
