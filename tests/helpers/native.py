"""The native CPU device for tests, at any of the built levels."""

import pytest

from app.devices.base import DeviceInfo, DeviceKind
from app.devices.native_device import NativeDevice
from app.errors import ConfigError
from app.kernels.cpu.library import NativeLibrary, load_library


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
