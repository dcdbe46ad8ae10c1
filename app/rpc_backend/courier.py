"""A worker's way to another worker: as one of our clients, given to the server by the program.

It belongs to neither room, since the worker does not know the client. The worker's own secret is
proved to the other one, and TLS is spoken where this worker speaks it.
"""

from app.errors import DeviceLostError
from app.rpc_backend.client.connection import ClientSettings, WorkerConnection
from app.rpc_backend.client.endpoint import Endpoint
from app.rpc_backend.wire.extensions import Deliver
from app.rpc_backend.wire.messages import DeviceCount, DeviceCountReply


class WorkerCourier:
    """A connection over which tensors are delivered; the contract is `worker.outgoing.Courier`."""

    def __init__(self, endpoint: Endpoint, settings: ClientSettings) -> None:
        """Connect.

        Raises: DeviceLostError, VersionMismatchError, ConfigError.
        """
        self._connection = WorkerConnection(endpoint, settings)
        if not self._connection.is_extended:
            self._connection.close()
            raise DeviceLostError(f"RPC worker {endpoint}: a stock one, which takes no deliveries")

    def deliver(self, key: bytes, sequence: int, data: bytes) -> None:
        """Leave bytes at a door.

        Raises: DeviceLostError; what the other worker says of it.
        """
        self._connection.tell(Deliver(key, sequence), data)
        # Its answer comes behind the delivery.
        self._connection.call(DeviceCount(), DeviceCountReply)

    def close(self) -> None:
        """End the connection."""
        self._connection.close()


class CourierService:
    """Connects to other workers; a `worker.outgoing.Dial`."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings

    def __call__(self, host: str, port: int) -> WorkerCourier:
        """Connect to a worker.

        Raises: DeviceLostError, VersionMismatchError, ConfigError.
        """
        return WorkerCourier(Endpoint(host, port), self._settings)
