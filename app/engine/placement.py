"""Which device gets which layers and the output matrix: from byte counts to a plan or a refusal.

Layers are placed in whole runs, in device order, so that a token visits each device once. The
output matrix counts as one more layer after the last, which matters where it outweighs all others.
With `--tensor-split` the runs follow llama.cpp's rule (shares of layers, llama-model.cpp at
b11434); without it the cut is chosen that fills all devices evenly by bytes, in proportion to
their free memory. Layers that `-ngl` keeps back are the first ones and go to the host's own CPU.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from app.engine.config import SplitMode
from app.errors import ConfigError

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class LayerCost:
    """Bytes that one layer, or the output matrix, needs where it is placed."""

    weights: int
    kv: int

    @property
    def total(self) -> int:
        """All bytes of the layer."""
        return self.weights + self.kv


@dataclass(frozen=True, slots=True)
class Target:
    """A device that may get layers: its name, what it is, free bytes."""

    name: str
    description: str
    free: int


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """Everything that decides a placement; `costs` ends with the output matrix."""

    costs: tuple[LayerCost, ...]
    scratch: int
    devices: tuple[Target, ...]
    host: Target
    n_gpu_layers: int | None
    tensor_split: tuple[float, ...]
    split_mode: SplitMode
    main_gpu: int
    margin: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Device index of each layer and, last, of the output matrix; -1 is the host's CPU."""

    device_of: tuple[int, ...]


HOST = -1


def place(request: PlacementRequest) -> Placement:
    """Choose the devices.

    Raises: ConfigError with the table of bytes when the plan does not fit, or when flags contradict
    each other.
    """
    _check_flags(request)
    n = len(request.costs)
    if not request.devices:
        counts = [0]
    elif request.n_gpu_layers is not None:
        counts = [min(max(request.n_gpu_layers, 0), n)]
    else:
        counts = list(range(n, -1, -1))
    refused: Placement | None = None
    for count in counts:
        if count and len(counts) > 1 and not _may_fit(request, count):
            continue
        placement = Placement((HOST,) * (n - count) + _split(request, count))
        complaints = overfull(request, placement)
        if not complaints:
            return placement
        if refused is None or complaints[0].startswith(request.host.name):
            refused = placement
    assert refused is not None, "the last count is always tried"
    complaint = "; ".join(overfull(request, refused))
    raise ConfigError(f"the model does not fit: {complaint}\n{table(request, refused)}")


def bytes_per_device(request: PlacementRequest, placement: Placement) -> dict[int, int]:
    """Bytes by device index, scratch included."""
    totals: dict[int, int] = {}
    for cost, device in zip(request.costs, placement.device_of, strict=True):
        totals[device] = totals.get(device, request.scratch) + cost.total
    return totals


def overfull(request: PlacementRequest, placement: Placement) -> list[str]:
    """One sentence per device that the plan would overfill."""
    complaints = []
    for device, wanted in sorted(bytes_per_device(request, placement).items()):
        target = _target(request, device)
        room = max(0, target.free - request.margin)
        if wanted > room:
            complaints.append(
                f"{target.name} needs {wanted // MIB} MiB and has {room // MIB} MiB free"
            )
    return complaints


def table(request: PlacementRequest, placement: Placement) -> str:
    """The plan for people: device, layers, bytes by purpose, free bytes."""
    rows: list[tuple[str, ...]] = [
        ("device", "layers", "weights", "KV", "scratch", "total", "free")
    ]
    for device in sorted(set(placement.device_of)):
        mine = [i for i, d in enumerate(placement.device_of) if d == device]
        target = _target(request, device)
        weights = sum(request.costs[i].weights for i in mine)
        kv = sum(request.costs[i].kv for i in mine)
        sizes = (weights, kv, request.scratch, weights + kv + request.scratch, target.free)
        label = f"{target.name} ({target.description})"
        rows.append(
            (label, _layers_text(mine, len(request.costs)), *(f"{s / MIB:.0f} MiB" for s in sizes))
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def _layers_text(indices: Sequence[int], n: int) -> str:
    layers = [i for i in indices if i < n - 1]
    runs: list[list[int]] = []
    for i in layers:
        if runs and runs[-1][1] == i - 1:
            runs[-1][1] = i
        else:
            runs.append([i, i])
    parts = [str(a) if a == b else f"{a}-{b}" for a, b in runs]
    return ", ".join(parts + (["output"] if n - 1 in indices else []))


def _target(request: PlacementRequest, device: int) -> Target:
    return request.host if device == HOST else request.devices[device]


def _check_flags(request: PlacementRequest) -> None:
    n_devices = len(request.devices)
    if len(request.tensor_split) > max(n_devices, 1):
        names = ", ".join(d.name for d in request.devices) or "(none)"
        raise ConfigError(
            f"--tensor-split has {len(request.tensor_split)} values, "
            f"expected at most {n_devices}, one per device: {names}"
        )
    if any(share < 0 for share in request.tensor_split):
        raise ConfigError(
            f"--tensor-split {list(request.tensor_split)}: expected no negative share"
        )
    if request.split_mode is SplitMode.NONE and n_devices and not 0 <= request.main_gpu < n_devices:
        raise ConfigError(f"--main-gpu {request.main_gpu}: expected 0 to {n_devices - 1}")


def _may_fit(request: PlacementRequest, count: int) -> bool:
    """Whether the last `count` entries fit into all devices together."""
    room = sum(max(0, d.free - request.margin) for d in request.devices)
    return sum(cost.total for cost in request.costs[len(request.costs) - count :]) <= room


def _split(request: PlacementRequest, count: int) -> tuple[int, ...]:
    """Devices of the last `count` entries."""
    if not count:
        return ()
    if request.split_mode is SplitMode.NONE:
        return (request.main_gpu,) * count
    if any(request.tensor_split):
        return _split_by_share(request.tensor_split, count)
    costs = [cost.total for cost in request.costs[len(request.costs) - count :]]
    rooms = [max(1, d.free - request.margin - request.scratch) for d in request.devices]
    return _split_evenly(costs, rooms)


def _split_by_share(shares: Sequence[float], count: int) -> tuple[int, ...]:
    total = sum(shares)
    borders = [s / total for s in accumulate(shares)]
    last = max(i for i, share in enumerate(shares) if share > 0)
    return tuple(min(bisect_right(borders, i / count), last) for i in range(count))


def _split_evenly(costs: Sequence[int], rooms: Sequence[int]) -> tuple[int, ...]:
    """Cut `costs` into one run per device so that the fullest one is as little full as possible."""
    prefix = [0, *accumulate(costs)]
    n = len(costs)
    best = [0.0] + [float("inf")] * n
    cuts: list[list[int]] = []
    for room in rooms:
        row, cut = [float("inf")] * (n + 1), [0] * (n + 1)
        for end in range(n + 1):
            for start in range(end + 1):
                fullness = max(best[start], (prefix[end] - prefix[start]) / room)
                if fullness < row[end]:
                    row[end], cut[end] = fullness, start
        best = row
        cuts.append(cut)
    ends = [n]
    for cut in reversed(cuts):
        ends.append(cut[ends[-1]])
    ends.reverse()
    return tuple(device for device, (a, b) in enumerate(pairwise(ends)) for _ in range(b - a))
