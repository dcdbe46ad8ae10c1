"""All cases of llama.cpp's tests/test-sampling.cpp, read from its source."""

import ast
import math
import re
import tarfile
from collections.abc import Callable
from functools import cache
from typing import Final, NamedTuple

import numpy as np
import pytest

from app.sampling import filters
from app.sampling.candidates import Candidates, softmax
from app.sampling.choice import Dist
from app.sampling.dry import Dry, DryParams
from app.sampling.penalties import Penalties
from app.sampling.rng import Mt19937
from tests.helpers.assets import asset

SOURCE: Final = "llama_cpp_python-0.3.36/vendor/llama.cpp/tests/test-sampling.cpp"
Number = int | float
Value = Number | str | list["Value"]

COUNTS: Final = {
    "temp": 2,
    "temp_ext": 2,
    "top_k": 4,
    "top_p": 4,
    "min_p": 9,
    "xtc": 4,
    "typical": 2,
    "penalties": 6,
    "dry": 5,
    "top_n_sigma": 3,
    "sampler_queue": 24,
}


class Case(NamedTuple):
    line: str
    name: str
    arguments: list[Value]


def evaluated(node: ast.expr) -> Value:
    match node:
        case ast.Constant(value=int() | float() | str() as value):
            return value
        case ast.List(elts=items):
            return [evaluated(item) for item in items]
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return number(evaluated(left)) / number(evaluated(right))
    raise ValueError(ast.dump(node))


def number(value: Value) -> Number:
    assert isinstance(value, int | float)
    return value


def numbers(value: Value) -> list[Number]:
    assert isinstance(value, list)
    return [number(item) for item in value]


@cache
def cases() -> tuple[Case, ...]:
    with tarfile.open(asset("llama_cpp_sdist")) as tar:
        member = tar.extractfile(SOURCE)
        assert member is not None
        text = member.read().decode()
    found = []
    for line in text.splitlines():
        call = re.match(r"    test_(\w+)\((\S.*)\);", line)
        if call:
            python = re.sub(r"(?<=[0-9])f\b", "", call[2]).replace("{", "[").replace("}", "]")
            tree = ast.parse(f"[{python}]", mode="eval").body
            arguments = evaluated(tree)
            assert isinstance(arguments, list)
            found.append(Case(line.strip(), call[1], arguments))
    return tuple(found)


def of(name: str) -> list[Case]:
    return [case for case in cases() if case.name == name]


def from_probs(probs: Value) -> Candidates:
    with np.errstate(divide="ignore"):
        return Candidates(np.log(np.array(numbers(probs), dtype=np.float32)))


def after_dist(c: Candidates) -> list[float]:
    choice = Dist(Mt19937(0)).select(c)
    return [float(share) / choice.total for share in choice.shares]


def agrees(got: list[float], expected: Value) -> bool:
    # 1e-5 is the tolerance of the C++ test.
    return got == pytest.approx(numbers(expected), abs=1e-5)


def test_every_case_of_the_source_is_read() -> None:
    assert {name: len(of(name)) for name in COUNTS} == COUNTS


Filter = Callable[[Candidates, list[Number]], Candidates]
SIMPLE: Final[dict[str, Filter]] = {
    "temp": lambda c, a: filters.temperature(c, a[0]),
    "top_k": lambda c, a: filters.top_k(c, int(a[0])) if a[0] > 0 else c,
    "top_p": lambda c, a: filters.top_p(c, a[0], 0) if a[0] < 1 else c,
    "min_p": lambda c, a: filters.min_p(c, a[0], 0) if a[0] > 0 else c,
    "top_n_sigma": lambda c, a: filters.top_n_sigma(c, a[0]) if a[0] > 0 else c,
    "temp_ext": lambda c, a: (
        filters.dynamic_temperature(c, a[0], a[1], a[2])
        if a[1] > 0
        else filters.temperature(c, a[0])
    ),
}


