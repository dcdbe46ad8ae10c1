"""float32 → quantised blocks in torch, as ggml's reference quantisers do it (ggml-quants.c).

`ENCODERS` is the one entry: F32 (n, 32) → bytes (n, type_size), for the types that a KV cache or a
copy may have. Rounding is C's: halves away from zero where ggml calls roundf, truncation after
adding one half where it casts.
"""

from collections.abc import Callable

import torch

from app.ggml.types import GGMLType
from app.kernels.torch_ref.dequant_k import IQ4_VALUES
from app.kernels.torch_ref.elementwise import round_half_away


def _half_bytes(x: torch.Tensor) -> torch.Tensor:
    """F32 (n, 1) → the bytes of its f16 (n, 2)."""
    return x.to(torch.float16).view(torch.uint8)


def _packed(numbers: torch.Tensor) -> torch.Tensor:
    """Numbers (n, 32) → low nibbles (n, 16), the second half of the row in the high ones."""
    low, high = numbers.view(-1, 2, 16).unbind(1)
    return (low & 15) | ((high & 15) << 4)


def _fifth_bits(numbers: torch.Tensor) -> torch.Tensor:
    """Numbers (n, 32) → bit 4 of each, eight to a byte (n, 4)."""
    shifts = torch.arange(8, dtype=torch.uint8, device=numbers.device)
    bits = ((numbers >> 4) & 1).view(-1, 4, 8) << shifts
    return bits.sum(2, dtype=torch.uint8)


def _inverse(scale: torch.Tensor) -> torch.Tensor:
    """1 / scale, and 0 for 0."""
    return torch.where(scale == 0, 0.0, 1.0 / scale)


def _to_numbers(x: torch.Tensor, highest: int) -> torch.Tensor:
    return x.clamp(0, highest).to(torch.uint8)


def _largest(x: torch.Tensor) -> torch.Tensor:
    """The element of greatest magnitude of each row, with its sign (n, 1)."""
    return x.gather(1, x.abs().argmax(1, keepdim=True))


def _q8_0(x: torch.Tensor) -> torch.Tensor:
    scale = x.abs().amax(1, keepdim=True) / 127.0
    numbers = round_half_away(x * _inverse(scale)).to(torch.int8)
    return torch.cat((_half_bytes(scale), numbers.view(torch.uint8)), 1)


def _q4_0(x: torch.Tensor) -> torch.Tensor:
    scale = _largest(x) / -8.0
    numbers = _to_numbers(x * _inverse(scale) + 8.5, 15)
    return torch.cat((_half_bytes(scale), _packed(numbers)), 1)


def _q4_1(x: torch.Tensor) -> torch.Tensor:
    low, high = x.aminmax(dim=1, keepdim=True)
    scale = (high - low) / 15.0
    numbers = _to_numbers((x - low) * _inverse(scale) + 0.5, 15)
    return torch.cat((_half_bytes(scale), _half_bytes(low), _packed(numbers)), 1)


def _q5_0(x: torch.Tensor) -> torch.Tensor:
    scale = _largest(x) / -16.0
    numbers = _to_numbers(x * _inverse(scale) + 16.5, 31)
    return torch.cat((_half_bytes(scale), _fifth_bits(numbers), _packed(numbers)), 1)


def _q5_1(x: torch.Tensor) -> torch.Tensor:
    low, high = x.aminmax(dim=1, keepdim=True)
    scale = (high - low) / 31.0
    numbers = _to_numbers((x - low) * _inverse(scale) + 0.5, 31)
    parts = (_half_bytes(scale), _half_bytes(low), _fifth_bits(numbers), _packed(numbers))
    return torch.cat(parts, 1)


def _nearest_index(x: torch.Tensor) -> torch.Tensor:
    """Index of the nearest IQ4 value; of two equally near ones the higher."""
    values = torch.tensor(IQ4_VALUES, dtype=torch.float32, device=x.device)
    return torch.bucketize(x, (values[1:] + values[:-1]) / 2, right=True).to(torch.uint8)


def _iq4_nl(x: torch.Tensor) -> torch.Tensor:
    """Scale so that the greatest element meets the first value; then refit the scale to the chosen
    values by least squares weighted with the squares of the elements.
    """
    values = torch.tensor(IQ4_VALUES, dtype=torch.float32, device=x.device)
    largest = _largest(x)
    scale = largest / values[0]
    numbers = _nearest_index(x * _inverse(scale))
    chosen = values[numbers.to(torch.int64)]
    weight = x * x
    top = (weight * chosen * x).sum(1, keepdim=True)
    bottom = (weight * chosen * chosen).sum(1, keepdim=True)
    fitted = torch.where(bottom == 0, 0.0, top / bottom)
    empty = largest.abs() < 1e-15
    scale = torch.where(empty, 0.0, fitted)
    return torch.cat((_half_bytes(scale), _packed(numbers)), 1)


ENCODERS: dict[GGMLType, Callable[[torch.Tensor], torch.Tensor]] = {
    GGMLType.Q8_0: _q8_0,
    GGMLType.Q4_0: _q4_0,
    GGMLType.Q4_1: _q4_1,
    GGMLType.Q5_0: _q5_0,
    GGMLType.Q5_1: _q5_1,
    GGMLType.IQ4_NL: _iq4_nl,
}
