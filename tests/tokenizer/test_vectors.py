"""llama.cpp's own tokenizer vectors, and facts about its vocabularies taken from the library."""

import hashlib
from functools import lru_cache
from pathlib import Path

import pytest

from app.ggml.gguf_file import GGUFFile
from app.tokenizer.base import Tokenizer, TokenType
from app.tokenizer.factory import load_tokenizer
from tests.tokenizer.golden_data import VocabFacts, vocabularies

N_CASES = 694
WITH_VECTORS = (
    "bert-bge",
    "command-r",
    "deepseek-coder",
    "deepseek-llm",
    "falcon",
    "gemma-4",
    "gpt-2",
    "llama-bpe",
    "llama-spm",
    "mpt",
    "phi-3",
    "qwen2",
    "qwen35",
    "refact",
    "starcoder",
)
FACTS = vocabularies()["files"]


@lru_cache(maxsize=1)
def load(path: Path) -> Tokenizer:
    with GGUFFile.open(path) as gguf:
        return load_tokenizer(gguf.metadata)


def cases(path: Path) -> list[tuple[str, list[int]]]:
    texts = path.with_name(path.name + ".inp").read_bytes().decode("utf-8")
    lines = path.with_name(path.name + ".out").read_text("utf-8").removesuffix("\n").split("\n")
    pairs = zip(texts.split("\n__ggml_vocab_test__\n"), lines, strict=False)
    return [(text, [int(number) for number in line.split()]) for text, line in pairs]


@pytest.mark.parametrize("name", WITH_VECTORS)
def test_every_vector_gives_its_ids(name: str, llama_cpp_tree: Path) -> None:
    path = llama_cpp_tree / f"models/ggml-vocab-{name}.gguf"
    tokenizer = load(path)
    all_cases = cases(path)
    assert len(all_cases) == (50 if name == "qwen35" else 46)
    wrong = {
        text: (got, ids)
        for text, ids in all_cases
        if (got := tokenizer.encode(text, add_special=False, parse_special=False)) != ids
    }
    assert not wrong


def test_no_vector_is_overlooked(llama_cpp_tree: Path) -> None:
    folder = llama_cpp_tree / "models"
    files = sorted(folder.glob("*.gguf.inp"))
    assert [path.name for path in files] == [f"ggml-vocab-{name}.gguf.inp" for name in WITH_VECTORS]
    assert sum(len(cases(path.with_suffix(""))) for path in files) == N_CASES


@pytest.mark.parametrize("file", FACTS)
def test_special_ids_ends_of_generation_and_pieces_are_those_of_llama_cpp(
    file: str, llama_cpp_tree: Path
) -> None:
    tokenizer, facts = load(llama_cpp_tree / "models" / file), FACTS[file]
    vocab = tokenizer.vocab
    assert vocab.n_tokens == facts["n_tokens"]
    assert (vocab.add_bos, vocab.add_eos) == (facts["add_bos"], facts["add_eos"])
    named = {
        name: token
        for name, token in vocab.special.items()
        # llama.cpp shows neither of the two
        if token is not None and name not in ("unk", "eom")
    }
    assert named == facts["ids"]
    assert sorted(vocab.eog) == facts["eog"]
    assert sum(type_ == TokenType.CONTROL for type_ in vocab.types) == facts["control"]
    assert digest(tokenizer, facts, special=False) == facts["pieces"]
    assert digest(tokenizer, facts, special=True) == facts["special_pieces"]


def digest(tokenizer: Tokenizer, facts: VocabFacts, *, special: bool) -> str:
    total = hashlib.sha256()
    for token in range(facts["n_tokens"]):
        piece = tokenizer.piece(token, special=special)
        total.update(len(piece).to_bytes(4, "little") + piece)
    return total.hexdigest()
