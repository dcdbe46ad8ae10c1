"""From a conversation to the prompt, how to read the answer, and what constrains it.

A model whose template opens reasoning in the prompt begins with reasoning; when thinking is off and
the template opened it all the same, the prompt closes it. A model whose template knows no tools is
told of them in the system message.
"""

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from app.api.chat_format.formats import CONTENT_ONLY, GENERIC_CALLS, detect_format
from app.api.chat_format.grammar import (
    Thought,
    allow_calls,
    call_mark,
    demand_calls,
    thoughtful_json,
)
from app.api.chat_format.marks import control_marks
from app.api.chat_format.parser import Beginning, ParseOptions
from app.api.chat_format.shapes import Channels, ChatFormat, ReasoningTags
from app.api.chat_format.tools import Choice, ToolUse
from app.api.conversation import Conversation
from app.api.json_value import Json, JsonObject
from app.engine.request import GenerationRequest, Grammar, GrammarKind, Thinking, Trigger
from app.tokenizer.base import Tokenizer, without_bos_text
from app.tokenizer.chat_template import ChatTemplate

_CHANNEL_END: Final = "<|end|>"
_CHANNEL_TAGS: Final = ReasoningTags(
    "<|channel|>analysis<|message|>", f"{_CHANNEL_END}<|start|>assistant<|channel|>final<|message|>"
)
"""How reasoning that a client began is written in channels."""

_format_of = lru_cache(maxsize=16)(detect_format)


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """What the engine is given: text, constraint, control tokens to show, a limit to reasoning;
    and how to read the answer.
    """

    text: str
    parsing: ParseOptions
    grammar: Grammar | None
    shown_tokens: frozenset[int]
    thinking: Thinking | None

    def finish(self, request: GenerationRequest) -> GenerationRequest:
        """Return the request with what only conversations have."""
        return replace(request, shown_tokens=self.shown_tokens, thinking=self.thinking)


@dataclass(frozen=True, slots=True)
class _Opening:
    """The prompt's end: its text, where the answer begins, and what it holds of the reasoning."""

    text: str
    beginning: Beginning
    lead: str = ""


def prepare(
    conversation: Conversation,
    template: ChatTemplate,
    tokenizer: Tokenizer,
    constraint: Grammar | None,
) -> ChatPrompt:
    """Return the prompt of a conversation; `constraint` is what the client wants of the answer.

    Raises: RequestError when the template refuses the messages, or a schema cannot be followed.
    """
    chat_format = _format(conversation, template)
    use = _use(conversation, template, constraint)
    text = template.render(
        _told_of_tools(conversation, chat_format, use),
        tools=conversation.tools or None,
        add_generation_prompt=conversation.add_generation_prompt,
        extra=conversation.kwargs,
    )
    tags = _CHANNEL_TAGS if isinstance(chat_format.calls, Channels) else chat_format.reasoning
    opening = _opening(without_bos_text(text, tokenizer.vocab), tags, conversation)
    parsing = ParseOptions(
        chat_format,
        opening.beginning,
        conversation.extracts_reasoning,
        opening.lead,
        conversation.continued is not None,
        use,
    )
    grammar = _grammar(parsing, constraint, conversation.enable_thinking)
    return ChatPrompt(
        opening.text,
        parsing,
        grammar,
        control_marks(chat_format, tokenizer),
        _thinking(conversation, tags, opening, tokenizer),
    )


def _format(conversation: Conversation, template: ChatTemplate) -> ChatFormat:
    if not conversation.parses:
        return CONTENT_ONLY
    return _format_of(template.source, supports_tools=template.caps.supports_tools)


def _use(conversation: Conversation, template: ChatTemplate, constraint: Grammar | None) -> ToolUse:
    """The tools that the answer may call; none where a schema says what it must be."""
    use = conversation.use
    if not conversation.parses or (constraint is not None and use.choice is not Choice.REQUIRED):
        return ToolUse()
    if not use.tools:
        return use
    parallel = conversation.parallel
    if parallel is None:
        parallel = template.caps.supports_parallel_tool_calls
    return replace(use, parallel=parallel)


