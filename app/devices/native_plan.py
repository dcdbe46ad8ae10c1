"""A compiled graph of the native device: segments of native steps and of reference kernels, in
order.

The executor runs it. Addresses are settled: a plan holds what keeps its memory alive, and is
dropped when a buffer that it touches is freed.
"""

import ctypes
from dataclasses import dataclass, field

from app.devices.native_buffer import GroupedRegion, NativeBuffer
from app.devices.native_weights import Span
from app.ggml.tensor import Tensor
from app.kernels.cpu.layout import Kind
from app.kernels.table import Steps


@dataclass(slots=True)
class NativeSegment:
    """Steps that one call runs; `kinds` and `nodes` tell what each is, by position."""

    data: ctypes.Array[ctypes.c_char]
    count: int
    kinds: list[Kind]
    nodes: list[Tensor]
    address: int = field(init=False)

    def __post_init__(self) -> None:
        self.address = ctypes.addressof(self.data)


@dataclass(slots=True)
class ReferenceSegment:
    """Nodes without a native kernel, as steps of the reference kernels."""

    steps: Steps
    names: list[str]


@dataclass(slots=True)
class NativePlan:
    """`grouped` weights must be in groups and `plain` bytes in plain form when it runs."""

    segments: list[NativeSegment | ReferenceSegment]
    grouped: list[tuple[NativeBuffer, GroupedRegion]]
    plain: list[Span]
    buffers: set[NativeBuffer]
    memory: object
    settled_in: int = 0
    last_run: int = 0
