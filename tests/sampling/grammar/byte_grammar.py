"""Grammars over a vocabulary of the 256 bytes and an end token, and whether they match a text."""

from functools import cache
from typing import Final

from app.sampling.grammar.compiler import gbnf_to_lark, json_schema_to_lark
from app.sampling.grammar.matcher import GrammarConstraint, GrammarEngine, TokenTable

END: Final = 256


@cache
def byte_engine() -> GrammarEngine:
    pieces = [*(bytes([value]) for value in range(256)), b""]
    return GrammarEngine(TokenTable(pieces, frozenset({END})))


def gbnf(source: str) -> GrammarConstraint:
    return byte_engine().constraint(gbnf_to_lark(source))


def json_schema(source: str) -> GrammarConstraint:
    return byte_engine().constraint(json_schema_to_lark(source))


def matches(constraint: GrammarConstraint, text: str | bytes) -> bool:
    """Whether the whole text follows the grammar from its start."""
    constraint.reset()
    for byte in text.encode() if isinstance(text, str) else text:
        if not constraint.allows(byte):
            return False
        constraint.accept(byte)
    return constraint.allows(END)
