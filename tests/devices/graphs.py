"""Small graphs for the device tests, and a placement that needs no planner: every tensor that is
not a view gets memory of its own in one buffer.
"""

import numpy as np
import numpy.typing as npt
import torch

from app.devices.base import BufferUsage, Device, DeviceInfo, DeviceKind
from app.devices.torch_device import TorchDevice
from app.ggml.graph import Graph
from app.ggml.tensor import Buffer, Tensor


def cpu(weight_budget: int | None = None) -> TorchDevice:
    """Open a CPU device."""
    info = DeviceInfo("CPU", "test", DeviceKind.CPU)
    return TorchDevice(info, torch.device("cpu"), weight_budget)


def place(device: Device, graph: Graph) -> Buffer:
    """Give every tensor of a graph memory and return the buffer."""
    roots = [t for t in graph.tensors() if t.view_src is None and t.buffer is None]
    size = 0
    for tensor in roots:
        tensor.offset = size
        size += -(-tensor.nbytes // 64) * 64
    buffer = device.alloc(size, BufferUsage.ANY)
    for tensor in roots:
        tensor.buffer = buffer
    for tensor in graph.tensors():
        if tensor.view_src is not None:
            tensor.buffer = tensor.view_src.buffer
            tensor.offset = tensor.view_src.offset + tensor.view_offs
    return buffer


def put(device: Device, tensor: Tensor, values: npt.ArrayLike) -> None:
    """Write F32 values."""
    device.set_tensor(tensor, np.asarray(values, dtype=np.float32).tobytes())


def get(device: Device, tensor: Tensor) -> npt.NDArray[np.float32]:
    """Read F32 values in torch order, leading ones dropped."""
    data = device.get_tensor(tensor, 0, tensor.nbytes).result()
    return np.frombuffer(data, np.float32).reshape(tensor.ne[::-1]).squeeze()
