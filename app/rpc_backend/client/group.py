"""Two workers that add tensors up between themselves; this side only names the tensors.

Made by whoever splits matrices over workers. Version 8 of the protocol only. The first worker
listens for the second one, on a port of its own, so the second must reach the first under the name
that this machine uses for it. What a stock worker does with its ranks and its rounding stands in
`worker/all_reduce.py`. Used by one thread at a time.
"""

import logging
import socket
import time
from concurrent.futures import Future, wait
from typing import Final

from app.errors import DeviceLostError, GraphError, LlamaServeError
from app.ggml.tensor import Tensor
from app.rpc_backend.client.device import RpcDevice
from app.rpc_backend.errors import GroupError
from app.rpc_backend.wire import messages as m
from app.rpc_backend.wire.commands import command_of
from app.rpc_backend.wire.constants import PLAIN_TCP

log = logging.getLogger(__name__)

_PORT_OFFSET: Final = 1000
_HOST_BYTES: Final = 64
_KNOCK_S: Final = 1.0
_KNOCK_AGAIN_S: Final = 0.05


class WorkerPair:
    """Two devices on two workers, of the ranks 0 and 1."""

    def __init__(
        self, first: RpcDevice, second: RpcDevice, port: int | None = None, timeout_s: float = 30.0
    ) -> None:
        """Let the workers connect to each other; `port` is where the first listens, by default
        1,000 above its own, as stock clients have it.

        Raises: GroupError naming the worker that could not join; LocalProtocolError for a worker of
        version 7; DeviceLostError.
        """
        self._devices = (first, second)
        self._closed = False
        endpoint = first.connection.endpoint
        port = endpoint.port + _PORT_OFFSET if port is None else port
        requests = _requests(self._devices, port)
        # Neither answers before the other has been asked.
        first_answer, second_answer = (
            device.connection.ask(request, m.FlagReply)
            for device, request in zip(self._devices, requests, strict=True)
        )
        second_cause = _refusal(second_answer, timeout_s)
        if second_cause is not None:
            _knock(endpoint.host, port, first_answer, is_stock=not first.connection.is_extended)
        causes = (_refusal(first_answer, timeout_s), second_cause)
        if any(causes):
            self.close()
            raise GroupError(
                "; ".join(
                    f"{device.info.name} ({device.info.description}) as rank {rank}: {cause}"
                    for rank, (device, cause) in enumerate(zip(self._devices, causes, strict=True))
                    if cause is not None
                )
            )

    def all_reduce(self, first: Tensor, second: Tensor) -> None:
        """Replace two tensors [equal shapes], one on each worker, by their sum; only asks for it,
        after everything asked before.

        Raises: GraphError for tensors that cannot be added; DeviceLostError.
        """
        if self._closed:
            raise GroupError("all-reduce: the workers are no pair any more")
        tensors = (first, second)
        if (first.type, first.ne) != (second.type, second.ne) or not all(
            tensor.is_contiguous for tensor in tensors
        ):
            raise GraphError(
                f"all-reduce of '{first.name}' {first.type.name} {list(first.ne)} with "
                f"'{second.name}' {second.type.name} {list(second.ne)}: "
                "expected equal types and shapes without gaps"
            )
        requests = [
            m.CommAllreduce(device.index, device.describe(tensor))
            for device, tensor in zip(self._devices, tensors, strict=True)
        ]
        for device, request in zip(self._devices, requests, strict=True):
            device.connection.tell(request)

    def close(self) -> None:
        """Let the workers part."""
        if self._closed:
            return
        self._closed = True
        for device in self._devices:
            try:
                device.connection.tell(m.CommFree(device.index))
            except DeviceLostError:
                log.debug("%s has left the group with its connection", device.info.name)


def _requests(devices: tuple[RpcDevice, RpcDevice], port: int) -> list[m.CommInit]:
    """Make both requests before any is sent, so that nobody waits for one that cannot be."""
    first, second = (device.connection for device in devices)
    host = first.endpoint.host.encode()
    if first is second:
        raise GroupError(f"{first.endpoint}: both devices share a connection: expected two workers")
    if not 0 < port < 65536 or len(host) >= _HOST_BYTES:
        raise GroupError(
            f"{first.endpoint}, port {port} to listen on: expected a port and a shorter name"
        )
    padded = host.ljust(_HOST_BYTES, b"\0")
    requests = [
        m.CommInit(device.index, rank, len(devices), port, padded)
        for rank, device in enumerate(devices)
    ]
    for device, request in zip(devices, requests, strict=True):
        command_of(request, device.connection.version.major)
    return requests


def _refusal(answer: Future[m.FlagReply], timeout_s: float) -> str | None:
    """Why a worker did not join, None when it did."""
    try:
        return None if answer.result(timeout_s).value else "it refused"
    except TimeoutError:
        return f"no answer within {timeout_s:g} s"
    except LlamaServeError as error:
        return str(error)


def _knock(host: str, port: int, answer: Future[m.FlagReply], *, is_stock: bool) -> None:
    """Connect and leave: a stock worker of rank 0 waits for somebody for ever. Ours waits a while
    longer for the right one, unless whoever comes greets it as rank 1 does.
    """
    deadline = time.monotonic() + _KNOCK_S
    while not answer.done() and time.monotonic() < deadline:
        try:
            with socket.create_connection((host, port), _KNOCK_S) as sock:
                if not is_stock:
                    sock.sendall(PLAIN_TCP)
                    sock.recv(len(PLAIN_TCP))
            return
        except (OSError, UnicodeError) as error:
            log.debug("nobody waits for rank 1 at %s port %d yet: %s", host, port, error)
            wait([answer], _KNOCK_AGAIN_S)
