"""Turns a verified graph into a plan of native steps, with reference kernels where there is no
native one.

Made by the native executor for one graph and thrown away. It decides which weights are grouped:
sources of products that the graph does not write and that nothing in it reads in plain form.
RMS_NORM and the multiplication with a weight that follows become one step when nobody else looks at
what is between them.
"""

import ctypes
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace

from app.devices.native_buffer import GroupedRegion, NativeBuffer, region
from app.devices.native_plan import NativePlan, NativeSegment, ReferenceSegment
from app.devices.native_steps import ScratchAreas, set_flags
from app.devices.native_weights import Span
from app.devices.spans import merged, touches
from app.ggml.graph import Graph
from app.ggml.ops import Op
from app.ggml.tensor import Tensor, TensorFlag
from app.kernels.cpu.emit import EMITTERS, Emitter
from app.kernels.cpu.emit_matmul import MUL_MAT, MUL_MAT_ID, is_groupable
from app.kernels.cpu.layout import Kind
from app.kernels.cpu.library import NativeLibrary
from app.kernels.cpu.step import GROUPED, Ref, Scratch, StepSpec, ref_at
from app.kernels.table import Steps

TABLE: dict[Op, Emitter] = {**EMITTERS, Op.MUL_MAT: MUL_MAT, Op.MUL_MAT_ID: MUL_MAT_ID}
# Operations that are worth grouping source 0 for, and those whose native kernel reads either form.
_WANTS_GROUPED = frozenset({Op.MUL_MAT, Op.MUL_MAT_ID})
_READS_GROUPED = _WANTS_GROUPED | {Op.GET_ROWS}

# Values that nodes may share at a time: each node that writes is held against all of them.
_MOST_SHARED = 64

ReferenceSteps = Callable[[Sequence[Tensor]], Steps]
TakeMemory = Callable[[int], "tuple[int, object]"]


def is_native(lib: NativeLibrary, node: Tensor) -> bool:
    """Whether a node of a verified graph has a native kernel."""
    emitter = TABLE.get(node.op)
    return emitter is not None and emitter.accepts(lib, node)


