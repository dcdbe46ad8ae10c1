"""Reads the table of cases in llama.cpp's tests/test-chat-template.cpp.

The table is C++ source: every value is preceded by a comment with its name and is a string literal
(plain, or in U8C() for other scripts), a boolean or a list of pairs of literals.
"""

import re
from dataclasses import dataclass, field
from typing import Final

_LITERAL: Final = re.compile(r'"((?:[^"\\]|\\.)*)"')
_VALUE: Final = re.compile(
    r'/\*\s*\.(?P<name>\w+)\s*=?\s*\*/\s*(?:U8C\()?(?P<value>"(?:[^"\\]|\\.)*"|true|false|\{.*\})',
)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\", "'": "'"}


@dataclass(frozen=True, slots=True)
class TemplateCase:
    """One case: a template and what it gives for the common conversation."""

    name: str
    template: str
    expected: str
    expected_jinja: str
    bos_token: str = ""
    eos_token: str = ""
    with_jinja: bool = True
    extra: list[tuple[str, str]] = field(default_factory=list)


def _text(literal: str) -> str:
    match = _LITERAL.fullmatch(literal)
    assert match, literal[:80]
    return re.sub(r"\\(.)", lambda m: _ESCAPES[m.group(1)], match.group(1))


def template_cases(source: str) -> list[TemplateCase]:
    """Return the cases in the order of the source."""
    table = source[source.index("std::vector<TestCase> test_cases") :]
    table = table[: table.index("\n    };")]
    cases = []
    for block in re.split(r"\n        \},?", table):
        values = {m["name"]: m["value"] for m in _VALUE.finditer(block)}
        if "name" not in values:
            continue
        pairs = _LITERAL.findall(values.get("extra_conversation", ""))
        texts = [_text(f'"{pair}"') for pair in pairs]
        cases.append(
            TemplateCase(
                name=_text(values["name"]),
                template=_text(values["template_str"]),
                expected=_text(values["expected_output"]),
                expected_jinja=_text(values.get("expected_output_jinja", '""')),
                bos_token=_text(values.get("bos_token", '""')),
                eos_token=_text(values.get("eos_token", '""')),
                with_jinja=values.get("supported_with_jinja", "true") == "true",
                extra=list(zip(texts[::2], texts[1::2], strict=True)),
            )
        )
    return cases
