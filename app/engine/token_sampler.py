"""Joins the sampler chain to a tokenizer: the vocabulary as sampling sees it, and the next token.

Log-probabilities are of the model's own distribution, or of what the chain left when the request
asks for `post_sampling_probs`.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from app.engine.request import Thinking
from app.sampling.chain import Sampler
from app.sampling.logprobs import TokenLogprobs, chain_logprobs, raw_logprobs
from app.sampling.params import SamplingParams
from app.sampling.reasoning_budget import ReasoningBudget, ReasoningMarks
from app.tokenizer.base import Tokenizer


class SamplingVocabulary:
    """A tokenizer as `app.sampling.vocab.SamplingVocab`."""

    def __init__(self, tokenizer: Tokenizer, n_vocab: int) -> None:
        self._tokenizer = tokenizer
        self.n_vocab = n_vocab
        self.eog_tokens: Sequence[int] = tuple(sorted(tokenizer.vocab.eog))
        self.suppress_tokens: Sequence[int] = tokenizer.vocab.suppressed

    def tokenize(self, text: str) -> Sequence[int]:
        """Return the tokens of a text: no special tokens added, none recognised in it."""
        return self._tokenizer.encode(text, add_special=False, parse_special=False)

    def piece(self, token: int) -> bytes:
        """Return the bytes that a token stands for, special tokens written out."""
        if token >= self._tokenizer.vocab.n_tokens:
            return b""
        return self._tokenizer.piece(token, special=True)


class TokenSampler:
    """The sampler of one request; `budget` may take a choice out of its hands."""

    def __init__(
        self, sampler: Sampler, params: SamplingParams, budget: ReasoningBudget | None = None
    ) -> None:
        self._sampler = sampler
        self._budget = budget
        self._n_probs = params.n_probs
        self._post_sampling = params.post_sampling_probs

    def accept_prompt(self, tokens: Sequence[int]) -> None:
        """Take in the prompt, which the penalties look at."""
        self._sampler.accept_prompt(tokens)

    def next(self, logits: npt.NDArray[np.float32]) -> tuple[int, TokenLogprobs | None]:
        """Choose and accept a token from logits (n_vocab,); with its log-probabilities if wanted.

        Raises: SamplingError.
        """
        forced = None if self._budget is None else self._budget.forced()
        if forced is not None:
            self._accept(forced)
            return forced, raw_logprobs(logits, forced, self._n_probs) if self._n_probs else None
        choice = self._sampler.sample(logits)
        self._accept(choice.token)
        if self._n_probs <= 0:
            return choice.token, None
        if self._post_sampling:
            return choice.token, chain_logprobs(choice, self._n_probs)
        return choice.token, raw_logprobs(logits, choice.token, self._n_probs)

    def _accept(self, token: int) -> None:
        self._sampler.accept(token)
        if self._budget is not None:
            self._budget.accept(token)


def reasoning_budget(
    thinking: Thinking | None, tokenizer: Tokenizer, shown: frozenset[int]
) -> ReasoningBudget | None:
    """Return what keeps a request's reasoning short; `shown` are the control tokens in its text."""
    if thinking is None:
        return None
    n_tokens = tokenizer.vocab.n_tokens
    return ReasoningBudget(
        thinking.limit,
        ReasoningMarks(thinking.start.encode(), thinking.end.encode(), thinking.closing),
        lambda token: tokenizer.piece(token, special=token in shown) if token < n_tokens else b"",
        thinking.opened,
    )