@dataclass(slots=True)
class NativeCompiler:
    """Implements `app.kernels.cpu.emit.EmitContext`. `reference` compiles nodes without a native
    kernel; `take_memory` returns the address of so many bytes and what keeps them alive.
    """

    lib: NativeLibrary
    n_threads: int
    reference: ReferenceSteps
    take_memory: TakeMemory
    index: int = 0
    _areas: ScratchAreas = field(default_factory=ScratchAreas)
    _groupable: dict[int, GroupedRegion] = field(default_factory=dict)
    _grouped: dict[int, tuple[NativeBuffer, GroupedRegion]] = field(default_factory=dict)
    _shared: dict[Hashable, tuple[Scratch, list[tuple[int, int]]]] = field(default_factory=dict)
    _steps: list[StepSpec] = field(default_factory=list)
    _placed: dict[int, tuple[NativeBuffer, int, Ref]] = field(default_factory=dict)
    """Buffer, first byte and plain form of each tensor by identity: all are asked for several
    times, and the bounds check costs more than the look-up.
    """

    def compile(self, graph: Graph) -> NativePlan:
        """Return the plan.

        Raises: UnsupportedError, GraphError, OutOfMemoryError.
        """
        nodes = [node for node in graph.compute_nodes() if node.n_elements]
        native = [is_native(self.lib, node) for node in nodes]
        self._find_groupable(nodes, native)
        uses = _use_counts(graph)
        parts: list[list[StepSpec] | list[Tensor]] = []
        while self.index < len(nodes):
            if native[self.index]:
                parts.append(self._native_run(nodes, native, uses))
            else:
                parts.append(self._reference_run(nodes, native))
        offsets, total = self._areas.offsets()
        base, memory = self.take_memory(total)
        addresses = [base + offset for offset in offsets]
        segments = [self._segment(part, nodes, addresses) for part in parts]
        grouped = list(self._grouped.values())
        buffers = {buffer for buffer, _, _ in self._placed.values()}
        return NativePlan(segments, grouped, self._plain_spans(), buffers, memory)

    def ref(self, tensor: Tensor) -> Ref:
        """Describe a tensor in plain form."""
        return self._place(tensor)[2]

    def weight(self, tensor: Tensor) -> Ref:
        """Describe a source that may be grouped, and is from now on if it can be."""
        buffer, _, plain = self._place(tensor)
        found = self._groupable.get(plain.address)
        if found is None or plain.nbytes != found.end - found.start:
            return plain
        self._grouped[plain.address] = (buffer, found)
        return replace(plain, layout=GROUPED)

    def _place(self, tensor: Tensor) -> tuple[NativeBuffer, int, Ref]:
        found = self._placed.get(id(tensor))
        if found is None:
            buffer, start = region(tensor, 0, 0)
            found = (buffer, start, ref_at(tensor, buffer.address + start))
            self._placed[id(tensor)] = found
        return found

    def add(self, step: StepSpec) -> None:
        """Append a step, and forget shared values whose bytes it overwrites."""
        self._steps.append(step)
        if step.dst is not None:
            self._outdate(step.dst.span)

    def with_scratch(self, step: StepSpec) -> StepSpec:
        """Give a step the scratch that the library says it needs."""
        size = self.lib.scratch_bytes(step.pack(None), self.n_threads)
        if size:
            step.scratch = self._areas.own(size)
        return step

    def shared(
        self, key: Hashable, reads: Sequence[Tensor], make: Callable[[], StepSpec | None], size: int
    ) -> Scratch | None:
        """Return the scratch that holds a value which several nodes use."""
        found = self._shared.get(key)
        if found is not None:
            return found[0]
        step = make()
        if step is None:
            return None
        lasting = step.kind == Kind.ROPE_TABLE
        scratch = self._areas.lasting(size) if lasting else self._areas.slot(size)
        for other, (taken, _) in list(self._shared.items()):
            if taken.area == scratch.area:
                del self._shared[other]
        step.scratch = scratch
        self.add(step)
        if len(self._shared) >= _MOST_SHARED:
            del self._shared[next(iter(self._shared))]
        self._shared[key] = (scratch, [self.ref(tensor).span for tensor in reads])
        return scratch

    def _native_run(
        self, nodes: list[Tensor], native: list[bool], uses: Counter[int]
    ) -> list[StepSpec]:
        """Emit nodes until one has no native kernel."""
        self._steps = []
        while self.index < len(nodes) and native[self.index]:
            node = nodes[self.index]
            following = nodes[self.index + 1] if self.index + 1 < len(nodes) else None
            if following is not None and self._is_weighted_norm(node, following, uses):
                self._emit_weighted_norm(node, following)
                self.index += 2
            else:
                TABLE[node.op].emit(self, node)
                self.index += 1
        return self._steps

    def _reference_run(self, nodes: list[Tensor], native: list[bool]) -> list[Tensor]:
        start = self.index
        while self.index < len(nodes) and not native[self.index]:
            self._outdate(self.ref(nodes[self.index]).span)
            self.index += 1
        return nodes[start : self.index]

    def _is_weighted_norm(self, node: Tensor, following: Tensor, uses: Counter[int]) -> bool:
        if node.op != Op.RMS_NORM or following.op != Op.MUL or following.src[0] is not node:
            return False
        if uses[id(node)] != 1 or node.flags & TensorFlag.OUTPUT:
            return False
        weight, x = following.require(1), node.require(0)
        if not is_native(self.lib, following) or weight.n_elements != weight.ne[0]:
            return False
        if weight.ne[0] != node.ne[0]:
            return False
        source, target = self.ref(x), self.ref(following)
        apart = source.span[1] <= target.span[0] or target.span[1] <= source.span[0]
        return apart or (source.address == target.address and x.nb == following.nb)

    def _emit_weighted_norm(self, node: Tensor, following: Tensor) -> None:
        src = (self.ref(node.require(0)), self.ref(following.require(1)))
        dst = self.ref(following)
        self.add(StepSpec(Kind.RMS_NORM, self.index, node.params, dst, src, node.n_elements))

    def _find_groupable(self, nodes: list[Tensor], native: list[bool]) -> None:
        """Collect the weights that may be grouped, by address."""
        taken: list[tuple[int, int]] = []
        wanted: dict[tuple[int, int], set[GroupedRegion]] = {}
        for node, ours in zip(nodes, native, strict=True):
            taken.append(self.ref(node).span)
            for i, source in enumerate(node.src):
                if source is None:
                    continue
                span = self.ref(source).span
                either_form = ours and i == 0 and node.op in _READS_GROUPED
                if not either_form or not is_groupable(self.lib, source):
                    taken.append(span)
                elif node.op in _WANTS_GROUPED:
                    wanted.setdefault(span, set()).add(_grouped_region(source))
        taken = merged(taken)
        spans = sorted(wanted)
        for i, span in enumerate(spans):
            alone = (i == 0 or spans[i - 1][1] <= span[0]) and (
                i + 1 == len(spans) or span[1] <= spans[i + 1][0]
            )
            if alone and len(wanted[span]) == 1 and not touches(taken, *span):
                self._groupable[span[0]] = next(iter(wanted[span]))

    def _plain_spans(self) -> list[Span]:
        """Return the bytes that the plan touches in plain form, joined."""
        by_buffer: dict[NativeBuffer, list[tuple[int, int]]] = {}
        for buffer, start, plain in self._placed.values():
            if plain.address not in self._grouped:
                by_buffer.setdefault(buffer, []).append((start, start + plain.nbytes))
        return [
            (buffer, start, end)
            for buffer, ranges in by_buffer.items()
            for start, end in merged(ranges)
        ]

    def _segment(
        self, part: list[StepSpec] | list[Tensor], nodes: list[Tensor], areas: list[int]
    ) -> NativeSegment | ReferenceSegment:
        steps = [step for step in part if isinstance(step, StepSpec)]
        if not steps:
            missing = [node for node in part if isinstance(node, Tensor)]
            return ReferenceSegment(self.reference(missing), [node.op.name for node in missing])
        set_flags(steps)
        data = b"".join(step.pack(areas) for step in steps)
        array = ctypes.create_string_buffer(data, len(data))
        kinds = [step.kind for step in steps]
        return NativeSegment(array, len(steps), kinds, [nodes[step.node] for step in steps])

    def _outdate(self, written: tuple[int, int]) -> None:
        for key, (_, reads) in list(self._shared.items()):
            if any(start < written[1] and written[0] < end for start, end in reads):
                del self._shared[key]


def _grouped_region(tensor: Tensor) -> GroupedRegion:
    _, start = region(tensor, 0, 0)
    end = start + tensor.nbytes
    return GroupedRegion(start, end, int(tensor.type), tensor.ne[0], tensor.n_rows)


def _use_counts(graph: Graph) -> Counter[int]:
    """How often each tensor is a source or is looked at by a view."""
    uses: Counter[int] = Counter()
    for node in graph.nodes:
        uses.update(id(source) for source in node.src if source is not None)
        if node.view_src is not None:
            uses[id(node.view_src)] += 1
    return uses
