"""One stage of the pool: layers on one device, with their weights, caches, scratch and kept graphs.

The engine thread owns it. `launch` writes a step's inputs, asks the device to run the graph of the
step's shape and returns the future of the result, without waiting: on a remote device the whole
step is written ahead and only the one reply is awaited. A shape's graph is built once; the device
keeps it by uid and is only told to run it again.
"""

from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from app.devices.base import BufferUsage, Device
from app.engine.buffers import alloc_tensors
from app.engine.step import MicroBatch
from app.ggml.planner import MemoryPlan, assign, plan_memory
from app.ggml.tensor import Buffer, Tensor, new_tensor
from app.ggml.types import GGMLType
from app.models.base import Architecture
from app.models.hparams import HParams
from app.models.inputs import CacheInputs, StageShape
from app.models.stage import StageGraph, build_stage

MAX_KEPT_GRAPHS = 64
BARRIER_BYTES = 4


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What every stage of a model shares."""

    arch: Architecture
    hparams: HParams
    flash_attn: bool
    type_k: GGMLType
    type_v: GGMLType


@dataclass(frozen=True, slots=True)
class CacheSizes:
    """Cells of the full-attention and of the window caches."""

    full: int
    window: int

    def of(self, is_swa: bool) -> int:
        """Cells of a layer's kind; without a window pool all layers use the full one."""
        return self.window if is_swa and self.window else self.full


class Stage:
    """A run of layers, and perhaps the output matrix, on one device."""

    def __init__(
        self, model: ModelSpec, device: Device, layers: range, *, is_first: bool, has_output: bool
    ) -> None:
        self.model = model
        self.device = device
        self.layers = layers
        self.is_first = is_first
        self.has_output = has_output
        self.weights: dict[str, Tensor] = {}
        self._k: Mapping[int, Tensor] = {}
        self._v: Mapping[int, Tensor] = {}
        self._scratch: Buffer | None = None
        self._graphs: OrderedDict[StageShape, StageGraph] = OrderedDict()

    def alloc_caches(self, sizes: CacheSizes) -> None:
        """Make this stage's KV cache, all zero: masked cells are read and must not be NaN.

        Raises: OutOfMemoryError, DeviceLostError.
        """
        self._k, self._v = cache_tensors(self.model, self.layers, sizes)
        tensors = [t for il in self.layers for t in (self._k[il], self._v[il])]
        for buffer in alloc_tensors(self.device, tensors, BufferUsage.ANY):
            self.device.clear(buffer, 0)

    def reserve(self, worst: StageShape) -> None:
        """Make the scratch buffer that the largest step needs.

        Raises: OutOfMemoryError, DeviceLostError.
        """
        self._scratch_of(self._plan(self._build(worst)).size)

    def cache_of(self, il: int) -> tuple[Tensor, Tensor]:
        """Keys and values [n_embd_gqa, n_cells] of a layer of this stage."""
        return self._k[il], self._v[il]

    @property
    def is_output_only(self) -> bool:
        """Whether the stage has nothing to do when no logits are wanted."""
        return not self.layers

    def launch(self, batch: MicroBatch, x: npt.NDArray[np.float32] | bytes) -> "Future[bytes]":
        """Run this stage on a micro-batch whose hidden state is `x` (n_tokens, n_embd).

        The result is the next hidden state or the logits (n_outputs, n_vocab), as bytes of float32.
        Raises: DeviceLostError, GraphError.
        """
        staged = self._staged(batch.shape)
        inputs, device = staged.inputs, self.device
        device.set_tensor(inputs.x, x if isinstance(x, bytes) else x.data)
        if inputs.positions is not None:
            device.set_tensor(inputs.positions, batch.positions.data)
        if inputs.full is not None:
            self._set_cache(inputs.full, batch.cells_full, batch.mask_full)
        if inputs.window is not None:
            self._set_cache(inputs.window, batch.cells_window, batch.mask_window)
        if inputs.output_rows is not None:
            device.set_tensor(inputs.output_rows, batch.output_rows.data)
        device.compute(staged.graph)
        if staged.result is None:
            # A step without logits still has an end to wait for: any read stands behind the graph.
            return device.get_tensor(inputs.x, 0, BARRIER_BYTES)
        return device.get_tensor(staged.result, 0, staged.result.nbytes)

    def _set_cache(
        self,
        inputs: CacheInputs,
        cells: npt.NDArray[np.int64],
        mask: npt.NDArray[np.bool_],
    ) -> None:
        self.device.set_tensor(inputs.cells, cells.data)
        if inputs.mask is not None:
            dtype = np.float16 if inputs.mask.type is GGMLType.F16 else np.float32
            self.device.set_tensor(inputs.mask, np.where(mask, dtype(0), dtype(-np.inf)).data)

    def _staged(self, shape: StageShape) -> StageGraph:
        staged = self._graphs.get(shape)
        if staged is None:
            staged = self._build(shape)
            plan = self._plan(staged)
            assign(plan, staged.graph, self._scratch_of(plan.size))
            self._graphs[shape] = staged
            if len(self._graphs) > MAX_KEPT_GRAPHS:
                self._graphs.popitem(last=False)
        self._graphs.move_to_end(shape)
        return staged

    def _plan(self, staged: StageGraph) -> MemoryPlan:
        device = self.device
        return plan_memory(staged.graph, alignment=device.alignment(), alloc_size=device.alloc_size)

    def _scratch_of(self, size: int) -> Buffer:
        """The scratch buffer; a step that needs a larger one than reserved makes all graphs new."""
        if self._scratch is None or self._scratch.size < size:
            if self._scratch is not None:
                self.device.free(self._scratch)
            self._graphs.clear()
            self._scratch = self.device.alloc(max(size, 1), BufferUsage.COMPUTE)
        return self._scratch

    def _build(self, shape: StageShape) -> StageGraph:
        return build_stage(
            self.model.arch,
            self.model.hparams,
            self.weights,
            self._k,
            self._v,
            shape,
            layers=self.layers,
            is_first=self.is_first,
            has_output=self.has_output,
            flash_attn=self.model.flash_attn,
        )


def cache_tensors(
    model: ModelSpec, layers: range, sizes: CacheSizes
) -> tuple[Mapping[int, Tensor], Mapping[int, Tensor]]:
    """K and V tensors [n_embd_gqa, n_cells] of each layer, without memory."""
    hparams = model.hparams
    k, v = {}, {}
    for il in layers:
        n_cells = sizes.of(hparams.is_swa[il])
        k[il] = new_tensor(model.type_k, [hparams.n_embd_k_gqa(il), n_cells], f"cache_k_l{il}")
        v[il] = new_tensor(model.type_v, [hparams.n_embd_v_gqa(il), n_cells], f"cache_v_l{il}")
    return k, v