def _told_of_tools(
    conversation: Conversation, chat_format: ChatFormat, use: ToolUse
) -> list[JsonObject]:
    """The messages, with the tools in the first where the template would say nothing of them."""
    messages = conversation.messages
    if chat_format.calls is not GENERIC_CALLS or not use.tools:
        return messages
    listed = "\n".join(json.dumps(tool["function"]) for tool in conversation.tools)
    must = "Call one of them." if use.choice is Choice.REQUIRED else "Call one if it helps."
    told = (
        f"You can call these functions:\n{listed}\n{must} To call a function, answer with nothing "
        'but a JSON object: {"name": the function\'s name, "arguments": an object of its arguments}'
    )
    if not messages or messages[0]["role"] not in ("system", "developer"):
        return [{"role": "system", "content": told}, *messages]
    first = messages[0]
    return [{**first, "content": _with_text(first["content"], told)}, *messages[1:]]


def _with_text(content: Json, text: str) -> Json:
    if isinstance(content, list):
        return [*content, {"type": "text", "text": text}]
    return f"{content}\n\n{text}" if content else text


def _opening(text: str, tags: ReasoningTags | None, conversation: Conversation) -> _Opening:
    continued = conversation.continued
    if not conversation.add_generation_prompt:
        return _Opening(text, Beginning.FRESH)
    if tags is None:
        if continued is None:
            return _Opening(text, Beginning.FRESH)
        return _Opening(text + continued.content, Beginning.CONTENT)
    tail = text.rstrip()
    at = len(tail) - len(tags.start) if tail.endswith(tags.start) else len(text)
    body, opened = text[:at], text[at:]
    if continued is not None:
        return _continued_opening(body, opened, tags, conversation)
    if not opened:
        return _Opening(text, Beginning.FRESH)
    if not conversation.enable_thinking:
        return _Opening(text + tags.end, Beginning.CONTENT)
    return _Opening(text, Beginning.REASONING, opened)


def _continued_opening(
    body: str, opened: str, tags: ReasoningTags, conversation: Conversation
) -> _Opening:
    """The prompt with what the client wrote of the answer."""
    continued = conversation.continued
    assert continued is not None, "there is something to continue"
    if tags is _CHANNEL_TAGS:
        line, gap = "", ""
    else:
        line, gap = "\n", "\n\n"
    started = (opened or f"{tags.start}{line}") + continued.reasoning
    if continued.in_reasoning:
        return _Opening(body + started, Beginning.REASONING, started)
    if opened or continued.reasoning:
        body += f"{started}{line if continued.reasoning else ''}{tags.end}{gap}"
    elif tags is _CHANNEL_TAGS:
        body += "<|channel|>final<|message|>"
    return _Opening(body + continued.content, Beginning.CONTENT)


def _grammar(
    parsing: ParseOptions, constraint: Grammar | None, enable_thinking: bool
) -> Grammar | None:
    """What constrains the answer: a demanded call, the client's schema, or calls as they come."""
    shape, use, tags = parsing.format.calls, parsing.use, parsing.format.reasoning
    opened = parsing.beginning is Beginning.REASONING
    thinks = tags is not None and (
        opened or (enable_thinking and parsing.beginning is Beginning.FRESH)
    )
    thought = Thought(tags, opened) if tags is not None and thinks else None
    if shape is not None and use.choice is Choice.REQUIRED:
        return _lark(demand_calls(shape, use, thought))
    if constraint is not None:
        if constraint.kind is GrammarKind.JSON_SCHEMA and thought is not None:
            return _lark(thoughtful_json(constraint.source, thought))
        return constraint
    if shape is None or not use.tools or not (source := allow_calls(shape, use)):
        return None
    start, end = (tags.start, tags.end) if tags is not None else ("", "")
    return Grammar(GrammarKind.LARK, source, Trigger(call_mark(shape), start, end, opened))


def _thinking(
    conversation: Conversation,
    tags: ReasoningTags | None,
    opening: _Opening,
    tokenizer: Tokenizer,
) -> Thinking | None:
    """The limit to reasoning, where there is one and the model reasons."""
    if tags is None or conversation.budget < 0 or opening.beginning is Beginning.CONTENT:
        return None
    closing = conversation.budget_message + tags.end
    return Thinking(
        conversation.budget,
        tags.start,
        _CHANNEL_END if tags is _CHANNEL_TAGS else tags.end,
        tuple(tokenizer.encode(closing, add_special=False, parse_special=True)),
        opening.beginning is Beginning.REASONING,
    )


def _lark(source: str) -> Grammar:
    return Grammar(GrammarKind.LARK, source)
