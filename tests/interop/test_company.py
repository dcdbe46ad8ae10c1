"""Two stock main hosts and one of ours at once on one worker: each writes what it writes alone.

The stock hosts have different models and prompts, so that one's weights, caches or graphs in
another's place would show.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest

from tests.helpers.assets import asset
from tests.helpers.local_engine import running_engine, small_run
from tests.helpers.process import own_worker
from tests.helpers.stock_peers import stock_text_v8, stock_texts_v7

N_PREDICT: Final = 16
OWN_ROUNDS: Final = 4
STOCK: Final = {
    "smollm2": "1, 2, 3, 4, 5, 6,",
    "gemma3": "The days of the week are Monday, Tuesday, Wednesday,",
}
OWN: Final = "January, February, March,"

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(1000)]

StockText = Callable[[str, int | None], str]


def text_v8(model: str, port: int | None) -> str:
    return stock_text_v8(asset(model), port, STOCK[model], N_PREDICT)


def text_v7(model: str, port: int | None) -> str:
    return stock_texts_v7(asset(model), port, [STOCK[model]], N_PREDICT)[0]


def own_texts(port: int) -> list[str]:
    """What our engine writes, several times over, with all layers on the worker."""
    with running_engine(small_run(asset("smollm2"), [f"127.0.0.1:{port}"])) as asker:
        return [asker.greedy(OWN, N_PREDICT).text for _ in range(OWN_ROUNDS)]


@pytest.mark.parametrize(
    ("stock_text", "flags"),
    [
        pytest.param(text_v8, (), marks=pytest.mark.peer_v8, id="version 8"),
        pytest.param(text_v7, ("--protocol", "7"), marks=pytest.mark.peer_v7, id="version 7"),
    ],
)
def test_three_main_hosts_at_once_write_what_each_writes_alone(
    stock_text: StockText, flags: tuple[str, ...]
) -> None:
    with own_worker(*flags) as (worker, port):
        alone = {model: stock_text(model, port) for model in STOCK}
        own_alone = own_texts(port)
        with ThreadPoolExecutor() as pool:
            stock = {model: pool.submit(stock_text, model, port) for model in STOCK}
            own = pool.submit(own_texts, port)
            together = {model: one.result() for model, one in stock.items()}
            assert own.result() == own_alone
        assert together == alone
        assert len({*alone.values(), *own_alone}) == 3
        assert all(alone.values())
        assert worker.process.poll() is None, worker.output
