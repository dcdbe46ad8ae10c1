"""float32 → quantised blocks in torch, as ggml's reference quantisers do it (ggml-quants.c).

`ENCODERS` is the one entry: F32 (n, block_size) → bytes (n, type_size), for the types that a copy
may have. Those of a KV cache are here, the others in `quantize_k` and `quantize_few`. Rounding is
C's: halves away from zero where ggml calls roundf, truncation after adding one half where it casts.
"""

from collections.abc import Callable

import torch

from app.ggml.types import GGMLType
from app.kernels.torch_ref import quantize_few, quantize_k
from app.kernels.torch_ref.bits import (
    half_bytes,
    inverse,
    largest,
    packed,
    round_half_away,
    sum_in_order,
)
from app.kernels.torch_ref.dequant_k import IQ4_VALUES
from app.kernels.torch_ref.quantize_k import nearest_iq4


def _to_numbers(x: torch.Tensor, highest: int) -> torch.Tensor:
    return x.clamp(0, highest).to(torch.uint8)


def _q8_0(x: torch.Tensor) -> torch.Tensor:
    scale = x.abs().amax(1, keepdim=True) / 127.0
    numbers = round_half_away(x * inverse(scale)).to(torch.int8)
    return torch.cat((half_bytes(scale), numbers.view(torch.uint8)), 1)


def _q4_0(x: torch.Tensor) -> torch.Tensor:
    scale = largest(x) / -8.0
    numbers = _to_numbers(x * inverse(scale) + 8.5, 15)
    return torch.cat((half_bytes(scale), packed(numbers, 4, 16)), 1)


def _q4_1(x: torch.Tensor) -> torch.Tensor:
    low, high = x.aminmax(dim=1, keepdim=True)
    scale = (high - low) / 15.0
    numbers = _to_numbers((x - low) * inverse(scale) + 0.5, 15)
    return torch.cat((half_bytes(scale), half_bytes(low), packed(numbers, 4, 16)), 1)


def _q5_0(x: torch.Tensor) -> torch.Tensor:
    scale = largest(x) / -16.0
    numbers = _to_numbers(x * inverse(scale) + 16.5, 31)
    return torch.cat((half_bytes(scale), packed(numbers >> 4, 1, 1), packed(numbers, 4, 16)), 1)


def _q5_1(x: torch.Tensor) -> torch.Tensor:
    low, high = x.aminmax(dim=1, keepdim=True)
    scale = (high - low) / 31.0
    numbers = _to_numbers((x - low) * inverse(scale) + 0.5, 31)
    parts = (half_bytes(scale), half_bytes(low), packed(numbers >> 4, 1, 1), packed(numbers, 4, 16))
    return torch.cat(parts, 1)


def _iq4_nl(x: torch.Tensor) -> torch.Tensor:
    """Scale so that the greatest element meets the first value; then refit the scale to the chosen
    values by least squares weighted with the squares of the elements.
    """
    values = torch.tensor(IQ4_VALUES, dtype=torch.float32, device=x.device)
    greatest = largest(x)
    scale = greatest / values[0]
    numbers = nearest_iq4(x * inverse(scale))
    chosen = values[numbers.to(torch.int64)]
    weight = x * x
    top = sum_in_order(weight * chosen * x)
    bottom = sum_in_order(weight * chosen * chosen)
    fitted = torch.where(bottom == 0, 0.0, top / bottom)
    empty = greatest.abs() < 1e-15
    scale = torch.where(empty, 0.0, fitted)
    return torch.cat((half_bytes(scale), packed(numbers, 4, 16)), 1)


ENCODERS: dict[GGMLType, Callable[[torch.Tensor], torch.Tensor]] = {
    GGMLType.Q8_0: _q8_0,
    GGMLType.Q4_0: _q4_0,
    GGMLType.Q4_1: _q4_1,
    GGMLType.Q5_0: _q5_0,
    GGMLType.Q5_1: _q5_1,
    GGMLType.IQ4_NL: _iq4_nl,
    **quantize_k.ENCODERS,
    **quantize_few.ENCODERS,
}
