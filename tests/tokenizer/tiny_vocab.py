"""Small vocabularies as GGUF metadata, for tests that need no model file."""

from collections.abc import Mapping, Sequence

import numpy as np

from app.ggml.gguf_file import MetaValue
from app.tokenizer.base import TokenType
from app.tokenizer.bpe import BYTE_ALPHABET

CONTROL, USER, NORMAL, BYTE = (
    int(TokenType.CONTROL),
    int(TokenType.USER_DEFINED),
    int(TokenType.NORMAL),
    int(TokenType.BYTE),
)


def metadata(
    model: str,
    tokens: Mapping[str, int],
    *,
    scores: Sequence[float] | None = None,
    more: Mapping[str, MetaValue] | None = None,
) -> dict[str, MetaValue]:
    """Return the keys of a vocabulary: `tokens` is text → type, `more` are further keys."""
    result: dict[str, MetaValue] = {
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.token_type": np.array(list(tokens.values()), np.int32),
    }
    if scores is not None:
        result["tokenizer.ggml.scores"] = np.array(scores, np.float32)
    return result | {f"tokenizer.ggml.{key}": value for key, value in (more or {}).items()}


def byte_level(
    merges: Sequence[str] = (), *, special: Mapping[str, int] | None = None, **more: MetaValue
) -> dict[str, MetaValue]:
    """Return a byte-pair vocabulary of all bytes, the merged tokens and special tokens."""
    tokens = dict.fromkeys(BYTE_ALPHABET, NORMAL)
    tokens |= {merge.replace(" ", ""): NORMAL for merge in merges}
    tokens |= special or {}
    keys: dict[str, MetaValue] = {"pre": "gpt-2", "merges": list(merges), **more}
    return metadata("gpt2", tokens, more=keys)


def sentence_piece(
    pieces: Mapping[str, float], *, special: Mapping[str, int] | None = None, **more: MetaValue
) -> dict[str, MetaValue]:
    """Return a SentencePiece vocabulary: <unk>, <s>, </s>, the 256 bytes, pieces with scores."""
    tokens = {"<unk>": int(TokenType.UNKNOWN), "<s>": CONTROL, "</s>": CONTROL}
    tokens |= {f"<0x{byte:02X}>": BYTE for byte in range(256)}
    n_before = len(tokens)
    tokens |= dict.fromkeys(pieces, NORMAL) | dict(special or {})
    scores = [0.0] * n_before + list(pieces.values())
    scores += [0.0] * (len(tokens) - len(scores))
    return metadata("llama", tokens, scores=scores, more=more)
