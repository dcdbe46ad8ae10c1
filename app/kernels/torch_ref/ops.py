"""The table of reference kernels: which module computes which operation."""

from app.kernels.table import KernelTable
from app.kernels.torch_ref import (
    arrange,
    attention,
    copy,
    deepseek,
    elementwise,
    glu,
    linear_attention,
    matmul,
    moe,
    norm,
    reduce,
    rope,
    rows,
    softmax,
    ssm,
)
from app.kernels.torch_ref.context import Context

_MODULES = (
    arrange,
    attention,
    copy,
    deepseek,
    elementwise,
    glu,
    linear_attention,
    matmul,
    moe,
    norm,
    reduce,
    rope,
    rows,
    softmax,
    ssm,
)


def reference_table() -> KernelTable[Context]:
    """Return every operation that plain torch computes."""
    return KernelTable({op: kernel for module in _MODULES for op, kernel in module.KERNELS.items()})
