"""A loaded model that tests run on: fills the cache, runs prompts and generations of random tokens.

The steps are those that the engine runs for requests, without scheduler, sampling and text. As in
llama-bench a prompt begins with BOS where the model wants it, goes in batches whose last token
gives logits, and a generation waits for the logits of each step. What lies in the cache up to a
test's depth is kept for the next test of that depth where the caches allow it.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from app.cli.benchmark.case import Workload
from app.engine.kv_cache import KVCache
from app.engine.step import SequenceChunk, StepPlan, StepResult

Say = Callable[[str], None]
"""Tells what is being done."""

Watch = Callable[[], AbstractContextManager[None]]
"""Surrounds each run whose time counts."""

_SEED: Final = 0


class StepRunner(Protocol):
    """The part of the engine that computes a step."""

    def run(self, plan: StepPlan) -> StepResult:
        """Compute a step and wait for its logits."""


@dataclass(frozen=True, slots=True)
class Repeats:
    """How often a test is measured, and whether it runs once before."""

    n: int
    warmup: bool


class Bed:
    """Runs tests on one loaded model."""

    def __init__(
        self,
        runner: StepRunner,
        cache: KVCache,
        n_vocab: int,
        first_token: int | None,
        watch: Watch = nullcontext,
    ) -> None:
        self._runner = runner
        self._cache = cache
        self._n_vocab = n_vocab
        self._first_token = first_token
        self._watch = watch
        self._random = np.random.default_rng(_SEED)
        self._depths: dict[int, int] = {}
        """Tokens of each sequence that are the start of a test."""
        self._n_past: dict[int, int] = {}

    def measure(self, test: Workload, n_batch: int, repeats: Repeats, say: Say) -> list[int]:
        """Return the nanoseconds of each repetition."""
        if repeats.warmup:
            say("warmup run")
            self._rewind(test, n_batch, say)
            self._run(test, n_batch, min(1, test.n_gen))
        samples = []
        for i in range(repeats.n):
            self._rewind(test, n_batch, say)
            say(f"run {i + 1}/{repeats.n}")
            with self._watch():
                start = time.perf_counter_ns()
                self._run(test, n_batch, test.n_gen)
                samples.append(time.perf_counter_ns() - start)
        return samples

    def _rewind(self, test: Workload, n_batch: int, say: Say) -> None:
        """Leave exactly the first `n_depth` tokens of each stream in the cache."""
        for seq, depth in self._depths.items():
            is_kept = (
                seq < test.n_streams
                and depth == test.n_depth
                and self._cache.reusable(seq, depth) == depth
            )
            self._n_past[seq] = self._depths[seq] = depth if is_kept else 0
            self._cache.truncate(seq, self._n_past[seq])
        for seq in range(test.n_streams):
            if self._n_past.get(seq, 0) < test.n_depth:
                say(f"depth run of {test.n_depth} tokens")
                self._prompt(seq, test.n_depth, n_batch)
            self._depths[seq] = test.n_depth

    def _run(self, test: Workload, n_batch: int, n_gen: int) -> None:
        if test.n_prompt:
            self._prompt(0, test.n_prompt, n_batch)
        if n_gen:
            self._generate(test.n_streams, n_gen)

    def _prompt(self, seq: int, n_tokens: int, n_batch: int) -> None:
        tokens = self._tokens(n_tokens)
        for at in range(0, n_tokens, n_batch):
            self._step({seq: tokens[at : at + n_batch]})

    def _generate(self, n_streams: int, n_tokens: int) -> None:
        drawn = {seq: self._tokens(n_tokens) for seq in range(n_streams)}
        for i in range(n_tokens):
            self._step({seq: tokens[i : i + 1] for seq, tokens in drawn.items()})

    def _step(self, tokens: dict[int, list[int]]) -> None:
        chunks = [
            SequenceChunk(seq, new, self._n_past.get(seq, 0), wants_logits=True)
            for seq, new in tokens.items()
        ]
        result = self._runner.run(StepPlan(tuple(chunks)))
        assert result.logits.keys() == tokens.keys(), "a sequence got no logits"
        for seq, new in tokens.items():
            self._n_past[seq] = self._n_past.get(seq, 0) + len(new)

    def _tokens(self, n: int) -> list[int]:
        """`n` random tokens, BOS first where the model wants it."""
        tokens: list[int] = self._random.integers(self._n_vocab, size=n).tolist()
        if self._first_token is not None:
            tokens[0] = self._first_token
        return tokens
