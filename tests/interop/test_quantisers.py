"""The bytes that our encoders write, against the reference quantisers in stock llama.cpp's library,
for every type that a copy may have.
"""

import ctypes

import numpy as np
import pytest
import torch

from app.ggml.types import TRAITS, GGMLType
from app.kernels.torch_ref.quantize import ENCODERS
from tests.helpers.assets import asset

pytestmark = pytest.mark.peer_v7

# Numbers with few bits, so that ties are frequent, and such with many.
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
N_ELEMENTS = 1 << 20


def _of_stock(type_: GGMLType, x: torch.Tensor) -> torch.Tensor:
    library = ctypes.CDLL(str(asset("peer_v7") / "bin" / "libggml-base.so.0"))
    name = type_.name.lower().replace("_k", "_K")
    blocks = np.zeros((x.shape[0], TRAITS[type_].type_size), np.uint8)
    library[f"quantize_row_{name}_ref"](
        ctypes.c_void_p(x.data_ptr()),
        ctypes.c_void_p(blocks.ctypes.data),
        ctypes.c_int64(x.numel()),
    )
    return torch.from_numpy(blocks)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("type_", ENCODERS, ids=lambda type_: type_.name)
def test_blocks_are_those_of_the_reference(type_: GGMLType, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand((N_ELEMENTS,), generator=generator).mul(2).sub(1).to(dtype).float()
    x = x.view(-1, TRAITS[type_].block_size)
    assert torch.equal(ENCODERS[type_](x), _of_stock(type_, x))
