"""Before a request takes a place in the queue: what is known to be wrong is refused, its sampler
and grammar are built.

Called by the engine's `submit`, in the thread of the caller.
"""

from app.engine.loader import LoadedModel
from app.engine.pooling import check_input
from app.engine.request import GenerationRequest
from app.engine.token_sampler import TokenSampler, reasoning_budget
from app.errors import ContextExceededError, RequestError, UnsupportedError
from app.sampling.chain import SamplerFactory
from app.sampling.constraint import Constraint


def build_sampler(
    request: GenerationRequest, model: LoadedModel, samplers: SamplerFactory
) -> TokenSampler:
    """Return the sampler of a request. Raises: RequestError for a grammar that is none."""
    chain = samplers.build(request.sampling, _constraint(request, model))
    budget = reasoning_budget(request.thinking, model.tokenizer, request.shown_tokens)
    return TokenSampler(chain, request.sampling, budget)


def _constraint(request: GenerationRequest, model: LoadedModel) -> Constraint | None:
    if request.grammar is None:
        return None
    # The grammar library is only loaded by servers whose clients use it.
    from app.engine.constraint import make_constraint

    n_vocab = model.hparams.n_vocab
    return make_constraint(request.grammar, model.tokenizer, n_vocab, request.shown_tokens)


def check_request(request: GenerationRequest, model: LoadedModel) -> None:
    """Refuse what this model cannot do.

    Raises: RequestError, ContextExceededError, InputTooLargeError, UnsupportedError.
    """
    n_vocab, n_prompt = model.hparams.n_vocab, len(request.prompt)
    if not n_prompt:
        raise RequestError("the prompt is empty: expected at least one token", "prompt")
    if not all(0 <= token < n_vocab for token in request.prompt):
        raise RequestError(f"the prompt has a token outside 0 to {n_vocab - 1}", "prompt")
    if request.id_slot != -1 and not 0 <= request.id_slot < model.sizes.n_parallel:
        raise RequestError(
            f"id_slot {request.id_slot}: expected -1 or 0 to {model.sizes.n_parallel - 1}",
            "id_slot",
        )
    if request.embeds:
        check_input(n_prompt, model.pooling, model.sizes)
        return
    if not model.hparams.causal:
        raise UnsupportedError(f"architecture '{model.hparams.arch}' makes embeddings, no text")
    n_ctx = model.sizes.n_ctx_slot
    if n_prompt >= n_ctx:
        raise ContextExceededError(
            f"request ({n_prompt} tokens) exceeds the available context size ({n_ctx} tokens), "
            "try increasing it",
            n_prompt,
            n_ctx,
        )
