"""llama.cpp's own RPC client library, driven through every command that it can send.

Run beside the stock libraries by a bare Python of any version, so nothing here is imported from the
project: stock_ggml.py FOLDER ENDPOINT [ENDPOINT] prints what came back, as one line of JSON. With a
second endpoint two workers also add a tensor up. Only public functions of ggml are called, but for
a graph's uid, which has none: it lies `_UID_OFFSET` bytes into ggml_cgraph in both versions.
"""

import ctypes
import hashlib
import json
import sys
from ctypes import POINTER, c_bool, c_char_p, c_int, c_int64, c_size_t, c_uint8, c_uint64, c_void_p
from typing import Any

_F32, _Q4_0, _I8 = 0, 2, 24
_WEIGHTS = 1
_UID_OFFSET = 88
_BIG = 11 * 1024 * 1024
_MANY = 40000


class _InitParams(ctypes.Structure):
    _fields_ = [("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool)]


class Library:
    """The functions that are used, by their names without the prefix."""

    def __init__(self, folder: str) -> None:
        mode = ctypes.RTLD_GLOBAL
        self._base = ctypes.CDLL(f"{folder}/libggml-base.so.0", mode)
        self._rpc = ctypes.CDLL(f"{folder}/libggml-rpc.so.0", mode)
        self._base.ggml_init.argtypes = [_InitParams]

    def call(self, name: str, *args: object, returns: Any = c_void_p) -> Any:
        """Call a function of either library; addresses are c_void_p, sizes plain numbers."""
        library = self._rpc if "_rpc_" in name else self._base
        function = getattr(library, f"ggml_{name}")
        function.restype = returns
        return function(*(c_size_t(a) if type(a) is int else a for a in args))


class Worker:
    """One endpoint: a device, its tensors and the graphs y = 2 (w a + b) and scaled = many / 3."""

    def __init__(self, lib: Library, endpoint: str) -> None:
        self.lib = lib
        self.reg = self._address("backend_rpc_add_server", endpoint.encode())
        self.dev = self._address("backend_reg_dev_get", self.reg, 0)
        self.backend = self._address("backend_dev_init", self.dev, None)
        self.kind = self._address("backend_get_default_buffer_type", self.backend)
        self.context = self._context()
        self.a, self.b = self._tensor(_F32, 64), self._tensor(_F32, 4)
        self.w, self.q = self._tensor(_F32, 64, 4), self._tensor(_Q4_0, 64, 3)
        self.like_a, many = self._tensor(_F32, 64), self._tensor(_F32, _MANY)
        product = self._address("mul_mat", self.context, self.w, self.a)
        total = self._address("add", self.context, product, self.b)
        self.y = self._address("scale", self.context, total, ctypes.c_float(2.0))
        self.many, third = many, ctypes.c_float(1 / 3)
        self.scaled = self._address("scale", self.context, many, third)
        self.buffer = self._address("backend_alloc_ctx_tensors_from_buft", self.context, self.kind)
        self.graph, self.scaling = self._graph(self.y), self._graph(self.scaled)

    def _address(self, name: str, *args: object) -> c_void_p:
        found = self.lib.call(name, *args)
        if not found:
            sys.exit(f"{name} returned nothing")
        return c_void_p(found)

    def _context(self) -> c_void_p:
        return self._address("init", _InitParams(1 << 20, None, True))

    def _tensor(self, kind: int, *ne: int, context: c_void_p | None = None) -> c_void_p:
        name = f"new_tensor_{len(ne)}d"
        return self._address(name, context or self.context, c_int(kind), *map(c_int64, ne))

    def _graph(self, result: c_void_p) -> c_void_p:
        graph = self._address("new_graph", self.context)
        self.lib.call("build_forward_expand", graph, result, returns=None)
        return graph

    def run(self, graph: c_void_p) -> None:
        args = self.backend, graph
        assert self.lib.call("backend_graph_compute", *args, returns=c_int) == 0

    def set(self, tensor: c_void_p, data: bytes, offset: int = 0) -> None:
        self.lib.call("backend_tensor_set", tensor, data, offset, len(data), returns=None)

    def get(self, tensor: c_void_p, size: int, offset: int = 0) -> bytes:
        data = ctypes.create_string_buffer(size)
        self.lib.call("backend_tensor_get", tensor, data, offset, size, returns=None)
        return data.raw

    def floats(self, tensor: c_void_p, *values: float) -> None:
        self.set(tensor, bytes((ctypes.c_float * len(values))(*values)))

    def facts(self) -> dict[str, object]:
        """What the worker says of itself."""
        free, total = c_size_t(), c_size_t()
        args = self.dev, ctypes.byref(free), ctypes.byref(total)
        self.lib.call("backend_dev_memory", *args, returns=None)
        return {
            "devices": self.lib.call("backend_reg_dev_count", self.reg, returns=c_size_t),
            "free": free.value,
            "total": total.value,
            "alignment": self.lib.call("backend_get_alignment", self.backend, returns=c_size_t),
            "max_size": self.lib.call("backend_get_max_size", self.backend, returns=c_size_t),
        }

    def transfers(self) -> dict[str, str]:
        """Clear, write, read, fill and copy."""
        call = self.lib.call
        call("backend_buffer_clear", self.buffer, c_uint8(7), returns=None)
        cleared = self.get(self.b, 16)
        self.set(self.a, bytes(range(256)))
        call("backend_tensor_memset", self.a, c_uint8(9), 4, 8, returns=None)
        call("backend_tensor_copy", self.a, self.like_a, returns=None)
        self.set(self.q, bytes(range(108)))
        found = {
            "cleared": cleared.hex(),
            "filled": self.get(self.a, 256).hex(),
            "copied": self.get(self.like_a, 256).hex(),
            "quantised": self.get(self.q, 108).hex(),
        }
        pieces = 4, 8, 3, 16, 8
        call(
            "backend_tensor_set_2d", self.like_a, b"abcdefghijklmnopqrstuvwx", *pieces, returns=None
        )
        got = ctypes.create_string_buffer(24)
        call("backend_tensor_get_2d", self.like_a, got, *pieces, returns=None)
        return found | {"rectangle": got.raw.decode(), "around": self.get(self.like_a, 64).hex()}

    def weights(self) -> str:
        """Write what is large enough to be offered by hash, and read it back."""
        context = self._context()
        big = self._tensor(_I8, _BIG, context=context)
        buffer = self._address("backend_alloc_ctx_tensors_from_buft", context, self.kind)
        self.lib.call("backend_buffer_set_usage", buffer, c_int(_WEIGHTS), returns=None)
        self.set(big, b"0123456789abcdef" * (_BIG // 16))
        digest = hashlib.sha256(self.get(big, _BIG)).hexdigest()
        self.lib.call("backend_buffer_free", buffer, returns=None)
        return digest

    def compute(self) -> list[float]:
        """Run the graph twice, the second time by its uid alone."""
        assert self.graph.value is not None
        c_uint64.from_address(self.graph.value + _UID_OFFSET).value = 4711
        self.floats(self.w, *(float(i % 64 == i // 64) for i in range(256)))
        self.floats(self.b, 1.0, 2.0, 3.0, 4.0)
        results: list[float] = []
        for first in (0.0, 100.0):
            self.floats(self.a, *(first + i for i in range(64)))
            self.run(self.graph)
            results += (ctypes.c_float * 4).from_buffer_copy(self.get(self.y, 16))
        return results

    def close(self) -> None:
        self.lib.call("backend_buffer_free", self.buffer, returns=None)
        self.lib.call("backend_free", self.backend, returns=None)


class Pair:
    """Two workers that add up what each has computed."""

    def __init__(self, lib: Library, workers: list[Worker]) -> None:
        self._lib, self._workers = lib, workers
        backends = (c_void_p * 2)(*(worker.backend for worker in workers))
        init = self._function("backend_comm_init", c_void_p, POINTER(c_void_p), c_size_t)
        self._pair = c_void_p(init(backends, 2))

    def _function(self, name: str, returns: Any, *args: Any) -> Any:
        address = self._lib.call(
            "backend_reg_get_proc_address", self._workers[0].reg, c_char_p(f"ggml_{name}".encode())
        )
        return ctypes.CFUNCTYPE(returns, *args)(address)

    def sums(self) -> list[list[float] | str]:
        """Add up what both have computed, few numbers and many; return what each has then."""
        if not self._pair.value:
            return []
        for n, worker in enumerate(self._workers, 1):
            worker.floats(worker.many, *(float(i * n) for i in range(_MANY)))
            worker.run(worker.scaling)
        self._reduce([worker.y for worker in self._workers])
        self._reduce([worker.scaled for worker in self._workers])
        few = [list((ctypes.c_float * 4).from_buffer_copy(w.get(w.y, 16))) for w in self._workers]
        many = [w.get(w.scaled, 4 * _MANY) for w in self._workers]
        self._function("backend_comm_free", None, c_void_p)(self._pair)
        return [*few, *(hashlib.sha256(data).hexdigest() for data in many)]

    def _reduce(self, tensors: list[c_void_p]) -> None:
        name = "backend_comm_allreduce_tensor"
        reduce = self._function(name, c_bool, c_void_p, POINTER(c_void_p))
        assert reduce(self._pair, (c_void_p * 2)(*tensors))


def main() -> None:
    lib = Library(sys.argv[1])
    workers = [Worker(lib, endpoint) for endpoint in sys.argv[2:]]
    first = workers[0]
    said: dict[str, object] = {"facts": first.facts(), **first.transfers()}
    said |= {"weights": first.weights(), "computed": first.compute()}
    for other in workers[1:]:
        other.compute()
        said["sums"] = Pair(lib, workers).sums()
    for worker in workers:
        worker.close()
    sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main()
