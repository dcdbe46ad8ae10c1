"""Sampler: logits in, token out, for one sequence; SamplerFactory: makes them for one model.

For each token the engine calls `sample` and then `accept`; prompt tokens go to `accept_prompt`. A
Sampler belongs to one thread at a time. A sequence can be replayed from its tokens and a clone of
its Sampler. Order of bias, chain and grammar as in llama.cpp's common/sampling.cpp.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import numpy as np

from app.errors import RequestError
from app.sampling.candidates import F32, Candidates
from app.sampling.choice import Choice, Selector
from app.sampling.constraint import Constraint, Mask
from app.sampling.errors import SamplingError
from app.sampling.list_kinds import TokenBias
from app.sampling.params import SamplingParams
from app.sampling.penalties import LogitBias
from app.sampling.rng import resolve_seed
from app.sampling.stage import Stage
from app.sampling.table import BuildContext, build_chain
from app.sampling.vocab import BreakerIndex, SamplingVocab


class Sampler:
    """Chooses the tokens of one sequence."""

    __slots__ = ("_constraint", "_selector", "_stages", "seed")

    def __init__(
        self,
        stages: Sequence[Stage],
        selector: Selector,
        seed: int,
        constraint: Constraint | None = None,
    ) -> None:
        """`seed` is what the draws started from."""
        self._stages = tuple(stages)
        self._selector = selector
        self._constraint = constraint
        self.seed = seed

    def sample(self, logits: F32, mask: Mask | None = None) -> Choice:
        """Choose a token by its logits (n_vocab,), which are not changed; only tokens whose `mask`
        (n_vocab,) is true take part.

        Raises: SamplingError when the logits hold NaN or nothing is left to choose from.
        """
        values = np.asarray(logits, dtype=np.float32)
        with np.errstate(all="ignore"):
            if mask is not None:
                values = _masked(values, mask)
            choice = self._run(values)
            if self._constraint is not None and not self._constraint.allows(choice.token):
                choice = self._run(_masked(values, self._constraint.mask()))
        return choice

    def _run(self, values: F32) -> Choice:
        top = values.max()
        if not top > -inf:
            reason = "all -inf" if top == -inf else f"NaN at token {int(np.isnan(values).argmax())}"
            raise SamplingError(f"{values.size} logits are {reason}; expected a largest one")
        candidates = Candidates(values)
        for stage in self._stages:
            candidates = stage.apply(candidates)
        return self._selector.select(candidates)

    def accept(self, token: int) -> None:
        """Take in a generated token."""
        if self._constraint is not None:
            self._constraint.accept(token)
        self._selector.accept(token)
        self.accept_prompt((token,))

    def accept_prompt(self, tokens: Sequence[int]) -> None:
        """Take in tokens that were given, oldest first; a grammar does not see them."""
        for stage in self._stages:
            stage.accept(tokens)

    def reset(self) -> None:
        """Forget all tokens and start the draws again."""
        for stage in self._stages:
            stage.reset()
        self._selector.reset()
        if self._constraint is not None:
            self._constraint.reset()

    def clone(self) -> "Sampler":
        """Return an independent sampler that would choose the same from here on."""
        return Sampler(
            [stage.clone() for stage in self._stages],
            self._selector.clone(),
            self.seed,
            None if self._constraint is None else self._constraint.clone(),
        )


def _masked(values: F32, mask: Mask) -> F32:
    return np.where(mask, values, np.float32(-inf))


class SamplerFactory:
    """Makes samplers for one vocabulary. `resolve` may be called from any thread."""

    def __init__(self, vocab: SamplingVocab) -> None:
        self._vocab = vocab
        self._index = BreakerIndex(vocab)

    def resolve(self, params: SamplingParams) -> SamplingParams:
        """Return the parameters in terms of this vocabulary: texts in the logit bias become tokens,
        `ignore_eos` becomes biases. Looks up sequence breakers, which may take a while, once.

        Raises: RequestError for a token that the vocabulary does not have.
        """
        biases = [bias for entry in params.logit_bias for bias in self._token_biases(entry)]
        if params.ignore_eos:
            forbidden = [TokenBias(token, -inf) for token in self._vocab.eog_tokens]
            biases += [bias for bias in forbidden if bias not in biases]
        resolved = replace(params, logit_bias=tuple(biases))
        # Building once fills the index, so that the engine's thread need not search.
        build_chain(resolved, self._context(resolved.seed))
        return resolved

    def _token_biases(self, entry: TokenBias) -> list[TokenBias]:
        n_vocab = self._vocab.n_vocab
        if isinstance(entry.token, str):
            return [TokenBias(token, entry.bias) for token in self._vocab.tokenize(entry.token)]
        if not 0 <= entry.token < n_vocab:
            message = f"logit_bias: got token {entry.token}, expected one from 0 to {n_vocab - 1}"
            raise RequestError(message, param="logit_bias")
        return [entry]

    def build(self, params: SamplingParams, constraint: Constraint | None = None) -> Sampler:
        """Return a sampler with fresh state. Raises: RequestError as `resolve` does."""
        params = self.resolve(params)
        seed = resolve_seed(params.seed)
        stages, selector = build_chain(params, self._context(seed))
        biases = [(b.token, b.bias) for b in params.logit_bias if isinstance(b.token, int)]
        biases += [(token, -inf) for token in self._vocab.suppress_tokens]
        if biases:
            tokens, values = zip(*biases, strict=True)
            stages = [LogitBias(tokens, values), *stages]
        return Sampler(stages, selector, seed, constraint)

    def _context(self, seed: int) -> BuildContext:
        return BuildContext(seed, self._vocab.n_vocab, self._index.breakers)
