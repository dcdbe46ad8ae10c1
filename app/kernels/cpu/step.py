"""One step of the native core before its scratch memory has an address.

Emitters (`emit`) make steps, the device's compiler orders them, finds out which may overlap, and
packs them. Memory is named by an address, or an area of scratch whose address is settled
last.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from app.ggml.op_params import Params
from app.ggml.tensor import Shape, Tensor
from app.kernels.cpu.layout import MAX_SOURCES, NO_REF, STEP_FORMAT, Kind, StepFlag

GROUPED: Final = 1
_SCRATCH_BASE: Final = 1 << 62
_AREA_BITS: Final = 40


@dataclass(frozen=True, slots=True)
class Scratch:
    """`size` bytes of scratch area `area`; steps that name the same area share its memory."""

    area: int
    size: int

    @property
    def span(self) -> tuple[int, int]:
        """Bytes as if all areas stood behind all memory."""
        start = _SCRATCH_BASE + (self.area << _AREA_BITS)
        return start, start + self.size


@dataclass(frozen=True, slots=True)
class Ref:
    """A tensor as a kernel sees it; with `scratch` its bytes stand there, not at `address`."""

    address: int
    nbytes: int
    ne: Shape
    nb: Shape
    type: int
    layout: int = 0
    scratch: Scratch | None = None

    @property
    def span(self) -> tuple[int, int]:
        """First byte, and the one behind the last."""
        if self.scratch is not None:
            return self.scratch.span
        return self.address, self.address + self.nbytes

    def packed(self, areas: Sequence[int] | None) -> tuple[int, ...]:
        """Return the struct's fields."""
        address = self.address if self.scratch is None else _area(self.scratch, areas)
        return (address, *self.ne, *self.nb, self.type, self.layout)


@dataclass(slots=True)
class StepSpec:
    """A kernel with what it reads and writes. `work` is about how many elements it handles: small
    ones are not worth sharing. `reads_scratch` and `writes_scratch` say what it does to `scratch`.
    """

    kind: Kind
    node: int
    params: Params
    dst: Ref | None
    src: tuple[Ref | None, ...]
    work: int
    scratch: Scratch | None = None
    reads_scratch: bool = False
    writes_scratch: bool = True
    flags: StepFlag = field(default=StepFlag.NONE)

    def reads(self) -> list[tuple[int, int]]:
        """Bytes that it reads."""
        spans = [ref.span for ref in self.src if ref is not None]
        if self.scratch is not None and self.reads_scratch:
            spans.append(self.scratch.span)
        return spans

    def writes(self) -> list[tuple[int, int]]:
        """Bytes that it writes."""
        spans = [] if self.dst is None else [self.dst.span]
        if self.scratch is not None and self.writes_scratch:
            spans.append(self.scratch.span)
        return spans

    def pack(self, areas: Sequence[int] | None) -> bytes:
        """Return the struct; `areas` are the addresses of the scratch areas, None as long as nobody
        looks at what stands there.
        """
        refs = [self.dst, *self.src, *(None,) * (MAX_SOURCES - len(self.src))]
        fields = [n for ref in refs for n in (NO_REF if ref is None else ref.packed(areas))]
        scratch, size = 0, 0
        if self.scratch is not None:
            scratch, size = _area(self.scratch, areas), self.scratch.size
        return STEP_FORMAT.pack(
            self.kind, self.node, self.params.raw, *fields, scratch, size, self.flags
        )


def ref_at(tensor: Tensor, address: int, layout: int = 0) -> Ref:
    """Describe a tensor whose first byte is at `address`."""
    return Ref(address, tensor.nbytes, tensor.ne, tensor.nb, int(tensor.type), layout)


def _area(scratch: Scratch, areas: Sequence[int] | None) -> int:
    return 0 if areas is None else areas[scratch.area]
