"""llama.cpp's client library on our workers: every command, with what a stock worker answers."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import pytest

from tests.helpers.process import own_worker
from tests.helpers.rpc_frames import stock_commands
from tests.helpers.rpc_tap import tapped
from tests.helpers.stock_peers import stock_ggml, stock_worker

VERSIONS: Final = [
    pytest.param(8, marks=pytest.mark.peer_v8, id="v8"),
    pytest.param(7, marks=pytest.mark.peer_v7, id="v7"),
]
PAIRS: Final = [("own", "own"), ("own", "stock"), ("stock", "own")]

pytestmark = pytest.mark.timeout(1000)


@contextmanager
def worker(kind: str, version: int) -> Iterator[int]:
    """Run a worker, ours with an empty cache."""
    if kind == "stock":
        with stock_worker(version) as port:
            yield port
        return
    with (
        tempfile.TemporaryDirectory() as cache,
        own_worker("--protocol", str(version), "-c", cache) as (_, port),
    ):
        yield port


def answers(version: int, *kinds: str) -> dict[str, Any]:
    with ExitStack() as stack:
        ports = [stack.enter_context(worker(kind, version)) for kind in kinds]
        return stock_ggml(version, *ports)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_command_is_answered_as_a_stock_worker_does(version: int) -> None:
    kinds = ("own", "own") if version == 8 else ("own",)
    with ExitStack() as stack:
        ports = [stack.enter_context(worker(kind, version)) for kind in kinds]
        taps = [stack.enter_context(tapped(port, version)) for port in ports]
        # The second time the weights are in the cache.
        ours = [stock_ggml(version, *(tap.port for tap in taps)) for _ in range(2)]
        assert set(taps[0].seen) == stock_commands(version)
        assert not taps[0].unknown
        offers = [reply for _, reply in taps[0].seen["SET_TENSOR_HASH"]]
        assert [reply and reply[-1] for reply in offers] == [0, 1]
    theirs = answers(version, *("stock",) * len(kinds))
    for found in (*ours, theirs):
        facts = found.pop("facts")
        assert facts["devices"] == 1
        assert facts["alignment"] % 32 == 0
        assert 0 < facts["free"] <= facts["total"] <= facts["max_size"]
    assert ours[0] == ours[1] == theirs


@pytest.mark.peer_v8
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_two_workers_add_up_to_the_last_bit_what_stock_ones_do(pair: tuple[str, str]) -> None:
    expected = answers(8, "stock", "stock")["sums"]
    assert answers(8, *pair)["sums"] == expected
    first, second, many_of_first, many_of_second = expected
    assert first == second
    # Each adds the other's rounded values to its own exact ones.
    assert many_of_first != many_of_second
