"""How large a grammar may be, and the error for one that is refused.

The bounds keep the worst hostile source at two or three seconds of work and a few hundred
megabytes; grammars that people write are one or two orders of magnitude smaller.
"""

from typing import Final

from app.errors import RequestError

MAX_GBNF_CHARS: Final = 64 * 1024
MAX_GROUP_DEPTH: Final = 50
MAX_SIGNS: Final = 4
"""Repetition signs on one item."""
MAX_RULES: Final = 2000
MAX_LEAST_REPEATS: Final = 2000
"""A smallest count above this is refused by llama.cpp too."""
MAX_MOST_REPEATS: Final = 10_000
MAX_NESTED_REPEATS: Final = 100_000
MAX_LEXEME_SIZE: Final = 150_000
MAX_INLINED_SIZE: Final = 20_000
"""A rule that is larger written out is not made part of a lexeme."""
MAX_LEXEME_DEPTH: Final = 150
MAX_TOTAL_SIZE: Final = 200_000
MAX_DEFINITIONS: Final = 10_000

MAX_SCHEMA_CHARS: Final = 128 * 1024
MAX_SCHEMA_DEPTH: Final = 100
MAX_PROPERTIES: Final = 1000
MAX_MULTIPLE_OF: Final = 10_000
MAX_JOINED_PATTERNS: Final = 8


def refusal(cause: str, param: str | None = None) -> RequestError:
    """Return the error for a grammar or schema that cannot be used."""
    return RequestError(f"Failed to parse grammar: {cause}", param)


def gbnf_refusal(cause: str) -> RequestError:
    """Return the error for a GBNF grammar that cannot be used."""
    return refusal(cause, "grammar")


def schema_refusal(cause: str) -> RequestError:
    """Return the error for a JSON schema that cannot be used."""
    return refusal(cause, "json_schema")
