"""Names of local devices and what opening them refuses."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from app.devices import registry
from app.devices.base import DeviceKind
from app.devices.registry import list_device_names, open_devices
from app.errors import ConfigError


def test_the_cpu_is_always_there_and_last() -> None:
    assert list_device_names()[-1] == "CPU"


def test_without_names_accelerators_come_before_the_cpu() -> None:
    names = list_device_names()
    opened = [device.info.name for device in open_devices(None, None)]
    assert opened == (names[:-1] or ["CPU"])


def test_names_are_found_in_any_case_and_described() -> None:
    (device,) = open_devices(["cpu"], 1, executor="reference")
    assert device.info.name == "CPU"
    assert device.info.kind == DeviceKind.CPU
    assert device.info.description not in ("", "CPU")
    memory = device.memory()
    assert 0 < memory.free <= memory.total
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize("names", [["CUDA99"], ["cpu", "CPU"], [""], ["CPU", "gpu"]])
def test_unknown_and_repeated_names_are_refused(names: list[str]) -> None:
    with pytest.raises(ConfigError, match="device"):
        open_devices(names, None)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'CUDA99'.*CPU"):
        open_devices(["CUDA99"], None)


def test_threads_below_one_are_refused() -> None:
    with pytest.raises(ConfigError, match="threads 0"):
        open_devices(["CPU"], 0)


def test_a_host_without_drivers_lists_its_devices_without_torch(tmp_path: Path) -> None:
    (tmp_path / "nvme0").touch()
    code = f"""
import pathlib, sys
from app.devices import registry
registry.DEV = pathlib.Path({str(tmp_path)!r})
assert registry.list_device_names() == ["CPU"]
sys.exit("torch" in sys.modules)
"""
    root = Path(__file__).resolve().parents[2]
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=root).returncode == 0


@pytest.mark.parametrize("name", ["nvidia0", "kfd", "dri/renderD128", "dxg"])
def test_a_drivers_file_makes_torch_look_for_accelerators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "dri").mkdir()
    (tmp_path / name).touch()
    monkeypatch.setattr(registry, "DEV", tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert registry.list_device_names()[:2] == ["CUDA0", "CUDA1"]
