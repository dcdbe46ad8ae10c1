"""From the body of a chat request to the response: what every chat endpoint does alike.

`body` is in OpenAI's chat form; endpoints of another form turn theirs into it first.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from app.api import fields
from app.api.chat_format.parser import ParseOptions
from app.api.chat_prompt import ChatPrompt, prepare
from app.api.constraint import read_constraint
from app.api.conversation import Conversation, read_conversation
from app.api.dialects.base import Answer, Dialect
from app.api.generation import GenerationResponse
from app.api.jobs import generate, options_for
from app.api.json_value import JsonObject
from app.api.prompt import Tokens
from app.api.service import Service
from app.engine.request import Grammar
from app.errors import RequestError

ChatDialectMaker = Callable[[Answer, ParseOptions], Dialect]

_DEFAULT_TOP_LOGPROBS: Final = 20


async def answer_chat(
    service: Service, body: JsonObject, dialect: ChatDialectMaker
) -> GenerationResponse:
    """Return the response to a chat request. Raises: RequestError, ApiError."""
    conversation = read_conversation(body, service.settings.chat)
    options = options_for(service, _with_n_probs(body, bool(conversation.tools)))
    constraint = read_constraint(body, service.settings.defaults.grammar)
    prompt, tokens = await asyncio.to_thread(_prepare, service, conversation, constraint)
    return generate(
        service,
        options,
        [tokens],
        prompt.grammar,
        lambda answer: dialect(answer, prompt.parsing),
        prompt.finish,
    )


async def prompt_of(service: Service, body: JsonObject) -> tuple[str, Tokens]:
    """Return the prompt that a chat request makes, as text and as tokens.

    Raises: RequestError, ApiError.
    """
    conversation = read_conversation(body, service.settings.chat)
    prompt, tokens = await asyncio.to_thread(_prepare, service, conversation, None)
    return prompt.text, tokens


def _prepare(
    service: Service, conversation: Conversation, constraint: Grammar | None
) -> tuple[ChatPrompt, Tokens]:
    tokenizer = service.engine.tokenizer
    prompt = prepare(conversation, service.model.template, tokenizer, constraint)
    return prompt, tuple(tokenizer.encode(prompt.text, add_special=True, parse_special=True))


def _with_n_probs(body: JsonObject, has_tools: bool) -> JsonObject:
    """Chat's `logprobs` is a switch and `top_logprobs` the number; elsewhere it is the number."""
    plain = {key: value for key, value in body.items() if key != "logprobs"}
    if fields.boolean(body, "logprobs", False):
        if has_tools and fields.boolean(body, "stream", False):
            raise RequestError("logprobs is not supported with tools + stream", "logprobs")
        n_top = fields.integer(body, "top_logprobs", _DEFAULT_TOP_LOGPROBS, low=0)
        plain["n_probs"] = max(n_top, 1)  # with no candidates at all there are no entries
    elif body.get("top_logprobs") is not None:
        raise RequestError("top_logprobs requires logprobs to be set to true", "top_logprobs")
    return plain
