"""Sending a tensor straight from one worker to another, so that its bytes never pass this host.

Both must be our own, and the first must be able to reach the second under the address by which this
host knows it. That cannot be asked beforehand; what is known is that loopback means another machine
to a worker elsewhere. A worker that turns out not to be reachable says so in a failure.
"""

from ipaddress import ip_address
from typing import Final

from app.rpc_backend.client.connection import WorkerConnection
from app.rpc_backend.client.endpoint import Endpoint
from app.rpc_backend.wire.extensions import (
    HOST_BYTES,
    MAX_PUSH_BYTES,
    PushTensor,
    TakeDelivery,
)
from app.rpc_backend.wire.tensor import WireTensor

_MAX_HOST: Final = HOST_BYTES - 1


def can_push(sender: WorkerConnection, receiver: WorkerConnection) -> bool:
    """Whether `sender` can be told to connect to `receiver`."""
    return (
        sender.is_extended
        and receiver.is_extended
        and meets(sender.endpoint, receiver.endpoint)
        and receiver.endpoint.host.isascii()
        and len(receiver.endpoint.host) <= _MAX_HOST
    )


def meets(sender: Endpoint, receiver: Endpoint) -> bool:
    """Whether an address of this host's means the same machine to `sender`."""
    return _is_here(sender) or not _is_here(receiver)


def push(
    sender: WorkerConnection,
    source: WireTensor,
    receiver: WorkerConnection,
    target: WireTensor,
    n_bytes: int,
) -> None:
    """Tell both ends, and do not wait.

    Raises: DeviceLostError; what either worker says of a request before it.
    """
    host = receiver.endpoint.host.encode("ascii").ljust(HOST_BYTES, b"\0")
    port = receiver.endpoint.port
    for at in range(0, n_bytes, MAX_PUSH_BYTES):
        size = min(MAX_PUSH_BYTES, n_bytes - at)
        key, number = receiver.next_delivery()
        sender.tell(PushTensor(source, at, size, number, port, host, key))
        receiver.tell(TakeDelivery(target, at, size, number))


def _is_here(endpoint: Endpoint) -> bool:
    """Whether an endpoint names the machine that reads it."""
    if endpoint.is_loopback:
        return True
    try:
        address = ip_address(endpoint.host.partition("%")[0])
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified or "%" in endpoint.host
