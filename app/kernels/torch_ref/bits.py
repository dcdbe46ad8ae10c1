"""Small pieces that the block decoders and encoders share: fields of bits, 16-bit floats inside
bytes, lookups, rounding.

Called by `dequant`, `quantize` and their parts. Blocks are bytes (n, type_size) and may be strided.
"""

from collections.abc import Sequence

import torch


def half(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """Read the f16 at byte `at` of each block: F32 (n, 1)."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).to(torch.float32)


def nibbles(packed: torch.Tensor, run: int = 16) -> torch.Tensor:
    """Split bytes (n, m) into 4-bit numbers (n, 2m): of each run of bytes first all low halves,
    then all high ones.
    """
    runs = packed.unflatten(1, (-1, run))
    return torch.stack((runs & 15, runs >> 4), dim=2).flatten(1)


def fields(packed: torch.Tensor, width: int, run: int) -> torch.Tensor:
    """Split bytes (n, m) into numbers of `width` bits: of each run of bytes first all lowest
    fields, then the next.
    """
    shifts = torch.arange(0, 8, width, dtype=torch.uint8, device=packed.device)
    runs = packed.unflatten(1, (-1, 1, run))
    numbers: torch.Tensor = (runs >> shifts.view(-1, 1)) & ((1 << width) - 1)
    return numbers.flatten(1)


def codebook(indices: torch.Tensor, values: Sequence[int]) -> torch.Tensor:
    """Look 4-bit indices up in a list of 16 values: F32 of the same shape."""
    table = torch.tensor(values, dtype=torch.float32, device=indices.device)
    return table.index_select(0, indices.flatten().to(torch.int32)).view(indices.shape)


def half_bytes(x: torch.Tensor) -> torch.Tensor:
    """F32 (n, m) → the bytes of its f16 (n, 2m)."""
    # As one row first: a single number may have a stride of zero, which no other type can look at.
    return x.to(torch.float16).reshape(-1).view(torch.uint8).view(x.shape[0], 2 * x.shape[1])


def packed(numbers: torch.Tensor, width: int, run: int) -> torch.Tensor:
    """The inverse of `fields`: U8 (n, m) of `width` bits each → bytes (n, m * width / 8)."""
    shifts = torch.arange(0, 8, width, dtype=torch.uint8, device=numbers.device)
    parts = numbers.unflatten(1, (-1, 8 // width, run)) & ((1 << width) - 1)
    moved: torch.Tensor = parts << shifts.view(-1, 1)
    return moved.sum(2, dtype=torch.uint8).flatten(1)


def inverse(x: torch.Tensor) -> torch.Tensor:
    """1 / x, and 0 for 0."""
    return torch.where(x == 0, 0.0, 1.0 / x)


def quotient(top: float, x: torch.Tensor) -> torch.Tensor:
    """top / x, rounded once: torch multiplies a plain number with 1 / x."""
    return torch.full_like(x, top) / x


def sum_in_order(x: torch.Tensor) -> torch.Tensor:
    """Sum of each row (…, 1), one element after the other: which of two almost equal fits is taken
    hangs on the last bit.
    """
    total = x[..., :1]
    for i in range(1, x.shape[-1]):
        total = total + x[..., i : i + 1]
    return total


def largest(x: torch.Tensor) -> torch.Tensor:
    """The first element of greatest magnitude of each row, with its sign (…, 1)."""
    return x.gather(-1, x.abs().argmax(-1, keepdim=True))


def round_half_away(x: torch.Tensor) -> torch.Tensor:
    """Round to the nearest integer, halves away from zero, as C's roundf."""
    whole = torch.trunc(x)
    return whole + torch.sign(x) * ((x - whole).abs() >= 0.5)
