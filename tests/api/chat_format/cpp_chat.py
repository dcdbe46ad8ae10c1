"""Reads the cases of llama.cpp's tests/test-chat.cpp: a template, what a model wrote, what it said.

The file is C++: each block makes a tester for a template, and each case is a chain of calls on it.
Only chains made of literals and of the file's own named messages and tools are read.
"""

import json
import re
from dataclasses import dataclass, field

from app.api.chat_format.tools import Tool

_STRING = re.compile(r'R"(\w*)\((.*?)\)\1"|"((?:[^"\\\n]|\\.)*)"', re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}
_TOKEN = re.compile(
    r'\s+|//[^\n]*|/\*.*?\*/|(?P<string>R"(\w*)\(.*?\)\2"|"(?:[^"\\\n]|\\.)*")'
    r"|(?P<word>\w+)|(?P<sign>.)",
    re.DOTALL,
)
Node = str | list["Node"]


@dataclass(frozen=True)
class Said:
    """A message: content, reasoning, and calls as name and arguments."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, str], ...] = ()


@dataclass
class Case:
    """One chain of calls."""

    template: str
    text: str
    options: dict[str, str] = field(default_factory=dict)
    tools: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    expected: Said | None = None


def literal(source: str) -> str:
    """Return the value of adjacent string literals."""
    found = ""
    for match in _STRING.finditer(source):
        raw = match[2]
        found += raw if raw is not None else _unescaped(match[3])
    return found


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[1]), text)


def _arguments(source: str, at: int) -> tuple[list[str], int]:
    """Return the arguments of the call whose parenthesis opens at `at`, and the place after it."""
    depth, start, found = 0, at + 1, []
    for match in _TOKEN.finditer(source, at):
        sign = match["sign"]
        if sign in ("(", "{", "["):
            depth += 1
        elif sign in (")", "}", "]"):
            depth -= 1
            if depth == 0:
                found.append(source[start : match.start()])
                return found, match.end()
        elif sign == "," and depth == 1:
            found.append(source[start : match.start()])
            start = match.end()
    raise AssertionError("unbalanced")


_COMMENT = re.compile(r'("(?:[^"\\\n]|\\.)*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_SIMPLE = re.compile(r"common_chat_msg\s+(\w+)\s*=\s*simple_assist_msg(\()")
_TESTER = re.compile(r"(\w+)\s*=\s*peg_tester\(([^,)]+)")
_TEMPLATE = re.compile(r'"models/templates/([^"]+)"')
_CASE = re.compile(r"\b(\w+)\.test(\()")
_STEP = re.compile(r"\s*\.\s*(\w+)(\()")
_TOOL = re.compile(r"common_chat_tool (\w+)\s*(\{)")


def without_comments(source: str) -> str:
    """Return C++ source without comments, lines kept."""
    return _COMMENT.sub(lambda m: m[1] or "\n" * m[0].count("\n"), source)


def _said(arguments: list[str]) -> Said:
    content, reasoning, name, call = ([literal(a) for a in arguments] + [""] * 4)[:4]
    return Said(content, reasoning, ((name, call),) if name else ())


def tools(source: str) -> dict[str, Tool]:
    """Return the named tools."""
    found = {}
    for match in _TOOL.finditer(source):
        name, _, parameters = _arguments(source, match.start(2))[0][:3]
        found[match[1]] = Tool(literal(name), json.loads(literal(parameters) or "{}"))
    return found


def messages(source: str) -> dict[str, Said]:
    """Return the named messages of the assistant."""
    return {m[1]: _said(_arguments(source, m.start(2))[0]) for m in _SIMPLE.finditer(source)}


def cases(source: str) -> list[Case]:
    """Return the cases; one with a tester that several templates share is one for each."""
    named = messages(source)
    makers = [(m.start(), m[1], _templates(source, m)) for m in _TESTER.finditer(source)]
    found: list[Case] = []
    for match in _CASE.finditer(source):
        made = [names for at, tester, names in makers if at < match.start() and tester == match[1]]
        for template in made[-1] if made else ():
            arguments, at = _arguments(source, match.start(2))
            case = Case(template, literal(arguments[0]))
            while step := _STEP.match(source, at):
                values, at = _arguments(source, step.start(2))
                _apply(case, step[1], values, named)
            found.append(case)
    return found


def _templates(source: str, maker: re.Match[str]) -> list[str]:
    """The templates of a tester: the one that it names, or those that the loop around it does."""
    start = maker.start(2) if '"' in maker[2] else source.rindex("for (", 0, maker.start())
    return _TEMPLATE.findall(source, start, maker.end())


def _apply(case: Case, step: str, values: list[str], named: dict[str, Said]) -> None:
    value = values[0].strip() if values else ""
    expected = case.expected or Said()
    match step:
        case "expect":
            case.expected = named.get(value)
            if value.startswith("simple_assist_msg"):
                case.expected = _said(_arguments(value, value.index("("))[0])
        case "expect_content":
            case.expected = Said(literal(value), expected.reasoning, expected.calls)
        case "expect_reasoning":
            case.expected = Said(expected.content, literal(value), expected.calls)
        case "expect_tool_calls":
            calls = [
                _arguments(call.strip(), 0)[0] for call in _arguments(value, 0)[0] if call.strip()
            ]
            told = tuple((literal(call[0]), literal(call[1])) for call in calls)
            case.expected = Said(expected.content, expected.reasoning, told)
        case "tools":
            case.tools = re.findall(r"\w+", value)
        case "messages":
            case.messages = re.findall(r"\w+", value)
        case _:
            case.options[step] = value
