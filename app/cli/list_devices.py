"""What --list-devices prints: llama-server's list of the devices that a model can be put on, with
what our own workers say of theirs.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

from app.devices.base import Device
from app.rpc_backend.streams.settings import ClientTls

_MIB: Final = 1 << 20


def list_devices(
    endpoints: Sequence[str], secret: bytes | None = None, tls: ClientTls | None = None
) -> str:
    """Return the devices of workers, then those of this machine without its CPU.

    Raises: ConfigError, DeviceLostError.
    """
    from app.devices.registry import CPU, list_device_names, open_devices
    from app.rpc_backend.client.connect import open_workers
    from app.rpc_backend.client.connection import ClientSettings

    with ExitStack() as opened:
        devices: list[Device] = []
        if endpoints:
            devices += open_workers(endpoints, ClientSettings(secret=secret, tls=tls))
        local = [name for name in list_device_names() if name != CPU]
        if local:
            devices += open_devices(local, None)
        for device in devices:
            opened.callback(device.close)
        lines = [_line(device) for device in devices]
    return "\n".join(["Available devices:", *(lines or ["  (none)"])])


def _line(device: Device) -> str:
    info, memory = device.info, device.memory()
    return (
        f"  {info.name}: {info.description} "
        f"({memory.total // _MIB} MiB, {memory.free // _MIB} MiB free){_facts(device)}"
    )


def _facts(device: Device) -> str:
    """What a worker of our own says of the device behind it, and how far away it is."""
    from app.rpc_backend.client.device import RpcDevice

    if not isinstance(device, RpcDevice) or device.facts is None:
        return ""
    return f", {device.facts}, {device.connection.ping() * 1000:.1f} ms away"
