"""From a request body and its prompts to a job: one generation per prompt and choice.

Choices of one prompt differ in their seed only, as llama-server's child tasks do; only the first
may insist on a slot.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from app.api.dialects.base import Answer, Dialect, new_answer
from app.api.generation import GenerationResponse, Job
from app.api.json_value import JsonObject
from app.api.options import RequestOptions, read_options
from app.api.prompt import Tokens
from app.api.service import Service
from app.api.transcript import Transcript
from app.engine.facade import ModelInfo
from app.engine.request import GenerationRequest, Grammar
from app.errors import RequestError
from app.sampling.params import SamplingParams
from app.sampling.rng import RANDOM_SEED

_MAX_PROBABILITIES: Final = 4_000_000


def generate(
    service: Service,
    options: RequestOptions,
    prompts: Sequence[Tokens],
    grammar: Grammar | None,
    dialect: Callable[[Answer], Dialect],
    finish: Callable[[GenerationRequest], GenerationRequest] = lambda request: request,
) -> GenerationResponse:
    """Return the response that runs every choice of every prompt.

    `finish` adds to each request what only its kind has.
    """
    engine, settings = service.engine, service.settings
    if not options.stream:
        _check_probabilities(options, engine.model, len(prompts))
    requests = [
        finish(_request(service, options, prompt, grammar, choice))
        for prompt in prompts
        for choice in range(options.n_cmpl)
    ]
    transcripts = [
        Transcript(index, index // options.n_cmpl, request, keeps_logprobs=not options.stream)
        for index, request in enumerate(requests)
    ]
    answer = new_answer(settings.model_name, options, engine.tokenizer, settings.defaults.special)
    return GenerationResponse(
        Job(
            engine,
            transcripts,
            dialect(answer),
            options.stream,
            options.sse_ping_interval_s,
            lambda task: service.remember(task, options),
        )
    )


def options_for(service: Service, body: JsonObject) -> RequestOptions:
    """Return the options of a request to this server. Raises: RequestError."""
    return read_options(body, service.settings.defaults, service.engine.n_slots)


def _check_probabilities(options: RequestOptions, model: ModelInfo, n_prompts: int) -> None:
    """Refuse to hold more probabilities than memory is for; a stream holds none."""
    n_tokens = min(options.n_predict, model.n_ctx) if options.n_predict >= 0 else model.n_ctx
    n_entries = min(options.sampling.n_probs, model.n_vocab) * n_tokens
    if n_entries * n_prompts * options.n_cmpl > _MAX_PROBABILITIES:
        raise RequestError(
            f"{options.sampling.n_probs} probabilities of up to {n_tokens} tokens are too many for "
            "one answer: ask for fewer, limit the tokens, or stream",
            "n_probs",
        )


def _request(
    service: Service,
    options: RequestOptions,
    prompt: Tokens,
    grammar: Grammar | None,
    choice: int,
) -> GenerationRequest:
    no_limit = options.n_predict == -1
    return GenerationRequest(
        prompt=prompt,
        sampling=_with_seed(options.sampling, choice),
        n_predict=service.settings.defaults.n_predict if no_limit else options.n_predict,
        n_keep=options.n_keep,
        n_discard=options.n_discard,
        n_indent=options.n_indent,
        t_max_predict_ms=options.t_max_predict_ms,
        stop=options.stop,
        grammar=grammar,
        cache_prompt=options.cache_prompt,
        id_slot=options.id_slot if choice == 0 else -1,
        return_progress=options.return_progress,
        special=service.settings.defaults.special,
    )


def _with_seed(sampling: SamplingParams, choice: int) -> SamplingParams:
    if choice == 0 or sampling.seed == RANDOM_SEED:
        return sampling
    return replace(sampling, seed=(sampling.seed + choice) % 2**32)
