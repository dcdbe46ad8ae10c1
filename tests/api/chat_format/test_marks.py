"""Control tokens of a format's marks are found, and only those."""

from collections.abc import Iterable

from app.api.chat_format.marks import control_marks
from app.tokenizer.base import SpecialIds, TokenType, Vocab
from tests.api.chat_format.answers import known

TEXTS = ["a", "[TOOL_CALLS]", "<think>", "</think>", "<|channel|>", "<|end|>", "[ARGS]"]
EOG = 5


class MarkTokenizer:
    """One token for each of a few texts, "a" for anything else."""

    vocab = Vocab(
        tokens=TEXTS,
        types=[
            TokenType.NORMAL,
            TokenType.CONTROL,
            TokenType.USER_DEFINED,
            TokenType.CONTROL,
            TokenType.CONTROL,
            TokenType.CONTROL,
            TokenType.CONTROL,
        ],
        scores=[0.0] * len(TEXTS),
        ids={text: i for i, text in enumerate(TEXTS)},
        special=SpecialIds(eos=EOG),
        eog=frozenset({EOG}),
    )

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        assert parse_special and not add_special
        return [self.vocab.ids.get(text, 0)]

    def piece(self, token: int, *, special: bool) -> bytes:
        return TEXTS[token].encode()

    def decode(self, tokens: Iterable[int], *, special: bool) -> str:
        return "".join(TEXTS[token] for token in tokens)

    def is_eog(self, token: int) -> bool:
        return token == EOG


def shown(name: str, *, thinks: bool = False) -> set[str]:
    return {TEXTS[i] for i in control_marks(known(name, thinks=thinks), MarkTokenizer())}


def test_control_tokens_of_marks_are_shown_but_not_those_that_end_an_answer() -> None:
    assert shown("mistral") == {"[TOOL_CALLS]"}
    assert shown("mistral-args") == {"[TOOL_CALLS]", "[ARGS]"}
    assert shown("hermes", thinks=True) == {"</think>"}
    assert shown("gpt-oss") == {"<|channel|>"}
    assert shown("content-only") == set()
