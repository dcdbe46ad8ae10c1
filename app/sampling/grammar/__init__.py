"""Grammars and JSON schemas that a generated text must follow.

`compiler` turns a source into a matcher for one vocabulary; the engine calls it through its own
adapter. GBNF is read by `gbnf` into a `tree`, checked by `check`, cut into lexemes by `lexemes` and
written for llguidance by `lark`; JSON schemas are prepared by `json_schema`. llguidance does the
matching.
"""
