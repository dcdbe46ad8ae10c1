"""Reads the golden data; each file says under `made_with` how its values were made."""

import json
from pathlib import Path
from typing import TypedDict, cast

_FOLDER = Path(__file__).with_name("golden")


class IdCases(TypedDict):
    """Ids of the same texts with each pair of flags."""

    add_special: bool
    parse_special: bool
    ids: list[list[int]]


class ModelCases(TypedDict):
    """golden/<model>.json."""

    texts: list[str]
    ids: list[IdCases]


class PreTokenizerRow(TypedDict):
    """Pre-tokenizers that give the same ids."""

    names: list[str]
    ids: list[list[int]]


class PreTokenizers(TypedDict):
    """golden/pre_tokenizers.json."""

    texts: list[str]
    rows: list[PreTokenizerRow]


class VocabFacts(TypedDict):
    """What llama.cpp makes of one vocabulary file."""

    n_tokens: int
    add_bos: bool
    add_eos: bool
    eog: list[int]
    control: int
    ids: dict[str, int]
    pieces: str
    special_pieces: str


class Vocabularies(TypedDict):
    """golden/vocabularies.json."""

    files: dict[str, VocabFacts]


class BuiltinTemplates(TypedDict):
    """golden/builtin_templates.json."""

    conversations: list[list[tuple[str, str]]]
    outputs: dict[str, list[str]]


def _load(name: str) -> object:
    return json.loads((_FOLDER / f"{name}.json").read_text("utf-8"))


def model_cases(name: str) -> ModelCases:
    """Return the ids of awkward texts for a model."""
    return cast(ModelCases, _load(name))


def pre_tokenizers() -> PreTokenizers:
    """Return ids of random texts for every pre-tokenizer."""
    return cast(PreTokenizers, _load("pre_tokenizers"))


def vocabularies() -> Vocabularies:
    """Return the facts of every vocabulary file."""
    return cast(Vocabularies, _load("vocabularies"))


def builtin_templates() -> BuiltinTemplates:
    """Return the prompts of the built-in templates."""
    return cast(BuiltinTemplates, _load("builtin_templates"))
