"""Pre-tokenizers: every row against stock llama.cpp, and the cut as such."""

from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.ggml.gguf_file import GGUFFile, MetaValue
from app.tokenizer.factory import load_tokenizer
from app.tokenizer.pretokenize import PreTokenizer, Threes
from app.tokenizer.pretokenize_table import PRE_TOKENIZERS
from tests.tokenizer.golden_data import PreTokenizerRow, pre_tokenizers

GOLDEN = pre_tokenizers()


@lru_cache(maxsize=1)
def gpt2_metadata(path: Path) -> dict[str, MetaValue]:
    with GGUFFile.open(path) as gguf:
        return dict(gguf.metadata)


@pytest.mark.parametrize("row", GOLDEN["rows"], ids=lambda row: str(row["names"][0]))
def test_every_name_cuts_as_llama_cpp_does(row: PreTokenizerRow, llama_cpp_tree: Path) -> None:
    keys = gpt2_metadata(llama_cpp_tree / "models/ggml-vocab-gpt-2.gguf")
    # Names that share a row need to be tried only once.
    for name in {id(PRE_TOKENIZERS[name]): name for name in row["names"]}.values():
        tokenizer = load_tokenizer({**keys, "tokenizer.ggml.pre": name})
        for text, ids in zip(GOLDEN["texts"], row["ids"], strict=True):
            assert tokenizer.encode(text, add_special=False, parse_special=False) == ids, (
                name,
                text,
            )


def test_the_golden_data_covers_the_whole_table() -> None:
    checked = {name for row in GOLDEN["rows"] for name in row["names"]}
    # The raw rows need another kind of vocabulary; the gemma-4 vectors check them.
    assert checked == {name for name, row in PRE_TOKENIZERS.items() if not row.raw}


@pytest.mark.parametrize("row", {id(row): row for row in PRE_TOKENIZERS.values()}.values())
@given(text=st.text(max_size=40))
def test_words_joined_are_the_text(row: PreTokenizer, text: str) -> None:
    words = row.split(text)
    assert "".join(words) == text
    assert "" not in words


@given(st.text(alphabet="12ab ", max_size=30))
def test_threes_are_counted_from_the_right(text: str) -> None:
    words = PreTokenizer(patterns=(Threes("[0-9]"),)).split(text)
    assert "".join(words) == text
    for word in words:
        digits = word.lstrip("ab ")
        assert len(digits) <= 3
        assert not set(digits) & set("ab ")
    for number in text.replace("a", " ").replace("b", " ").split():
        grouped = [
            word.lstrip("ab ") for word in PreTokenizer(patterns=(Threes("[0-9]"),)).split(number)
        ]
        assert [len(group) for group in grouped[1:]] == [3] * (len(grouped) - 1)
