"""Stock main hosts on our worker write the text that they write on their own.

Prompts are plain ones, where the best token leads clearly: the stock CPU rounds activations to 8
bits and our reference does not, so that a near tie may fall either way.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import pytest

from tests.helpers.assets import asset
from tests.helpers.process import own_worker
from tests.helpers.rpc_tap import Tap, tapped
from tests.helpers.stock_peers import stock_split_text, stock_text_v8, stock_texts_v7, stock_worker

N_PREDICT: Final = 8
PROMPTS: Final = {
    "smollm2": "1, 2, 3, 4, 5, 6,",
    "gemma3": "The days of the week are Monday, Tuesday, Wednesday,",
}

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(1000)]


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


@contextmanager
def tapped_worker(kind: str, version: int) -> Iterator[Tap]:
    """Run a worker, ours or a stock one, behind a tap."""
    with ExitStack() as stack:
        if kind == "stock":
            port = stack.enter_context(stock_worker(version))
        else:
            port = stack.enter_context(own_worker("--protocol", str(version)))[1]
        yield stack.enter_context(tapped(port, version))


@pytest.mark.parametrize("kinds", [("own", "own"), ("own", "stock")], ids="-".join)
@pytest.mark.parametrize(
    ("version", "adds_up"),
    [
        pytest.param(8, "COMM_ALLREDUCE", marks=pytest.mark.peer_v8, id="v8"),
        # The sums are graphs of their own, whose operands the client carries from worker to worker.
        pytest.param(7, "GET_TENSOR", marks=pytest.mark.peer_v7, id="v7"),
    ],
)
def test_a_client_that_cuts_matrices_over_two_workers_writes_the_same(
    version: int, adds_up: str, kinds: tuple[str, str]
) -> None:
    path, prompt = asset("stories260k"), "Once upon a time there was a little girl. " * 5
    if version == 8:
        alone = stock_text_v8(path, None, prompt, N_PREDICT)
    else:
        alone = stock_texts_v7(path, None, [prompt], N_PREDICT)[0]
    with ExitStack() as stack:
        taps = [stack.enter_context(tapped_worker(kind, version)) for kind in kinds]
        cut = stock_split_text(version, path, [tap.port for tap in taps], prompt, N_PREDICT)
        # Layers on either worker would cost no more than one of these per token.
        for tap in taps:
            assert len(tap.seen[adds_up]) > 3 * N_PREDICT
            assert not tap.unknown
    assert cut == alone
    assert cut.strip()


@pytest.mark.peer_v7
@pytest.mark.parametrize("model", PROMPTS)
def test_a_client_of_version_7_writes_the_same(model: str, port_v7: int) -> None:
    path, prompts = asset(model), [PROMPTS[model]]
    alone = stock_texts_v7(path, None, prompts, N_PREDICT)
    assert stock_texts_v7(path, port_v7, prompts, N_PREDICT) == alone
    assert alone[0].strip()
