"""Small JSON shapes that several answers share: timings, usage, log-probabilities, ids.

Formulas and names follow server_slot_stats and completion_token_output in llama.cpp's
tools/server. No number here is ever null: what cannot be divided is 0.0.
"""

import secrets
import string
from collections.abc import Sequence
from typing import Final

from app.api.json_value import Json, JsonObject
from app.api.transcript import Usage
from app.engine.request import Timings
from app.sampling.logprobs import TokenLogprob, TokenLogprobs
from app.tokenizer.base import Tokenizer

_ALPHABET: Final = string.digits + string.ascii_letters


def new_id(prefix: str) -> str:
    """Return the prefix and 32 random letters and digits."""
    return prefix + "".join(secrets.choice(_ALPHABET) for _ in range(32))


def timings_json(timings: Timings) -> JsonObject:
    """Return the `timings` object. The first token costs no decode step, so rates leave it out."""
    n_steps = max(timings.predicted_n - 1, 0)
    return {
        "cache_n": timings.cache_n,
        "prompt_n": timings.prompt_n,
        "prompt_ms": timings.prompt_ms,
        "prompt_per_token_ms": _ratio(timings.prompt_ms, timings.prompt_n),
        "prompt_per_second": _ratio(timings.prompt_n * 1e3, timings.prompt_ms),
        "predicted_n": timings.predicted_n,
        "predicted_ms": timings.predicted_ms,
        "predicted_per_token_ms": _ratio(timings.predicted_ms, n_steps),
        "predicted_per_second": _ratio(n_steps * 1e3, timings.predicted_ms),
    }


def usage_json(usage: Usage) -> JsonObject:
    """Return OpenAI's `usage` object."""
    return {
        "completion_tokens": usage.completion,
        "prompt_tokens": usage.prompt,
        "total_tokens": usage.completion + usage.prompt,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }


def probabilities_json(
    tokenizer: Tokenizer, entries: Sequence[TokenLogprobs], *, post_sampling: bool, special: bool
) -> list[Json]:
    """Return the entries of `completion_probabilities` and of OpenAI's `logprobs.content`."""
    top_name = "top_probs" if post_sampling else "top_logprobs"

    def one(entry: TokenLogprob) -> JsonObject:
        piece = tokenizer.piece(entry.token, special=special)
        return {
            "id": entry.token,
            "token": piece.decode("utf-8", "ignore"),
            "bytes": list(piece),
            **({"prob": entry.prob} if post_sampling else {"logprob": entry.logprob}),
        }

    return [one(entry) | {top_name: [one(top) for top in entry.top]} for entry in entries]


def legacy_logprobs_json(
    tokenizer: Tokenizer, entries: Sequence[TokenLogprobs], *, special: bool, offset: int
) -> JsonObject:
    """Return the four arrays of OpenAI's older `logprobs`; `offset` is where the text begins."""

    def text(token: int) -> str:
        return tokenizer.piece(token, special=special).decode("utf-8", "replace")

    tokens = [text(entry.token) for entry in entries]
    offsets: list[Json] = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    tops: list[Json] = [{text(top.token): top.logprob for top in entry.top} for entry in entries]
    return {
        "tokens": [*tokens],
        "token_logprobs": [entry.logprob for entry in entries],
        "top_logprobs": tops,
        "text_offset": offsets,
    }


def _ratio(above: float, below: float) -> float:
    return above / below if below > 0 else 0.0
