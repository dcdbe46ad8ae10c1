"""Real models on the native device: as near to exact logits as stock llama.cpp is known to be, and
the reference device's choice of tokens, whole prompts and token by token.
"""

from pathlib import Path
from typing import Final

import numpy as np
import pytest
import torch

from app.devices.base import Device
from app.ggml.types import GGMLType
from tests.helpers.assets import asset
from tests.helpers.exact import exact_logprobs
from tests.helpers.native import native_cpu
from tests.models.local_stages import Floats, LocalModel
from tests.models.test_real_models import PROMPTS

# The yardstick takes its time on a busy machine.
pytestmark = [pytest.mark.model, pytest.mark.timeout(900)]

N_GENERATED: Final = 24
# Distance between two logits that rounding does not bridge.
CLEAR: Final = 0.5
# Distance of the ten highest log-probabilities of stock llama.cpp, a mean over many prompts; single
# prompts, of which there are three here, go to about twice that.
STOCK_MEAN: Final = {"smollm2": 0.082, "gemma3": 0.098}


@pytest.fixture(scope="module", params=PROMPTS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def path(name: str) -> Path:
    return asset(name)


def _logits(model: LocalModel, tokens: list[int], *, one_by_one: bool) -> Floats:
    """Logits after the last token."""
    pieces = [[t] for t in tokens] if one_by_one else [tokens]
    found, n_past = None, 0
    for piece in pieces:
        found = model.run(piece, n_past=n_past, n_outputs=1)
        n_past += len(piece)
    assert found is not None
    row: Floats = found[0]
    return row


def _distance(logits: Floats, exact: np.ndarray) -> float:
    logprobs = torch.from_numpy(logits.copy()).double().log_softmax(-1)
    top = logprobs.topk(10).indices.numpy()
    return float(np.abs(logprobs.numpy() - exact)[top].mean())


@pytest.mark.parametrize("one_by_one", [False, True], ids=["prompt", "tokens"])
def test_logits_are_as_near_to_exact_as_stocks(name: str, path: Path, one_by_one: bool) -> None:
    distances = []
    with LocalModel(path, n_cells=64, type_kv=GGMLType.F16, device=native_cpu(2)) as model:
        for tokens in PROMPTS[name]:
            exact = exact_logprobs(path, tokens)
            logits = _logits(model, tokens, one_by_one=one_by_one)
            assert exact.max() - exact[logits.argmax()] < CLEAR
            distances.append(_distance(logits, exact))
    assert np.mean(distances) < 2 * STOCK_MEAN[name]


def _follow(path: Path, tokens: list[int], n_prompt: int, device: Device | None) -> Floats:
    """Logits of every step that reads one token of `tokens` after the prompt; without a token to
    read, the likeliest one is taken and appended.
    """
    rows = []
    with LocalModel(path, n_cells=64, type_kv=GGMLType.F16, device=device) as model:
        n_past, end = 0, n_prompt
        for _ in range(N_GENERATED):
            found = model.run(tokens[n_past:end], n_past=n_past, n_outputs=1)
            assert found is not None
            rows.append(found[0])
            n_past, end = end, end + 1
            if len(tokens) < end:
                tokens.append(int(found[0].argmax()))
    return np.stack(rows)


def test_clear_choices_are_those_of_the_reference(name: str, path: Path) -> None:
    tokens = list(PROMPTS[name][0])
    n_prompt = len(tokens)
    want = _follow(path, tokens, n_prompt, None)
    got = _follow(path, tokens, n_prompt, native_cpu(2))
    best_two = np.sort(want, axis=-1)[:, -2:]
    # Int8 activations may turn what is nearly a tie.
    clear = best_two[:, 1] - best_two[:, 0] > CLEAR
    assert clear.sum() > N_GENERATED // 3
    np.testing.assert_array_equal(got.argmax(-1)[clear], want.argmax(-1)[clear])
