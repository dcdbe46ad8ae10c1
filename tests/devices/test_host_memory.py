"""Free and total memory from files as the kernel writes them."""

from pathlib import Path

import pytest

from app.devices import host_memory
from app.devices.base import DeviceMemory

MEMINFO = "MemTotal:       8000 kB\nMemFree:        100 kB\nMemAvailable:   6000 kB\nHugePages: 0\n"


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders proc/ and cgroup/ in place of the kernel's own."""
    for name in ("proc/self", "cgroup/memory"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setattr(host_memory, "PROC", tmp_path / "proc")
    monkeypatch.setattr(host_memory, "CGROUP", tmp_path / "cgroup")
    (tmp_path / "proc/meminfo").write_text(MEMINFO)
    return tmp_path


def test_without_a_limit_the_host_counts(kernel: Path) -> None:
    (kernel / "cgroup/memory.max").write_text("max\n")
    assert host_memory.host_memory() == DeviceMemory(6000 << 10, 8000 << 10)


def test_a_control_group_limits_both(kernel: Path) -> None:
    (kernel / "cgroup/memory.max").write_text(f"{1000 << 10}\n")
    (kernel / "cgroup/memory.current").write_text(f"{700 << 10}\n")
    assert host_memory.host_memory() == DeviceMemory(300 << 10, 1000 << 10)


def test_file_pages_that_can_be_dropped_count_as_free(kernel: Path) -> None:
    (kernel / "cgroup/memory.max").write_text(f"{1000 << 10}\n")
    (kernel / "cgroup/memory.current").write_text(f"{900 << 10}\n")
    (kernel / "cgroup/memory.stat").write_text(f"anon 5\ninactive_file {500 << 10}\n")
    assert host_memory.host_memory().free == 600 << 10


def test_the_first_version_of_control_groups_is_understood(kernel: Path) -> None:
    (kernel / "cgroup/memory/memory.limit_in_bytes").write_text(f"{1000 << 10}\n")
    (kernel / "cgroup/memory/memory.usage_in_bytes").write_text(f"{900 << 10}\n")
    assert host_memory.host_memory() == DeviceMemory(100 << 10, 1000 << 10)


def test_a_group_above_its_limit_has_nothing_free(kernel: Path) -> None:
    (kernel / "cgroup/memory.max").write_text("10\n")
    (kernel / "cgroup/memory.current").write_text("20\n")
    assert host_memory.host_memory().free == 0


def test_a_host_without_proc_still_has_a_total(kernel: Path) -> None:
    (kernel / "proc/meminfo").unlink()
    memory = host_memory.host_memory()
    assert memory.total > 0 and memory.free == memory.total // 2
    assert host_memory.touched_bytes() == 0
    assert host_memory.cpu_name()


def test_the_processor_is_called_by_its_name(kernel: Path) -> None:
    (kernel / "proc/cpuinfo").write_text("processor : 0\nmodel name\t: Some CPU @ 3 GHz\n")
    assert host_memory.cpu_name() == "Some CPU @ 3 GHz"
