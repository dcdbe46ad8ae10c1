"""The input layer: rows of the token embedding, read from the mapped file on the main host.

llama.cpp keeps the input layer on the host as well: a row per token crosses the wire instead of the
matrix, and a worker that holds a tied output matrix needs no second copy.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from app.ggml.gguf_file import GGUFFile
from app.ggml.quants import dequantize_rows
from app.ggml.types import row_size

TOKEN_EMBD = "token_embd.weight"


class TokenEmbedding:
    """The matrix [n_embd, n_vocab] in the model file."""

    def __init__(self, gguf: GGUFFile) -> None:
        info = gguf.tensors[TOKEN_EMBD]
        self._type = info.type
        self._n_embd = info.ne[0]
        self._row_bytes = row_size(info.type, info.ne[0])
        self._data = gguf.data(TOKEN_EMBD)

    def rows(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """Embeddings (n_tokens, n_embd)."""
        size = self._row_bytes
        packed = b"".join(self._data[t * size : (t + 1) * size] for t in tokens)
        return dequantize_rows(self._type, packed, self._n_embd)
