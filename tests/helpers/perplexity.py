"""Perplexity of a text as llama.cpp's `llama-perplexity` defines it: ours and stock's.

The tokens are cut into chunks of `n_ctx`. Each starts from an empty cache, with BOS in place of its
first token where the model wants one, and only what the second half of a chunk says about the
token behind counts. Follows tools/perplexity/perplexity.cpp (b11434).
"""

import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from enum import Enum
from math import exp
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from app.engine.embedding import TokenEmbedding
from app.engine.kv_cache import KVCache
from app.engine.loader import LoadedModel, load_model
from app.engine.runner import NO_CELLS, NO_MASK
from app.engine.step import MicroBatch, SequenceChunk, StepPlan
from app.models.inputs import StageShape
from tests.helpers.assets import asset
from tests.helpers.local_engine import small_run

Rows = npt.NDArray[np.float32]
Chunks = Sequence[Sequence[int]]

_STOCK_TIMEOUT_S: Final = 240
_ROWS_AT_ONCE: Final = 128
_ESTIMATE: Final = re.compile(r"Final estimate: PPL = ([0-9.]+)")


class Way(Enum):
    """How the second half of a chunk is computed: many tokens per step, or one of each chunk."""

    PROMPT = "prompt"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class Measurement:
    """A text file in UTF-8 and how much of it is measured: `n_chunks` of `n_ctx` tokens, with
    `n_ctx` a multiple of 256, to which stock rounds it.
    """

    text: Path
    n_ctx: int
    n_chunks: int

    @property
    def first(self) -> int:
        """The first position of a chunk that counts."""
        return self.n_ctx // 2


def our_perplexity(
    model: Path, measurement: Measurement, way: Way, level: str | None = None
) -> float:
    """Compute it with the engine's runner on a level of the native core, or on the best."""
    n_parallel = measurement.n_chunks if way is Way.DECODE else 1
    n_ctx = measurement.n_ctx * n_parallel
    config = small_run(model, n_ctx=n_ctx, n_parallel=n_parallel, cpu_level=level)
    with closing(load_model(config, lambda progress: None, lambda said: None)) as loaded:
        chunks = _chunks(loaded, measurement)
        rows = {Way.PROMPT: _prompt_rows, Way.DECODE: _decode_rows}[way]
        losses = [
            _loss(logits, chunks[c][position + 1])
            for c, position, logits in rows(loaded, chunks, measurement.first)
            if position + 1 < measurement.n_ctx
        ]
    assert len(losses) == len(chunks) * (measurement.n_ctx - 1 - measurement.first)
    return exp(float(np.mean(losses)))


def stock_perplexity(model: Path, measurement: Measurement) -> float:
    """Let llama-perplexity of version 7 compute it; skips the test without the peer."""
    n_ctx = str(measurement.n_ctx)
    command = ["-m", str(model), "-f", str(measurement.text), "-c", n_ctx, "-b", n_ctx]
    output = _stock("llama-perplexity", *command, "--chunks", str(measurement.n_chunks), "-t", "1")
    found = _ESTIMATE.search(output)
    assert found is not None, output[-2000:]
    return float(found[1])


@contextmanager
def weights_in_floats(model: Path, folder: Path) -> Iterator[Path]:
    """Let llama-quantize write the same weights as F32, for the time of the context."""
    wide = folder / model.with_suffix(".f32.gguf").name
    try:
        _stock("llama-quantize", "--allow-requantize", str(model), str(wide), "F32", "1")
        yield wide
    finally:
        wide.unlink(missing_ok=True)


def _stock(program: str, *arguments: str) -> str:
    command = [str(asset("peer_v7") / "bin" / program), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_STOCK_TIMEOUT_S, check=False
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-2000:]
    return output


def _chunks(loaded: LoadedModel, measurement: Measurement) -> Chunks:
    """The tokens of each chunk; stock drops the line end at the end of a file."""
    text = measurement.text.read_text(encoding="utf-8").removesuffix("\n")
    tokens = loaded.tokenizer.encode(text, add_special=True, parse_special=False)
    size, vocab = measurement.n_ctx, loaded.tokenizer.vocab
    assert len(tokens) >= measurement.n_chunks * size, f"the text has {len(tokens)} tokens only"
    chunks = [list(tokens[i * size : (i + 1) * size]) for i in range(measurement.n_chunks)]
    if vocab.add_bos:
        assert vocab.special.bos is not None
        for chunk in chunks:
            chunk[0] = vocab.special.bos
    return chunks


def _prompt_rows(
    loaded: LoadedModel, chunks: Chunks, first: int
) -> Iterator[tuple[int, int, Rows]]:
    """Yield chunk, position and logits (n_vocab,), computed many positions at once."""
    for c, chunk in enumerate(chunks):
        loaded.cache.truncate(0, 0)
        loaded.runner.run(StepPlan((SequenceChunk(0, chunk[:first], 0, wants_logits=False),)))
        for at in range(first, len(chunk), _ROWS_AT_ONCE):
            rows = _all_rows(loaded, chunk[at : at + _ROWS_AT_ONCE], at)
            yield from ((c, at + i, row) for i, row in enumerate(rows))


def _all_rows(loaded: LoadedModel, tokens: Sequence[int], n_past: int) -> Rows:
    """Logits (n_tokens, n_vocab) of every token, of which a step plan gives the last only."""
    (stage,) = loaded.runner._stages
    x = TokenEmbedding(loaded.gguf).rows(tokens)
    rows = stage.launch(_micro_batch(loaded.cache, tokens, n_past), x).result()
    return np.frombuffer(rows, np.float32).reshape(len(tokens), loaded.info.n_vocab)


def _micro_batch(cache: KVCache, tokens: Sequence[int], n_past: int) -> MicroBatch:
    """Tokens of sequence 0 that all want logits."""
    n, full, window = len(tokens), cache.full, cache.window
    cells, cells_window = cache.take(0, range(n_past, n_past + n))
    seqs, positions = np.zeros(n, np.int32), np.arange(n_past, n_past + n, dtype=np.int32)
    n_kv, n_kv_window = full.n_kv(), window.n_kv() if window else 0
    return MicroBatch(
        tokens=tuple(tokens),
        positions=positions,
        cells_full=cells,
        mask_full=full.mask(seqs, positions, n_kv),
        cells_window=NO_CELLS if cells_window is None else cells_window,
        mask_window=window.mask(seqs, positions, n_kv_window) if window else NO_MASK,
        output_rows=np.arange(n, dtype=np.int32),
        output_seqs=(0,) * n,
        shape=StageShape(n, n_kv, n_kv_window, n),
    )


def _decode_rows(
    loaded: LoadedModel, chunks: Chunks, first: int
) -> Iterator[tuple[int, int, Rows]]:
    """As `_prompt_rows`, computed one position of every chunk at once."""
    for c, chunk in enumerate(chunks):
        loaded.runner.run(StepPlan((SequenceChunk(c, chunk[:first], 0, wants_logits=False),)))
    for position in range(first, len(chunks[0])):
        step = [
            SequenceChunk(c, chunk[position : position + 1], position, wants_logits=True)
            for c, chunk in enumerate(chunks)
        ]
        logits = loaded.runner.run(StepPlan(tuple(step))).logits
        yield from ((c, position, row) for c, row in logits.items())


def _loss(logits: Rows, token: int) -> float:
    """What a token costs, in nats."""
    top = logits.max()
    total = np.exp(logits - top).sum(dtype=np.float64)
    return float(np.log(total) + top - logits[token])
