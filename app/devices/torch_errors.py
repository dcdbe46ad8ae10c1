"""Gives the errors of torch their place in our own tree, for everything that runs on a device."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from app.errors import DeviceLostError, GraphError, LlamaServeError, OutOfMemoryError

# Newer versions of torch only; older ones raise a plain RuntimeError that says "CUDA error".
_ACCELERATOR_ERRORS: tuple[type[BaseException], ...] = tuple(
    kind for kind in (getattr(torch, "AcceleratorError", None),) if kind is not None
)


@contextmanager
def translated(name: str) -> Iterator[None]:
    """Turn an error of torch inside the block into one of ours that names the device.

    Raises: OutOfMemoryError, DeviceLostError; GraphError for what torch finds wrong with shapes.
    """
    try:
        yield
    except (RuntimeError, IndexError) as error:
        raise _our_error(name, error) from error


def _our_error(name: str, error: Exception) -> LlamaServeError:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    if isinstance(error, torch.OutOfMemoryError) or "allocate memory" in text:
        return OutOfMemoryError(f"{name}: {text}")
    if isinstance(error, _ACCELERATOR_ERRORS) or "CUDA error" in text:
        return DeviceLostError(f"{name}: {text}")
    return GraphError(f"{name}: {text}")
