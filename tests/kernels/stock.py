"""Runs one operation in stock ggml's CPU backend, through its C interface.

Sources and result are laid out here and ggml's tensors are pointed at them, so every case of the
table can run there, whatever its strides. Layouts are those of ggml.h at llama.cpp b11434. ggml
ends the process when it is given something that it does not know: a case that it cannot run must be
left out by name.
"""

import ctypes
from ctypes import POINTER, Structure, c_bool, c_char, c_int, c_int32, c_int64, c_size_t, c_void_p
from pathlib import Path

import numpy as np

from app.ggml.tensor import Tensor
from tests.kernels import harness
from tests.kernels.harness import Array, Case

_MEMORY = 256 << 20


class _InitParams(Structure):
    _fields_ = [("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool)]


class _Tensor(Structure):
    pass


_Tensor._fields_ = [
    ("type", c_int),
    ("buffer", c_void_p),
    ("ne", c_int64 * 4),
    ("nb", c_size_t * 4),
    ("op", c_int),
    ("op_params", c_int32 * 16),
    ("flags", c_int32),
    ("src", POINTER(_Tensor) * 10),
    ("view_src", c_void_p),
    ("view_offs", c_size_t),
    ("data", c_void_p),
    ("name", c_char * 64),
    ("extra", c_void_p),
    ("padding", c_char * 8),
]


class Stock:
    """The two libraries of one build."""

    def __init__(self, folder: Path) -> None:
        self.base = ctypes.CDLL(str(folder / "libggml-base.so"), mode=ctypes.RTLD_GLOBAL)
        self.cpu = ctypes.CDLL(str(folder / "libggml-cpu.so"))
        self.base.ggml_init.argtypes = [_InitParams]
        self.base.ggml_init.restype = c_void_p
        self.base.ggml_free.argtypes = [c_void_p]
        self.base.ggml_new_tensor_4d.argtypes = [c_void_p, c_int, *[c_int64] * 4]
        self.base.ggml_new_tensor_4d.restype = POINTER(_Tensor)
        self.base.ggml_new_graph.argtypes = [c_void_p]
        self.base.ggml_new_graph.restype = c_void_p
        self.base.ggml_build_forward_expand.argtypes = [c_void_p, POINTER(_Tensor)]
        self.cpu.ggml_graph_compute_with_ctx.argtypes = [c_void_p, c_void_p, c_int]
        self.cpu.ggml_cpu_init()

    def run(self, case: Case, seed: int = 0) -> tuple[Array, list[Array | None]]:
        """Run one case; return the result and what its sources held before."""
        rng = np.random.default_rng(seed)
        leaves = [None if s is None else harness.make_leaf(rng, s) for s in case.sources]
        node = harness.make_node(case, [None if leaf is None else leaf.seen for leaf in leaves])
        context = self.base.ggml_init(_InitParams(_MEMORY, None, False))
        try:
            data = [
                None
                if leaf is None
                else ctypes.create_string_buffer(leaf.data, len(leaf.data) + 64)
                for leaf in leaves
            ]
            overwritten = harness.OVERWRITTEN.get(case.op, case.inplace)
            memory = None if overwritten is None else data[overwritten]
            memory = memory or ctypes.create_string_buffer(node.nbytes + 64)
            target = self._tensor(context, node, memory)
            target.contents.op = int(case.op)
            raw = np.frombuffer(case.params.raw, np.int32)
            for i, word in enumerate(raw):
                target.contents.op_params[i] = int(word)
            for i, leaf in enumerate(leaves):
                room = data[i]
                if leaf is not None and room is not None:
                    target.contents.src[i] = self._tensor(context, leaf.seen, room)
            graph = self.base.ggml_new_graph(context)
            self.base.ggml_build_forward_expand(graph, target)
            if self.cpu.ggml_graph_compute_with_ctx(context, graph, 1):
                raise RuntimeError(f"stock ggml could not compute {case.name}")
            values = [None if leaf is None else leaf.values for leaf in leaves]
            return harness.read_bytes(node, memory.raw[: node.nbytes]), values
        finally:
            self.base.ggml_free(context)

    def _tensor(
        self, context: int, tensor: Tensor, memory: "ctypes.Array[c_char]"
    ) -> "ctypes._Pointer[_Tensor]":
        made: ctypes._Pointer[_Tensor] = self.base.ggml_new_tensor_4d(
            context, int(tensor.type), 1 << 10, 1, 1, 1
        )
        made.contents.ne[:] = tensor.ne
        made.contents.nb[:] = tensor.nb
        made.contents.data = ctypes.addressof(memory)
        return made
