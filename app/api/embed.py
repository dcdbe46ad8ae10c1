"""Runs texts through the engine for their embeddings, all at once, while the client stays.

The routes of embeddings and of reranking call `embed`; `normalized` gives vectors the length that
was asked for, as common_embd_normalize of llama.cpp does.
"""

import logging
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from starlette.requests import Request

from app.api.errors import to_api_error
from app.api.feed import open_feed, while_connected
from app.api.prompt import Tokens
from app.engine.facade import Engine
from app.engine.request import Embedded, Failed, GenerationRequest
from app.sampling.params import SamplingParams

_log = logging.getLogger(__name__)

Rows = npt.NDArray[np.float32]

AS_IS: Final = -1
INT16: Final = 0
INT16_LENGTH: Final = 32760.0


async def embed(engine: Engine, request: Request, texts: Sequence[Tokens]) -> list[Rows]:
    """Return the rows (n_rows, n) of each text, in order.

    Raises: ClientGoneError, ApiError and what `Engine.submit` raises.
    """
    asked = [
        GenerationRequest(tokens, SamplingParams(), cache_prompt=False, embeds=True)
        for tokens in texts
    ]
    found: dict[int, Rows] = {}
    async with while_connected(request.receive), open_feed(engine, asked) as feed:
        while not feed.is_over:
            numbered = await feed.next()
            match numbered and numbered.event:
                case Embedded(rows):
                    assert numbered is not None
                    found[numbered.index] = rows
                case Failed(error):
                    raise to_api_error(error)
                case _:
                    pass
    return [found[index] for index in range(len(texts))]


def normalized(rows: Rows, norm: int) -> Rows:
    """Return each of the rows (n_rows, n) divided by its `norm`: -1 leaves it, 0 makes its largest
    element 32760, p is the p-norm.
    """
    if norm == AS_IS:
        return rows
    sizes = np.abs(rows.astype(np.float64))
    largest = sizes.max(axis=1, keepdims=True)
    if norm == INT16:
        lengths = largest / INT16_LENGTH
    else:
        # Relative to the largest, so that no power leaves the range of numbers.
        parts = np.divide(sizes, largest, out=np.zeros_like(sizes), where=largest > 0)
        lengths = largest * (parts**norm).sum(axis=1, keepdims=True) ** (1.0 / norm)
    scaled: Rows = np.divide(rows, lengths, out=np.zeros_like(sizes), where=lengths > 0).astype(
        np.float32
    )
    return scaled
