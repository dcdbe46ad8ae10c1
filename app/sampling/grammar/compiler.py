"""A grammar's source → the text that llguidance takes.

No vocabulary is needed here, so a source can be checked before there is a model.
"""

from app.sampling.grammar.check import check_rules
from app.sampling.grammar.gbnf import parse_gbnf
from app.sampling.grammar.json_schema import prepare_schema
from app.sampling.grammar.lark import HEADER, write_lark
from app.sampling.grammar.lexemes import LexemeCut
from app.sampling.grammar.rewrite import with_regular_groups, without_tail_recursion
from app.sampling.grammar.tree import Pool

_ROOT = "root"


def gbnf_to_lark(source: str) -> str:
    """Return the Lark text of a GBNF grammar.

    Raises: RequestError that says what is wrong and where.
    """
    pool = Pool()
    rules = parse_gbnf(source, pool)
    check_rules(rules, _ROOT)
    rules = without_tail_recursion(rules, pool)
    rules = with_regular_groups(rules, _ROOT, pool)
    return write_lark(LexemeCut(rules, _ROOT), rules)


def json_schema_to_lark(source: str) -> str:
    """Return the Lark text of a JSON schema.

    Raises: RequestError that says what is wrong.
    """
    return f"{HEADER}start: %json {prepare_schema(source)}\n"
