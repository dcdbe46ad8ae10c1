"""The merge loop: two ways, one result; and cutting at spaces changes nothing."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from app.tokenizer import merging
from app.tokenizer.factory import load_tokenizer
from app.tokenizer.merging import NO_RANK, merge
from app.tokenizer.words import chars_before_marks, space_cutter
from tests.tokenizer.tiny_vocab import sentence_piece

RANKS = st.dictionaries(
    st.text(alphabet="abc", min_size=2, max_size=5), st.integers(0, 5).map(float), max_size=40
)


def reference(symbols: list[str], ranks: dict[str, float]) -> list[str]:
    """Join the best pair of the whole list, again and again, with nothing remembered."""
    while True:
        pairs = [(ranks[a + b], i) for i, (a, b) in enumerate(pairwise(symbols)) if a + b in ranks]
        if not pairs:
            return symbols
        _, i = min(pairs)
        symbols = [*symbols[:i], symbols[i] + symbols[i + 1], *symbols[i + 2 :]]


@given(text=st.text(alphabet="abc", max_size=140), ranks=RANKS)
def test_short_and_long_way_merge_as_the_plain_rule_does(
    text: str, ranks: dict[str, float]
) -> None:
    def rank_of(a: str, b: str) -> float:
        return ranks.get(a + b, NO_RANK)

    expected = reference(list(text), ranks)
    assert merge(list(text), rank_of) == expected
    assert merging._merge_by_scan(list(text), rank_of) == expected
    assert merging._merge_by_heap(list(text), rank_of) == expected


PIECES = st.dictionaries(
    st.text(alphabet="ab▁>", min_size=1, max_size=4),
    st.integers(-9, 0).map(float),
    min_size=1,
    max_size=30,
)


@given(pieces=PIECES, text=st.text(alphabet="ab> ", max_size=60))
def test_word_by_word_gives_the_same_ids_as_the_whole_text_at_once(
    pieces: dict[str, float], text: str
) -> None:
    tokenizer = load_tokenizer(sentence_piece(pieces, add_space_prefix=False))
    ids = tokenizer.vocab.ids
    scores = {piece: -score for piece, score in pieces.items()}
    expected: list[int] = []
    for symbol in reference(list(text.replace(" ", "▁")), scores):
        known = ids.get(symbol)
        spelled = [ids[f"<0x{byte:02X}>"] for byte in symbol.encode()]
        expected += spelled if known is None else [known]
    assert tokenizer.encode(text, add_special=False, parse_special=False) == expected


def test_text_is_cut_before_spaces_unless_a_token_reaches_over() -> None:
    assert chars_before_marks(["a▁", "▁b", "c▁▁d", "▁▁"]) == {"a", "c"}
    cut = space_cutter({">"})
    assert cut("ab▁c▁▁>▁d▁") == ["ab", "▁c", "▁▁>▁d", "▁"]
