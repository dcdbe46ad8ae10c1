"""Local devices by the names that ggml gives them: CUDA0… (ROCm0… on AMD), XPU0…, MPS, CPU.

Called by the command lines, for the worker and for the main host. The CPU runs on the native core
where one is built and the machine can run it, else on torch. torch is imported inside the functions
and only where it is needed, and not even asked on a Linux host without any driver's device file: a
main host with everything on workers, or with the native CPU alone, never loads it.
"""

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from app.devices.base import Device, DeviceInfo, DeviceKind
from app.devices.host_cpu import default_threads
from app.devices.host_memory import cpu_name
from app.errors import ConfigError

if TYPE_CHECKING:
    import torch

CPU = "CPU"
Executor = Literal["native", "reference"]

# Files that the drivers of NVIDIA, AMD, Intel and of Windows' Linux make.
DEV = Path("/dev")
_DRIVER_FILES: Final = (
    "nvidia*",
    "nvhost*",
    "nvgpu*",
    "nvmap",
    "kfd",
    "dri/render*",
    "dxg",
    "accel*",
)

log = logging.getLogger(__name__)


def list_device_names() -> list[str]:
    """Return the names of all devices of this host, accelerators first."""
    return [*_accelerators(), CPU]


def open_devices(
    names: Sequence[str] | None,
    threads: int | None,
    *,
    executor: Executor = "native",
    level: str | None = None,
) -> list[Device]:
    """Open the devices called `names` (any case); None means all accelerators, or else the CPU.
    `threads` is the number of CPU threads for kernels. `executor` "reference" runs the CPU on
    torch; `level` names the instructions that the native core must use.

    Raises: ConfigError for an unknown or repeated name, a number of threads below 1, or a level
    that cannot be used.
    """
    if threads is not None and threads < 1:
        raise ConfigError(f"threads {threads}: expected 1 or more")
    only_cpu = names is not None and all(name.upper() == CPU for name in names)
    accelerators = {} if only_cpu else _accelerators()
    chosen = _chosen(names, [*accelerators, CPU])
    return [
        _open_torch(name, accelerators[name], threads)
        if name in accelerators
        else _open_cpu(threads, executor, level)
        for name in chosen
    ]


def _chosen(names: Sequence[str] | None, available: Sequence[str]) -> list[str]:
    spelled = {name.upper(): name for name in available}
    wanted = list(names) if names is not None else [n for n in available if n != CPU] or [CPU]
    chosen: list[str] = []
    for name in wanted:
        known = spelled.get(name.upper())
        if known is None:
            raise ConfigError(f"device '{name}': expected one of {', '.join(available)}")
        if known in chosen:
            raise ConfigError(f"device '{name}': named twice")
        chosen.append(known)
    return chosen


def _open_cpu(threads: int | None, executor: Executor, level: str | None) -> Device:
    info = DeviceInfo(CPU, cpu_name(), DeviceKind.CPU, threads or default_threads())
    if executor == "native":
        from app.devices.native_device import NativeDevice
        from app.kernels.cpu.library import load_library

        library, why = load_library(level)
        if library is not None:
            device = NativeDevice(info, library, threads)
            passed_over = f" ({why})" if why else ""
            log.info("CPU: native kernels, level %s%s", device.level, passed_over)
            return device
        log.warning("CPU: no native kernels (%s); running on torch, which is slower", why)
    import torch

    return _open_torch(CPU, torch.device("cpu"), threads)


def _open_torch(name: str, device: "torch.device", threads: int | None) -> Device:
    import torch

    from app.devices.torch_device import TorchDevice

    torch.set_float32_matmul_precision("highest")
    if threads is not None:
        torch.set_num_threads(threads)
    return TorchDevice(_info(name, device), device)


def _may_have_accelerators() -> bool:
    if sys.platform != "linux":
        return True
    return any(True for pattern in _DRIVER_FILES for _ in DEV.glob(pattern))


def _accelerators() -> "dict[str, torch.device]":
    if not _may_have_accelerators():
        return {}
    import torch

    found: dict[str, torch.device] = {}
    if torch.cuda.is_available():
        brand = "CUDA" if torch.version.hip is None else "ROCm"
        found |= {f"{brand}{i}": torch.device("cuda", i) for i in range(torch.cuda.device_count())}
    if torch.xpu.is_available():
        found |= {f"XPU{i}": torch.device("xpu", i) for i in range(torch.xpu.device_count())}
    if torch.backends.mps.is_available():
        found["MPS"] = torch.device("mps")
    return found


def _info(name: str, device: "torch.device") -> DeviceInfo:
    import torch

    if device.type == "cuda":
        return DeviceInfo(name, torch.cuda.get_device_name(device), DeviceKind.GPU)
    if device.type == "xpu":
        return DeviceInfo(name, torch.xpu.get_device_name(device), DeviceKind.GPU)
    if device.type == "mps":
        return DeviceInfo(name, f"{cpu_name()} GPU", DeviceKind.GPU)
    return DeviceInfo(name, cpu_name(), DeviceKind.CPU)
