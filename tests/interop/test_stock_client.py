"""Stock main hosts on our worker write the text that they write on their own.

Prompts are plain ones, where the best token leads clearly: the stock CPU rounds activations to 8
bits and our reference does not, so that a near tie may fall either way.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

import pytest

from tests.helpers.assets import asset
from tests.helpers.process import own_worker
from tests.helpers.rpc_tap import tapped
from tests.helpers.stock_peers import stock_split_text, stock_text_v8, stock_texts_v7, stock_worker

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


@pytest.mark.peer_v8
@pytest.mark.parametrize("second", ["own", "stock"])
def test_a_client_that_cuts_matrices_over_two_workers_writes_the_same(second: str) -> None:
    path, prompt = asset("stories260k"), "Once upon a time there was a little girl. " * 5
    alone = stock_text_v8(path, None, prompt, N_PREDICT)
    with ExitStack() as stack:
        first = stack.enter_context(own_worker())[1]
        if second == "own":
            other = stack.enter_context(own_worker())[1]
        else:
            other = stack.enter_context(stock_worker(8))
        taps = [stack.enter_context(tapped(port, 8)) for port in (first, other)]
        cut = stock_split_text(path, [tap.port for tap in taps], prompt, N_PREDICT)
        assert len(taps[0].seen["COMM_ALLREDUCE"]) > N_PREDICT
    assert cut == alone
    assert cut.strip()


@pytest.mark.peer_v7
@pytest.mark.parametrize("model", PROMPTS)
def test_a_client_of_version_7_writes_the_same(model: str, port_v7: int) -> None:
    path, prompts = asset(model), [PROMPTS[model]]
    alone = stock_texts_v7(path, None, prompts, N_PREDICT)
    assert stock_texts_v7(path, port_v7, prompts, N_PREDICT) == alone
    assert alone[0].strip()
