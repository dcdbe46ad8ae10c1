"""Open all workers that the user named and list their devices.

Called by the engine at start-up. Endpoints are tried at the same time; when one fails, the others
are closed again and the error names every one that failed.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from app.errors import DeviceLostError, LlamaServeError
from app.rpc_backend.client.connection import ClientSettings, WorkerConnection
from app.rpc_backend.client.device import RpcDevice
from app.rpc_backend.client.endpoint import Endpoint, parse_endpoints
from app.rpc_backend.errors import VersionMismatchError
from app.rpc_backend.wire.constants import MAX_DEVICES
from app.rpc_backend.wire.messages import DeviceCount, DeviceCountReply


def open_workers(
    endpoints: Sequence[str], settings: ClientSettings | None = None
) -> list[RpcDevice]:
    """Return the devices of all endpoints in order, named RPC0, RPC1 and so on; each string may be
    a comma list of "host:port".

    Raises: ConfigError for a malformed endpoint; DeviceLostError or VersionMismatchError naming
    each endpoint that failed.
    """
    parsed = parse_endpoints(endpoints)
    settings = settings or ClientSettings()
    with ThreadPoolExecutor(max(len(parsed), 1), thread_name_prefix="rpc-connect") as pool:
        pending = [pool.submit(_open_one, endpoint, settings) for endpoint in parsed]
    errors = [error for one in pending if (error := one.exception()) is not None]
    if errors:
        for one in pending:
            if one.exception() is None:
                one.result()[0].close()
        raise _joined(errors)
    devices: list[RpcDevice] = []
    try:
        for one in pending:
            connection, count = one.result()
            for index in range(count):
                name, timeout_s = f"RPC{len(devices)}", settings.connect_timeout_s
                devices.append(RpcDevice(connection, index, name, timeout_s))
    except LlamaServeError as error:
        for one in pending:
            one.result()[0].close()
        raise _lost(error) from None
    return devices


def _open_one(endpoint: Endpoint, settings: ClientSettings) -> tuple[WorkerConnection, int]:
    connection = WorkerConnection(endpoint, settings)
    try:
        reply = connection.call(DeviceCount(), DeviceCountReply, settings.connect_timeout_s)
        if not 0 < reply.count <= MAX_DEVICES:
            raise DeviceLostError(
                f"RPC worker {endpoint}: {reply.count} devices: expected 1 to {MAX_DEVICES}"
            )
    except LlamaServeError as error:
        connection.close()
        raise _lost(error) from None
    return connection, reply.count


def _lost(error: LlamaServeError) -> DeviceLostError:
    """A worker that fails at the first questions, whatever it calls that, cannot be used."""
    return error if isinstance(error, DeviceLostError) else DeviceLostError(str(error))


def _joined(errors: Sequence[BaseException]) -> BaseException:
    if len(errors) == 1:
        return errors[0]
    text = "; ".join(str(error) for error in errors)
    mismatch = all(isinstance(error, VersionMismatchError) for error in errors)
    return VersionMismatchError(text) if mismatch else DeviceLostError(text)
