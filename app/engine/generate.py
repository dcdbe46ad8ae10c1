"""What happens to a task when its logits arrive: choose a token, turn it into text, go on or end.

Pure of scheduling: one task in, events out. The order of the checks decides which reason is
reported and follows `process_token` of llama.cpp's server (server-context.cpp, b11434).
"""

import numpy as np
import numpy.typing as npt

from app.engine.request import Failed, Finished, Piece, StopReason
from app.engine.task import Task, now
from app.sampling.logprobs import TokenLogprobs
from app.tokenizer.base import Tokenizer


def advance(
    task: Task,
    logits: npt.NDArray[np.float32],
    tokenizer: Tokenizer,
    n_past: int,
    n_ctx: int | None,
) -> bool:
    """Choose the next token from `logits` (n_vocab,) and emit its text; return whether to go on.

    `n_past` tokens of the sequence are in the cache, which holds `n_ctx`; None when room is always
    made. Raises: SamplingError.
    """
    token, probs = task.sampler.next(logits)
    task.t_last = now()
    task.n_decoded += 1
    task.tokens.append(token)
    is_eog = tokenizer.is_eog(token)
    special = task.request.special or token in task.request.shown_tokens
    shown = task.assembler.add(tokenizer.piece(token, special=special))
    task.unsent_tokens.append(token)
    if probs is not None:
        task.unsent_logprobs.append(probs)
    elapsed_ms = task.timings().predicted_ms
    reason = _stop_reason(task, shown.text, elapsed_ms, n_past, n_ctx)
    if is_eog:
        reason = StopReason.EOS
    if shown.stopped_by is not None:
        reason = StopReason.WORD
    if shown.is_whole:
        _emit_piece(task, shown.text)
    if reason is None:
        return True
    truncated = task.truncated or (_is_full(n_past, n_ctx) and reason is StopReason.LIMIT)
    finish(task, reason, stopping_word=shown.stopped_by or "", truncated=truncated, n_past=n_past)
    return False


def _stop_reason(
    task: Task, text: str, elapsed_ms: float, n_past: int, n_ctx: int | None
) -> StopReason | None:
    over = task.limits.add(text, elapsed_ms)
    if _is_full(n_past, n_ctx) or task.n_remaining() == 0 or over:
        return StopReason.LIMIT
    return None


def _is_full(n_past: int, n_ctx: int | None) -> bool:
    return n_ctx is not None and n_past + 1 >= n_ctx


def finish(
    task: Task,
    reason: StopReason,
    *,
    n_past: int,
    stopping_word: str = "",
    truncated: bool = False,
) -> None:
    """Send what was held back and the end."""
    rest = "" if reason is StopReason.WORD else task.assembler.finish()
    if rest or task.unsent_tokens:
        task.limits.add(rest, 0.0)
        _emit_piece(task, rest)
    task.emit(
        Finished(
            reason=reason,
            stopping_word=stopping_word,
            truncated=truncated,
            has_new_line=task.limits.has_new_line,
            n_prompt_tokens=task.n_prompt,
            n_cached_tokens=task.n_cached,
            n_decoded=task.n_decoded,
            n_past=n_past,
            timings=task.timings(),
        )
    )


def fail(task: Task, error: Exception) -> None:
    """Send the error as the end."""
    task.emit(Failed(error))


def _emit_piece(task: Task, text: str) -> None:
    tokens, probs = tuple(task.unsent_tokens), tuple[TokenLogprobs, ...](task.unsent_logprobs)
    task.unsent_tokens.clear()
    task.unsent_logprobs.clear()
    task.emit(Piece(text, tokens, probs, task.n_decoded, task.timings()))
