"""--list-devices prints workers first, then this machine's accelerators, never its CPU."""

from collections.abc import Sequence

import pytest

from app.cli.list_devices import list_devices
from app.devices import registry
from app.devices.base import DeviceInfo, DeviceKind, DeviceMemory
from app.rpc_backend.client import connect
from app.rpc_backend.client.connection import ClientSettings


class FakeDevice:
    """What the list needs of a device; counts how many are still open."""

    open = 0

    def __init__(self, name: str, description: str, kind: DeviceKind) -> None:
        self.info = DeviceInfo(name, description, kind)
        FakeDevice.open += 1

    def memory(self) -> DeviceMemory:
        return DeviceMemory(free=3 << 30, total=4 << 30)

    def close(self) -> None:
        FakeDevice.open -= 1


def test_lines_have_llama_servers_form(monkeypatch: pytest.MonkeyPatch) -> None:
    def workers(endpoints: Sequence[str], settings: ClientSettings) -> list[FakeDevice]:
        assert settings.secret == b"a secret of some length"
        return [FakeDevice(f"RPC{i}", e, DeviceKind.REMOTE) for i, e in enumerate(endpoints)]

    def local(names: Sequence[str], threads: int | None) -> list[FakeDevice]:
        return [FakeDevice(name, "a card", DeviceKind.GPU) for name in names]

    monkeypatch.setattr(connect, "open_workers", workers)
    monkeypatch.setattr(registry, "open_devices", local)
    monkeypatch.setattr(registry, "list_device_names", lambda: ["CUDA0", "CPU"])
    assert list_devices(("a:50052",), b"a secret of some length") == (
        "Available devices:\n"
        "  RPC0: a:50052 (4096 MiB, 3072 MiB free)\n"
        "  CUDA0: a card (4096 MiB, 3072 MiB free)"
    )
    assert FakeDevice.open == 0


def test_no_device_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "list_device_names", lambda: ["CPU"])
    assert list_devices(()) == "Available devices:\n  (none)"