@pytest.mark.parametrize("name", SIMPLE)
def test_filter_then_draw(name: str) -> None:
    for case in of(name):
        probs, expected, *rest = case.arguments
        left = SIMPLE[name](from_probs(probs), [number(value) for value in rest])
        assert agrees(after_dist(left), expected), case.line


def test_xtc() -> None:
    for case in of("xtc"):
        probs, expected, p, t = case.arguments
        left = filters.xtc(from_probs(probs), number(p), number(t), 0, Mt19937(0))
        # The C++ test sees the probabilities from before the removal.
        kept = [numbers(probs)[token] for token in left.token_ids()]
        assert agrees(kept, expected), case.line


def test_typical() -> None:
    for case in of("typical"):
        probs, expected, p = case.arguments
        left = filters.typical_p(from_probs(probs), number(p), 0)
        kept = [numbers(probs)[token] for token in left.token_ids()]
        assert agrees(kept, expected), case.line


def test_penalties() -> None:
    for case in of("penalties"):
        probs, last, expected, repeat, frequency, presence = case.arguments
        tokens = [int(token) for token in numbers(last)]
        stage = Penalties(len(tokens), number(repeat), number(frequency), number(presence))
        stage.accept(tokens)
        assert agrees(after_dist(stage.apply(from_probs(probs))), expected), case.line


def test_dry() -> None:
    for case in of("dry"):
        probs, last, expected, multiplier, base, allowed, last_n, breakers = case.arguments
        assert isinstance(breakers, list)
        heads = {int(numbers(b)[0]): frozenset({tuple(numbers(b)[1:])}) for b in breakers}
        params = DryParams(
            number(multiplier), number(base), int(number(allowed)), int(number(last_n))
        )
        stage = Dry(params, {head: frozenset({()}) for head in heads})
        stage.accept([int(token) for token in numbers(last)])
        assert agrees(after_dist(stage.apply(from_probs(probs))), expected), case.line


def n_kept_by_top_p(lowest: int, n: int, p: float) -> int:
    """Tokens lowest … n-1, token i as likely as i: how many of the highest make up p of the sum."""
    target = math.ceil(np.float32(p) * (n * (n - 1) // 2 - lowest * (lowest - 1) // 2))
    kept, total = 0, 0
    while kept == 0 or total < target:
        kept += 1
        total += n - kept
    # Token 0 adds nothing to a sum that is reached only with token 1.
    return kept + 1 if n - kept == 1 else kept


@pytest.mark.parametrize("index", range(COUNTS["sampler_queue"]))
def test_filters_in_any_order(index: int) -> None:
    size, letters, k, p, min_p = of("sampler_queue")[index].arguments
    assert isinstance(letters, str)
    n, least = int(number(size)), number(min_p)
    with np.errstate(divide="ignore"):
        c = Candidates(np.log(np.arange(n, dtype=np.float32)))
    lowest = 0
    for letter in letters:
        if letter == "k":
            c = filters.top_k(c, int(number(k)))
            lowest = max(lowest, n - int(number(k)))
            expected = n - lowest
        elif letter == "p":
            c = filters.top_p(c, number(p), 1) if number(p) < 1 else c
            expected = n_kept_by_top_p(lowest, n, number(p))
            lowest = n - expected
        else:
            c = filters.min_p(c, least, 1)
            lowest = max(lowest, math.ceil(least * (n - 1)), 1)
            expected = n - lowest
        assert c.size == expected
        assert softmax(c).sum() == pytest.approx(1, abs=1e-5)
        if c.is_sorted:
            assert c.token_ids()[[0, -1]].tolist() == [n - 1, lowest]


def test_a_single_candidate_costs_one_draw() -> None:
    single, control = Dist(Mt19937(4242)), Dist(Mt19937(4242))
    flat = Candidates(np.zeros(256, dtype=np.float32))
    single.select(flat.head(1))
    control.select(flat.head(2))
    for _ in range(4):
        assert single.select(flat).token == control.select(flat).token
