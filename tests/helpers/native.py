"""The native CPU device for tests, at any of the built levels."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from app.devices.base import DeviceInfo, DeviceKind
from app.devices.native_device import NativeDevice
from app.errors import ConfigError
from app.kernels.cpu.library import LEVELS, NativeLibrary, load_library

# What products of many tokens are made of: `NativeLibrary.limit_matmul`.
FLOATS, AMX = 0, 1
# Every level, and the products that it has.
WAYS: Final = [("avx512", AMX), *((level, FLOATS) for level in LEVELS)]
WAY_IDS: Final = ["amx", *LEVELS]


def native_library(level: str | None = None) -> NativeLibrary:
    """Load a level, or the best; skips with the reason when it cannot be used."""
    try:
        library, why = load_library(level)
    except ConfigError as error:
        pytest.skip(str(error))
    if library is None:
        pytest.skip(f"no native library: {why}")
    return library


def native_cpu(threads: int = 1, level: str | None = None) -> NativeDevice:
    """Open a CPU device on the native core."""
    info = DeviceInfo("CPU", "test", DeviceKind.CPU)
    return NativeDevice(info, native_library(level), threads)


@contextmanager
def native_way(way: tuple[str, int], threads: int) -> Iterator[NativeDevice]:
    """Open a device on one of `WAYS`; skips with the reason when it cannot be used."""
    level, path = way
    library = native_library(level)
    fastest = library.limit_matmul(AMX)
    if path > fastest:
        has = "amx_bf16" in Path("/proc/cpuinfo").read_text()
        pytest.skip("the system refuses AMX" if has else "AMX: not supported by this processor")
    device = native_cpu(threads, level)
    library.limit_matmul(path)
    try:
        yield device
    finally:
        device.close()
        library.limit_matmul(fastest)
