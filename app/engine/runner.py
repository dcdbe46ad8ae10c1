"""Sends the micro-batches of a step through the stages and brings the logits back.

Micro-batches follow one another: while a stage works on one, the stage before it already has the
next, and each stage is given its work one micro-batch ahead of the reply that it waits for. Between
micro-batches `abort` is asked, so that a long prompt can be left within one of them.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from app.engine.embedding import TokenEmbedding
from app.engine.kv_cache import KVCache
from app.engine.stage import Stage
from app.engine.step import MicroBatch, Pick, SequenceChunk, StepPlan, StepResult
from app.models.inputs import Ending, StageShape

FEW = 8
"""Tokens that the native executor multiplies one by one (kernels/cpu/emit_matmul.py)."""

NO_CELLS = np.zeros(0, np.int64)
NO_MASK = np.zeros((0, 0), np.bool_)


@dataclass(slots=True)
class Flight:
    """A micro-batch on its way; one result per stage that it has reached."""

    batch: MicroBatch
    results: "list[Future[bytes]]"


class Runner:
    """Runs step plans on the stages of one model."""

    def __init__(
        self,
        stages: Sequence[Stage],
        embedding: TokenEmbedding,
        cache: KVCache,
        n_ubatch: int,
    ) -> None:
        self._stages = stages
        self._embedding = embedding
        self._cache = cache
        self._n_ubatch = n_ubatch

    def run(self, plan: StepPlan, abort: Callable[[], bool] = lambda: False) -> StepResult:
        """Compute a step; after an abort the result lacks what was not computed.

        Raises: CellsExhaustedError, DeviceLostError.
        """
        pieces = cut(plan, self._n_ubatch)
        n_stages = len(self._stages)
        flights: list[Flight] = []
        rows: dict[int, npt.NDArray[np.float32]] = {}
        processed: dict[int, int] = {}
        step, is_open = 0, True
        while is_open or step < len(flights) + n_stages:
            if is_open:
                piece = None if step and abort() else next(pieces, None)
                is_open = piece is not None
                if piece is not None:
                    flights.append(Flight(self._micro_batch(piece, plan.ending), []))
                    for chunk in piece:
                        processed[chunk.seq] = processed.get(chunk.seq, 0) + len(chunk.tokens)
            for s in range(n_stages):
                if 0 <= step - s < len(flights):
                    self._launch(s, flights[step - s])
            if 0 <= step - n_stages < len(flights):
                self._collect(flights[step - n_stages], rows)
            step += 1
        if plan.ending is Ending.LOGITS:
            return StepResult(rows, processed)
        return StepResult({}, processed, rows)

    def _launch(self, s: int, flight: Flight) -> None:
        if self._stages[s].is_output_only and not flight.batch.output_seqs:
            return
        x = flight.results[-1].result() if s else self._embedding.rows(flight.batch.tokens)
        flight.results.append(self._stages[s].launch(flight.batch, x))

    def _collect(self, flight: Flight, found: dict[int, npt.NDArray[np.float32]]) -> None:
        data, seqs = flight.results[-1].result(), flight.batch.output_seqs
        if not seqs:
            return
        rows = np.frombuffer(data, np.float32).reshape(len(seqs), -1)
        if flight.batch.shape.ending is Ending.LOGITS:
            found.update(zip(seqs, rows, strict=True))
        else:
            found.update((seq, rows[np.array(seqs) == seq]) for seq in dict.fromkeys(seqs))

    def _micro_batch(self, chunks: Sequence[SequenceChunk], ending: Ending) -> MicroBatch:
        cells = [self._cache.take(c.seq, range(c.n_past, c.n_past + len(c.tokens))) for c in chunks]
        tokens = tuple(token for c in chunks for token in c.tokens)
        # Lists first: for the few tokens of a decode step an array operation costs more than these.
        seqs = np.array([c.seq for c in chunks for _ in c.tokens], np.int32)
        positions = np.array([c.n_past + i for c in chunks for i in range(len(c.tokens))], np.int32)
        outputs = _outputs(chunks)
        full, window = self._cache.full, self._cache.window
        n_kv, n_kv_window = full.n_kv(), window.n_kv() if window else 0
        return MicroBatch(
            tokens=tokens,
            positions=positions,
            cells_full=np.concatenate([c[0] for c in cells]),
            mask_full=full.mask(seqs, positions, n_kv),
            cells_window=np.concatenate([c[1] for c in cells if c[1] is not None])
            if window
            else NO_CELLS,
            mask_window=window.mask(seqs, positions, n_kv_window) if window else NO_MASK,
            output_rows=np.array([row for row, _ in outputs], np.int32),
            output_seqs=tuple(seq for _, seq in outputs),
            shape=StageShape(len(tokens), n_kv, n_kv_window, len(outputs), ending),
        )


def _outputs(chunks: Sequence[SequenceChunk]) -> list[tuple[int, int]]:
    """Row and sequence of each result, ascending."""
    ends = accumulate(len(c.tokens) for c in chunks)
    found: list[tuple[int, int]] = []
    for end, chunk in zip(ends, chunks, strict=True):
        if not chunk.wants_logits:
            continue
        start = end - len(chunk.tokens)
        match chunk.pick:
            case Pick.LAST:
                found.append((end - 1, chunk.seq))
            case Pick.FIRST:
                found.append((start, chunk.seq))
            case Pick.ALL:
                found += [(row, chunk.seq) for row in range(start, end)]
    return found


def cut(plan: StepPlan, n_ubatch: int) -> Iterator[list[SequenceChunk]]:
    """Cut a plan into pieces of at most `n_ubatch` tokens; results stay with the last token.

    Chunks of few tokens come first and by themselves, and no long one ends in so few: a device may
    have other kernels for few tokens (the native one has), and what a sequence gets should not
    depend on its company.
    """
    few = [chunk for chunk in plan.chunks if len(chunk.tokens) <= FEW]
    many = [chunk for chunk in plan.chunks if len(chunk.tokens) > FEW]
    for chunks in (few, many):
        piece: list[SequenceChunk] = []
        room = n_ubatch
        for chunk in chunks:
            at = 0
            while at < len(chunk.tokens):
                n = _part(len(chunk.tokens) - at, room, n_ubatch)
                if n:
                    piece.append(_span(chunk, at, n))
                    at, room = at + n, room - n
                if not n or not room:
                    yield piece
                    piece, room = [], n_ubatch
        if piece:
            yield piece


def _part(left: int, room: int, n_ubatch: int) -> int:
    """How many of `left` tokens go into a piece with `room`; none when a new one serves better."""
    n = min(left, room)
    if left <= FEW:
        return n if n == left or room == n_ubatch else 0
    if n_ubatch <= 2 * FEW + 1:
        return n
    if 0 < left - n <= FEW:
        n = left - FEW - 1
    return n if n > FEW else 0


def _span(chunk: SequenceChunk, at: int, n: int) -> SequenceChunk:
    is_last = at + n == len(chunk.tokens)
    wants = chunk.wants_logits and is_last
    tokens = chunk.tokens[at : at + n]
    return SequenceChunk(chunk.seq, tokens, chunk.n_past + at, wants, chunk.pick)
