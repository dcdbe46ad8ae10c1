"""Sending a tensor straight from one worker to another, so that its bytes never pass this host.

Both must be our own, and the first must be able to reach the second under the address by which this
host knows it. That cannot be asked beforehand; what is known is that loopback means another machine
to a worker elsewhere. A worker that cannot reach the other says so at once: whatever was asked
behind the push fails, the other worker's waiting is called off, and no push is tried between the
two again until this host reconnects to one of them.
"""

import logging
import threading
from functools import partial
from ipaddress import ip_address
from typing import Final

from app.errors import DeviceLostError, LlamaServeError
from app.rpc_backend.client.connection import WorkerConnection
from app.rpc_backend.client.endpoint import Endpoint
from app.rpc_backend.client.route import Route
from app.rpc_backend.wire.extensions import (
    HOST_BYTES,
    MAX_PUSH_BYTES,
    Deliver,
    PushTensor,
    TakeDelivery,
)
from app.rpc_backend.wire.messages import DeviceCount, DeviceCountReply
from app.rpc_backend.wire.tensor import WireTensor

log = logging.getLogger(__name__)

_MAX_HOST: Final = HOST_BYTES - 1


def can_push(sender: WorkerConnection, receiver: WorkerConnection) -> bool:
    """Whether `sender` can be told to connect to `receiver`, as far as is known."""
    route = sender.routes.get(receiver)
    return (
        not (route and route.is_broken)
        and sender.is_extended
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
    route = sender.routes.setdefault(receiver, Route())
    for at in range(0, n_bytes, MAX_PUSH_BYTES):
        size = min(MAX_PUSH_BYTES, n_bytes - at)
        key, number = receiver.next_delivery()
        route.add(number)
        on_failure = partial(_failed, route, receiver, key, number)
        message = PushTensor(source, at, size, number, port, host, key)
        sender.tell(message, on_failure=on_failure)
        # Told for sure, or what arrives would lie there for ever.
        receiver.tell(TakeDelivery(target, at, size, number), regardless=True)


def _failed(
    route: Route, receiver: WorkerConnection, key: bytes, number: int, error: LlamaServeError
) -> None:
    """Call off the delivery that failed, and those behind it where there is no way."""
    is_broken = isinstance(error, DeviceLostError)
    route.is_broken |= is_broken
    numbers = route.take(number, with_later=is_broken)
    if numbers and receiver.cause is None:
        name = f"rpc-call-off-{receiver.endpoint}"
        args = (receiver, key, numbers)
        threading.Thread(target=_call_off, args=args, name=name, daemon=True).start()


def _call_off(receiver: WorkerConnection, key: bytes, numbers: list[int]) -> None:
    """End a worker's waiting for deliveries that will not come."""
    try:
        connection = WorkerConnection(receiver.endpoint, receiver.settings)
        try:
            for number in numbers:
                connection.tell(Deliver(key, number), regardless=True)
            connection.call(DeviceCount(), DeviceCountReply, receiver.settings.connect_timeout_s)
        finally:
            connection.close()
    except LlamaServeError as error:
        log.info("a delivery could not be called off: %s", error)


def _is_here(endpoint: Endpoint) -> bool:
    """Whether an endpoint names the machine that reads it."""
    if endpoint.is_loopback:
        return True
    try:
        address = ip_address(endpoint.host.partition("%")[0])
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified or "%" in endpoint.host
