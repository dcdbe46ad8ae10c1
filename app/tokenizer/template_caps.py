"""What a chat template can take, found out by rendering small conversations with it.

Used by `chat_template`, and shown by /props under llama.cpp's names (common/jinja/caps.h).
llama.cpp watches which values its own engine touches; here a marker is put into the input and
looked for in the output, which needs no special engine.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from app.errors import RequestError
from app.tokenizer.template_sandbox import TemplateLimitError

Message = Mapping[str, object]
Render = Callable[[Sequence[Message], Mapping[str, object]], str]
"""Messages and further variables → text; raises RequestError where the template refuses them."""

_MARK: Final = "probe7391"
_OTHER_MARK: Final = "probe8462"
_CALLED: Final = "tool5173"


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateCaps:
    """One flag per ability; the names are those of llama-server's `chat_template_caps`."""

    supports_string_content: bool
    supports_typed_content: bool
    supports_system_role: bool
    supports_tools: bool
    supports_tool_calls: bool
    supports_parallel_tool_calls: bool
    supports_object_arguments: bool
    supports_preserve_reasoning: bool
    supports_reasoning_effort: bool

    def as_dict(self) -> dict[str, bool]:
        """Return the flags by name, as /props shows them."""
        return asdict(self)


def probe(render: Render) -> TemplateCaps:
    """Return what the template that `render` applies can take.

    Raises:
        TemplateLimitError: the template runs on without end.
    """

    def output(messages: Sequence[Message], **extra: object) -> str | None:
        try:
            return render(messages, extra)
        except TemplateLimitError:
            raise
        except RequestError:
            return None

    typed = output([{"role": "user", "content": [{"type": "text", "text": _MARK}]}])
    plain = output([{"role": "user", "content": _MARK}])
    if plain is None and typed is None:
        return _UNKNOWN
    with_objects = output(_tool_conversation({"arg": _MARK}), tools=_TOOLS)
    as_object = with_objects is not None and _MARK in with_objects
    arguments: object = {"arg": _MARK} if as_object else f'{{"arg": "{_MARK}"}}'
    listed = output([_user()], tools=_TOOLS) or ""
    called = output(_tool_conversation(arguments), tools=_TOOLS) or ""
    twice = output(_tool_conversation(arguments, n_calls=2), tools=_TOOLS) or ""
    return TemplateCaps(
        supports_string_content=_MARK in (plain or ""),
        supports_typed_content=typed is not None and _MARK in typed and not _is_dump(typed),
        supports_system_role=_MARK in (output([_message("system", _MARK), _user()]) or ""),
        supports_tools=_OTHER_MARK in listed + called,
        supports_tool_calls=_called(0) in called,
        supports_parallel_tool_calls=_called(1) in twice,
        supports_object_arguments=as_object,
        supports_preserve_reasoning=_MARK in (output(_reasoning(), **KEEP_REASONING) or ""),
        supports_reasoning_effort=len({output([_user()], **effort) for effort in _EFFORTS}) > 1,
    )


# A template that needs variables which only a request brings cannot be probed. What it cannot take
# it will refuse itself.
_UNKNOWN: Final = TemplateCaps(
    supports_string_content=True,
    supports_typed_content=False,
    supports_system_role=True,
    supports_tools=True,
    supports_tool_calls=True,
    supports_parallel_tool_calls=True,
    supports_object_arguments=False,
    supports_preserve_reasoning=False,
    supports_reasoning_effort=False,
)

KEEP_REASONING: Final[Mapping[str, object]] = {
    "preserve_thinking": True,
    "clear_thinking": False,
    "truncate_history_thinking": False,
    "drop_thinking": False,
}
"""The variables by which templates let earlier answers keep their reasoning."""

_EFFORTS: Final[tuple[Mapping[str, object], ...]] = (
    {},
    *(
        {"reasoning_effort": effort, "reasoning_strength": effort}
        for effort in ("low", "medium", "high", _MARK)
    ),
)

_TOOLS: Final[list[object]] = [
    {
        "type": "function",
        "function": {
            "name": _CALLED,
            "description": _OTHER_MARK,
            "parameters": {
                "type": "object",
                "properties": {"arg": {"type": "string", "description": "an argument"}},
                "required": ["arg"],
            },
        },
    }
]


def _message(role: str, content: str) -> dict[str, object]:
    return {"role": role, "content": content}


def _user() -> dict[str, object]:
    return _message("user", "hello")


def _is_dump(text: str) -> bool:
    """Return whether a list of content parts was printed as a Python or JSON value."""
    return "'type'" in text or '"type"' in text


def _called(i: int) -> str:
    # Another name than the tool's, to tell the call from the list of tools.
    return f"{_CALLED}_{i}"


def _tool_conversation(arguments: object, n_calls: int = 1) -> list[Message]:
    calls = [
        {
            # Nine letters and digits: Mistral's templates insist on it.
            "id": f"call0000{i}",
            "type": "function",
            "function": {"name": _called(i), "arguments": arguments},
        }
        for i in range(n_calls)
    ]
    results: list[Message] = [
        {"role": "tool", "content": "done", "tool_call_id": f"call0000{i}"} for i in range(n_calls)
    ]
    assistant: Message = {"role": "assistant", "content": "", "tool_calls": calls}
    return [_user(), assistant, *results, _message("assistant", "so it is"), _user()]


def _reasoning() -> list[Message]:
    earlier = {**_message("assistant", "yes"), "reasoning_content": _MARK}
    later = {**_message("assistant", "no"), "reasoning_content": "because"}
    return [_user(), earlier, _user(), later, _user()]
