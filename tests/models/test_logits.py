"""Graphs of all architectures, run on the reference device, against the exact forward pass."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from app.ggml.types import GGMLType
from tests.helpers.assets import asset
from tests.helpers.exact import exact_logits
from tests.helpers.stock_logits import stock_logits
from tests.helpers.tiny_gguf import write_tiny
from tests.models.cases import CASES, TOKENS
from tests.models.local_stages import Floats, LocalModel

# Float32 sums over 64 to 256 elements in five layers; a wrong element costs 0.1 and more.
TOLERANCE = 2e-4


@pytest.fixture(scope="module", params=CASES)
def tiny(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalModel]:
    name = str(request.param)
    path = tmp_path_factory.mktemp("tiny") / f"{name}.gguf"
    write_tiny(path, asset("stories260k"), CASES[name])
    with LocalModel(path, n_cells=64) as model:
        yield model


def _exact(model: LocalModel) -> np.ndarray:
    return exact_logits(model.gguf.path, TOKENS)


def _assert_near(found: Floats | None, wanted: np.ndarray) -> None:
    assert found is not None
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() < TOLERANCE


@pytest.mark.parametrize("flash_attn", [True, False])
def test_logits_of_all_tokens_are_exact(tiny: LocalModel, flash_attn: bool) -> None:
    _assert_near(tiny.run(TOKENS, flash_attn=flash_attn), _exact(tiny))


@pytest.mark.parametrize("flash_attn", [True, False])
def test_a_prompt_in_pieces_and_single_tokens_is_exact(tiny: LocalModel, flash_attn: bool) -> None:
    exact = _exact(tiny)
    assert tiny.run(TOKENS[:20], n_outputs=0, flash_attn=flash_attn) is None
    last = tiny.run(TOKENS[20:30], n_past=20, n_outputs=1, flash_attn=flash_attn)
    _assert_near(last, exact[29:30])
    for i in range(30, len(TOKENS)):
        found = tiny.run(TOKENS[i : i + 1], n_past=i, flash_attn=flash_attn)
        _assert_near(found, exact[i : i + 1])


@pytest.mark.peer_v8
def test_logits_are_those_of_stock(tiny: LocalModel) -> None:
    found = tiny.run(TOKENS, n_outputs=1)
    assert found is not None
    stock = stock_logits(tiny.gguf.path, [TOKENS])[0]
    cosine = found[0] @ stock / np.linalg.norm(found[0]) / np.linalg.norm(stock)
    assert cosine > 0.9999


@pytest.mark.parametrize("n_outputs", [1, 3, None])
def test_a_cut_at_every_border_equals_the_whole(tiny: LocalModel, n_outputs: int | None) -> None:
    whole = tiny.run(TOKENS, n_outputs=n_outputs)
    assert whole is not None
    for cut in range(1, tiny.hparams.n_layer + 1):
        parts = tiny.run(TOKENS, n_outputs=n_outputs, cuts=[cut])
        assert parts is not None
        np.testing.assert_array_equal(parts, whole)


def test_stages_that_only_fill_the_cache_fill_it_like_others(tiny: LocalModel) -> None:
    n_layer = tiny.hparams.n_layer
    exact = _exact(tiny)
    for cuts in ([], [n_layer - 1], [n_layer], [n_layer - 1, n_layer]):
        for cache in (*tiny.k.values(), *tiny.v.values()):
            tiny.device.memset_tensor(cache, 0, 0, cache.nbytes)
        assert tiny.run(TOKENS[:30], n_outputs=0, cuts=cuts) is None
        _assert_near(tiny.run(TOKENS[30:], n_past=30, cuts=cuts), exact[30:])


@pytest.mark.parametrize("type_kv", [GGMLType.F16, GGMLType.BF16, GGMLType.Q8_0])
def test_caches_of_fewer_bits_stay_near_exact(type_kv: GGMLType, tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "kv.gguf", asset("stories260k"), CASES["qwen3"])
    # Twice the mean distance that was measured; it grows with the rounding of keys and values.
    tolerance = {GGMLType.F16: 0.002, GGMLType.BF16: 0.018, GGMLType.Q8_0: 0.06}[type_kv]
    with LocalModel(path, n_cells=64, type_kv=type_kv) as model:
        found = model.run(TOKENS)
    assert found is not None
    assert 1e-4 < np.abs(found - exact_logits(path, TOKENS)).mean() < tolerance
