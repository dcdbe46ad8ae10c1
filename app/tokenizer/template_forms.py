"""The forms that most built-in chat templates have, as functions that write jinja sources.

Used by `builtin_templates`. A form says how messages follow one another; its arguments say what
stands around each.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Final

_CONTENT: Final = "(message.content or '')"
TRIMMED: Final = f"{_CONTENT} | trim"

Around = tuple[str, str]
"""What is written before and after a message."""


def _quoted(text: str) -> str:
    # A JSON string is a jinja string.
    return json.dumps(text, ensure_ascii=False)


def _say(*expressions: str) -> str:
    return "{{- " + " ~ ".join(expressions) + " -}}"


def _do(statement: str) -> str:
    return "{%- " + statement + " -%}"


def _around(around: Around, content: str) -> str:
    return _say(_quoted(around[0]), content, _quoted(around[1]))


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(line for line in lines if line)


def _frame(turn: Iterable[str], prompt: str, start: str = "") -> str:
    """Return a template: `start`, `turn` for each message, `prompt` where an answer is asked."""
    asked = [_do("if add_generation_prompt"), _say(_quoted(prompt)), _do("endif")]
    opening = _say(_quoted(start)) if start else ""
    loop = [_do("for message in messages"), *turn, _do("endfor")]
    return _lines([opening, *loop, *(asked if prompt else [])])


def same_for_all(
    before: str, after: str, prompt: str, *, start: str = "", trim: bool = False
) -> str:
    """Return a template that writes every message alike; {role} in `before` is the role."""
    left, right = map(_quoted, before.split("{role}"))
    content = TRIMMED if trim else _CONTENT
    return _frame([_say(left, "message.role", right, content, _quoted(after))], prompt, start)


def by_role(
    prompt: str,
    roles: Mapping[str, Around],
    *,
    start: str = "",
    trim: bool = False,
    other: Around | None = None,
) -> str:
    """Return a template with a beginning and an end per role; `other` is for roles not named,
    which are left out without it.
    """
    content = TRIMMED if trim else _CONTENT
    turn: list[str] = []
    for role, around in roles.items():
        word = "elif" if turn else "if"
        turn += [_do(f"{word} message.role == {_quoted(role)}"), _around(around, content)]
    if other is not None:
        turn += [_do("else"), _around(other, content)]
    return _frame([*turn, _do("endif")], prompt, start)


def _in_brackets(
    system: Around,
    opening: str,
    closing: str,
    *,
    later_opening: str = "",
    before_answer: str = "",
    opened: bool = False,
    content: str = _CONTENT,
    answer: str = _CONTENT,
) -> str:
    """Return a template of the Llama 2 kind: a turn is opened once, takes in the system message and
    the user's, and ends with the answer. `opened`: the first opening stands at the very start.
    """
    turn = [
        _do("if not ns.opened"),
        _say(_quoted(later_opening or opening)),
        _do("set ns.opened = true"),
        _do("endif"),
        _do("if message.role == 'system'"),
        _around(system, content),
        _do("elif message.role == 'user'"),
        _around(("", closing), content),
        _do("else"),
        _around((before_answer, "</s>"), answer),
        _do("set ns.opened = false"),
        _do("endif"),
    ]
    state = _do(f"set ns = namespace(opened={'true' if opened else 'false'})")
    return _lines([state, _say(_quoted(opening)) if opened else "", _frame(turn, "")])


def llama2(system: Around, *, trim: bool = False, later_opening: str = "") -> str:
    """Return a template of Llama 2's kind; `system` stands around the system message."""
    content = TRIMMED if trim else _CONTENT
    return _in_brackets(
        system,
        "[INST] ",
        " [/INST]",
        later_opening=later_opening,
        opened=True,
        content=content,
        answer=content,
    )


def mistral(*, before: str = "", after: str = "", answer: str = _CONTENT) -> str:
    """Return a template of Mistral's first kinds, with `before` and `after` its brackets."""
    return _in_brackets(
        ("", "\n\n"),
        f"{before}[INST]{after}",
        f"{before}[/INST]",
        before_answer=after,
        answer=answer,
    )
