"""The table of reference kernels: which module computes which operation."""

from app.kernels.table import KernelTable
from app.kernels.torch_ref import (
    attention,
    copy,
    elementwise,
    glu,
    matmul,
    norm,
    rope,
    rows,
    softmax,
)
from app.kernels.torch_ref.context import Context


def reference_table() -> KernelTable[Context]:
    """Return every operation that plain torch computes."""
    modules = (attention, copy, elementwise, glu, matmul, norm, rope, rows, softmax)
    return KernelTable({op: kernel for module in modules for op, kernel in module.KERNELS.items()})
