"""The devices of a pool: remote workers in the order of `--rpc`, then local accelerators, and the
host's own CPU.

The order is llama.cpp's and decides what `--tensor-split` and `--main-gpu` mean. torch is only
imported when something has to run here, so that a main host with everything on workers stays small
and starts quickly.
"""

from dataclasses import dataclass

from app.devices.base import Device
from app.engine.config import CpuExecutor, EngineConfig
from app.engine.facade import WorkerStats
from app.errors import ConfigError, DeviceLostError
from app.rpc_backend.client.connect import open_workers
from app.rpc_backend.client.connection import ClientSettings
from app.rpc_backend.client.device import RpcDevice

NO_DEVICES = ("none",)


@dataclass(slots=True)
class Pool:
    """Devices that layers can be placed on; the host's CPU is opened when it is needed."""

    devices: list[Device]
    threads: int | None
    cpu_executor: CpuExecutor = CpuExecutor.NATIVE
    cpu_level: str | None = None
    _host: Device | None = None

    @property
    def host(self) -> Device:
        """The main host's own CPU."""
        if self._host is None:
            from app.devices.registry import Executor, open_devices

            executor: Executor = (
                "reference" if self.cpu_executor is CpuExecutor.REFERENCE else "native"
            )
            (self._host,) = open_devices(
                ["CPU"], self.threads, executor=executor, level=self.cpu_level
            )
        return self._host

    @property
    def opened(self) -> list[Device]:
        """The devices, and the host's CPU when something needed it."""
        return [*self.devices, *([self._host] if self._host else [])]

    @property
    def workers(self) -> list[RpcDevice]:
        """The devices that are on workers."""
        return [device for device in self.devices if isinstance(device, RpcDevice)]

    def check(self) -> None:
        """Look whether a worker was lost while nothing was asked of it.

        Raises: DeviceLostError.
        """
        for device in self.workers:
            if device.connection.cause is not None:
                raise DeviceLostError(device.connection.cause)

    def worker_stats(self) -> tuple[WorkerStats, ...]:
        """Traffic of each remote device; those of one endpoint share a connection."""
        return tuple(
            WorkerStats(
                name=device.info.name,
                endpoint=device.info.description,
                up=True,
                bytes_sent=device.connection.bytes_sent,
                bytes_received=device.connection.bytes_received,
            )
            for device in self.workers
        )

    def close(self) -> None:
        """Free all buffers and connections."""
        for device in self.opened:
            device.close()


def open_pool(config: EngineConfig) -> Pool:
    """Connect to the workers and open the local accelerators; `config.devices` picks and orders.

    Raises: ConfigError for an unknown name, DeviceLostError for a worker that cannot be used.
    """
    devices: list[Device] = []
    if config.rpc_endpoints:
        settings = ClientSettings(
            hash_threshold_bytes=config.hash_min_bytes,
            secret=config.rpc_secret,
            tls=config.rpc_tls,
        )
        devices += open_workers(config.rpc_endpoints, settings)
    devices += _local_accelerators()
    wanted = _picked(devices, config.devices)
    for device in devices:
        if device not in wanted:
            device.close()
    return Pool(wanted, config.threads, config.cpu_executor, config.cpu_level)


def _picked(devices: list[Device], names: tuple[str, ...] | None) -> list[Device]:
    if names is None:
        return devices
    if names == NO_DEVICES:
        return []
    by_name = {device.info.name: device for device in devices}
    unknown = [name for name in names if name not in by_name]
    if unknown:
        known = ", ".join(by_name) or "(none)"
        raise ConfigError(f"--device {', '.join(unknown)}: expected some of {known}")
    return [by_name[name] for name in names]


def _local_accelerators() -> list[Device]:
    from app.devices.registry import list_device_names, open_devices

    names = [name for name in list_device_names() if name != "CPU"]
    return list(open_devices(names, None)) if names else []
