"""UPSCALE: an image of another size, by the nearest element, bilinear or bicubic.

Every mode is the same: along each dimension an element of the result is a weighted sum of a few
elements of the source, its taps. Dimensions are resampled one after the other, those that shrink
most first. Positions are counted in float32, as ggml does, so that ties fall the same way.
"""

from dataclasses import dataclass

import torch

from app.ggml.ops import Op
from app.ggml.shapes_image import ScaleFlag, ScaleMode
from app.ggml.tensor import Tensor
from app.ggml.types import GGMLType
from app.kernels.table import Kernel, Steps
from app.kernels.torch_ref.context import Context, types_in

_F32 = frozenset({GGMLType.F32})
_CUBIC = -0.75


@dataclass(frozen=True, slots=True)
class _Axis:
    """One dimension: elements of source and result, and where the middle of an element lies."""

    n_in: int
    n_out: int
    ratio: float
    middle: float


# Indices into the source (taps, n_out) and their weights, None where they are all one.
_Taps = tuple[torch.Tensor, torch.Tensor | None]


def _axis(node: Tensor, dim: int, flags: int) -> _Axis:
    n_in, n_out = node.require(0).ne[dim], node.ne[dim]
    align = bool(flags & ScaleFlag.ALIGN_CORNERS)
    if align and dim < 2 and n_in > 1 and n_out > 1:
        return _Axis(n_in, n_out, (n_out - 1) / (n_in - 1), 0.0)
    return _Axis(n_in, n_out, n_out / n_in, 0.0 if align else 0.5)


def _counted(axis: _Axis, device: torch.device) -> torch.Tensor:
    return torch.arange(axis.n_out, dtype=torch.float32, device=device)


def _nearest(axis: _Axis, device: torch.device) -> _Taps:
    ratio = torch.tensor(axis.ratio, dtype=torch.float32, device=device)
    index = (_counted(axis, device) / ratio).to(torch.int64)
    return index.clamp_(max=axis.n_in - 1).unsqueeze(0), None


def _between(axis: _Axis, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where each element of the result lies in the source: the element before, the rest."""
    ratio = torch.tensor(axis.ratio, dtype=torch.float32, device=device)
    at = (_counted(axis, device) + axis.middle) / ratio - axis.middle
    return at.floor().to(torch.int64), at


def _linear(axis: _Axis, device: torch.device) -> _Taps:
    before, at = _between(axis, device)
    index = torch.stack([before, before + 1]).clamp_(0, axis.n_in - 1)
    rest = (at - index[0]).clamp_(0.0, 1.0)
    return index, torch.stack([1 - rest, rest])


def _cubic(axis: _Axis, device: torch.device) -> _Taps:
    before, at = _between(axis, device)
    index = torch.stack([before + i for i in (-1, 0, 1, 2)]).clamp_(0, axis.n_in - 1)
    rest = at - before
    near = [((_CUBIC + 2) * x - (_CUBIC + 3)) * x * x + 1 for x in (rest, 1 - rest)]
    far = [
        ((_CUBIC * x - 5 * _CUBIC) * x + 8 * _CUBIC) * x - 4 * _CUBIC for x in (rest + 1, 2 - rest)
    ]
    return index, torch.stack([far[0], *near, far[1]])


def _triangle(axis: _Axis, device: torch.device) -> _Taps:
    """Bilinear where the result is larger; where it is smaller, all elements that it covers."""
    ratio = torch.tensor(axis.ratio, dtype=torch.float32, device=device)
    reach = (1 / ratio).clamp(min=1.0)
    centre = (_counted(axis, device) + axis.middle) / ratio
    first = (centre - reach + axis.middle).to(torch.int64).clamp_(min=0)
    end = (centre + reach + axis.middle).to(torch.int64).clamp_(max=axis.n_in)
    index = first + torch.arange(int((end - first).max()), device=device).unsqueeze(1)
    weights = (1 - ((index - centre + axis.middle) / reach).abs()).clamp_(min=0.0)
    weights = torch.where(index < end, weights, 0.0)
    total = weights.sum(0)
    weights /= torch.where(total > 0, total, 1.0)
    return index.clamp_(max=axis.n_in - 1), weights


def _resampled(x: torch.Tensor, dim: int, taps: _Taps) -> torch.Tensor:
    indices, weights = taps
    if weights is None:
        return x.index_select(dim, indices[0])
    shape = [1] * x.dim()
    shape[dim] = -1
    total = x.index_select(dim, indices[0]).mul_(weights[0].view(shape))
    for index, weight in zip(indices[1:], weights[1:], strict=True):
        total.addcmul_(x.index_select(dim, index), weight.view(shape))
    return total


def _upscale(ctx: Context, node: Tensor) -> Steps:
    source, flags = node.require(0), node.params.i32(0)
    mode = flags & 0xFF
    smooth = {ScaleMode.BILINEAR: _linear, ScaleMode.BICUBIC: _cubic}
    rule = _triangle if flags & ScaleFlag.ANTIALIAS else smooth.get(ScaleMode(mode), _nearest)
    dims = [d for d in range(4) if source.ne[d] != node.ne[d]]
    dims.sort(key=lambda d: node.ne[d] / source.ne[d])
    taps = []
    for dim in dims:
        axis = _axis(node, dim, flags)
        taps.append((3 - dim, (rule if dim < 2 else _nearest)(axis, ctx.device)))
    x, result = ctx.view(source), ctx.view(node)

    def step() -> None:
        part = x
        for dim, tap in taps:
            part = _resampled(part, dim, tap)
        result.copy_(part)

    return [step]


KERNELS: dict[Op, Kernel[Context]] = {
    Op.UPSCALE: Kernel(_upscale, lambda node: types_in(node, _F32, 0)),
}
