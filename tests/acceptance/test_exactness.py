"""The first token's log-probabilities against exact arithmetic on the same weights.

The reference executor computes in float32, so only the order of its sums differs.
"""

import numpy as np
import pytest

from app.engine.config import CpuExecutor
from app.ggml.types import GGMLType
from tests.acceptance.measure import CLEAR_MARGIN, STOCK_DISTANCE, Record, distance, report
from tests.helpers.assets import asset
from tests.helpers.local_engine import running_engine, small_run
from tests.helpers.prompts import LONG_PROMPT, PROMPTS

REFERENCE_BOUND = 0.005

pytestmark = pytest.mark.model


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_the_reference_executor_is_exact(name: str, record_property: Record) -> None:
    path = asset(name)
    config = small_run(
        path,
        cpu_executor=CpuExecutor.REFERENCE,
        cache_type_k=GGMLType.F32,
        cache_type_v=GGMLType.F32,
    )
    with running_engine(config) as asker:
        assert len(asker.tokens(PROMPTS[LONG_PROMPT])) > 800
        distances = [distance(asker, path, prompt) for prompt in PROMPTS]
    report(name, distances, record_property)
    assert max(d.worst for d in distances) < REFERENCE_BOUND
    assert all(d.same_choice for d in distances if d.margin > REFERENCE_BOUND)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_the_default_run_is_no_farther_from_exact_than_stock(
    name: str, record_property: Record
) -> None:
    path = asset(name)
    with running_engine(small_run(path)) as asker:
        distances = [distance(asker, path, prompt) for prompt in PROMPTS]
    mean = float(np.mean([d.mean for d in distances]))
    report(name, distances, record_property)
    assert mean <= STOCK_DISTANCE[name]
    assert all(d.same_choice for d in distances if d.margin > CLEAR_MARGIN)
