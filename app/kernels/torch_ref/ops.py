"""The table of reference kernels: which module computes which operation."""

from app.kernels.table import KernelTable
from app.kernels.torch_ref import (
    arrange,
    attention,
    conv,
    conv_transpose,
    copy,
    deepseek,
    elementwise,
    glu,
    linear_attention,
    matmul,
    moe,
    norm,
    pool,
    reduce,
    rope,
    rows,
    softmax,
    ssm,
    upscale,
    window_attention,
)
from app.kernels.torch_ref.context import Context

_MODULES = (
    arrange,
    attention,
    conv,
    conv_transpose,
    copy,
    deepseek,
    elementwise,
    glu,
    linear_attention,
    matmul,
    moe,
    norm,
    pool,
    reduce,
    rope,
    rows,
    softmax,
    ssm,
    upscale,
    window_attention,
)


def reference_table() -> KernelTable[Context]:
    """Return every operation that plain torch computes."""
    return KernelTable({op: kernel for module in _MODULES for op, kernel in module.KERNELS.items()})
