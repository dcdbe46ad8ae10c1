"""Stock main hosts on our worker write the text that they write on their own.

Prompts are plain ones, where the best token leads clearly: the stock CPU rounds activations to 8
bits and our reference does not, so that a near tie may fall either way.
"""

from collections.abc import Iterator
from typing import Final

import pytest

from tests.helpers.assets import asset
from tests.helpers.process import own_worker
from tests.helpers.stock_peers import stock_text_v8, stock_texts_v7

N_PREDICT: Final = 8
PROMPTS: Final = {
    "smollm2": "1, 2, 3, 4, 5, 6,",
    "gemma3": "The days of the week are Monday, Tuesday, Wednesday,",
}

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(500)]


@pytest.fixture(scope="module")
def port_v8() -> Iterator[int]:
    with own_worker() as (_, port):
        yield port


@pytest.fixture(scope="module")
def port_v7() -> Iterator[int]:
    with own_worker("--protocol", "7") as (_, port):
        yield port


@pytest.mark.peer_v8
@pytest.mark.parametrize("model", PROMPTS)
def test_a_client_of_version_8_writes_the_same(model: str, port_v8: int) -> None:
    path, prompt = asset(model), PROMPTS[model]
    alone = stock_text_v8(path, None, prompt, N_PREDICT)
    assert stock_text_v8(path, port_v8, prompt, N_PREDICT) == alone
    assert alone.strip()


@pytest.mark.peer_v7
@pytest.mark.parametrize("model", PROMPTS)
def test_a_client_of_version_7_writes_the_same(model: str, port_v7: int) -> None:
    path, prompts = asset(model), [PROMPTS[model]]
    alone = stock_texts_v7(path, None, prompts, N_PREDICT)
    assert stock_texts_v7(path, port_v7, prompts, N_PREDICT) == alone
    assert alone[0].strip()
