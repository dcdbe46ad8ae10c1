"""Writing tensor data to a worker: by hash when the worker may have it, else as bytes.

Only weights are worth a hash, and only large ones: see `ClientSettings`. Small data without a hash
waits for the request that needs it, so that the inputs of one step leave in one system call.
"""

from typing import Final

from app.rpc_backend.client.connection import WorkerConnection
from app.rpc_backend.hashing import fnv1a_64
from app.rpc_backend.wire.messages import FlagReply, SetTensor, SetTensorHash
from app.rpc_backend.wire.tensor import WireTensor

_HOLD_BYTES: Final = 16 * 1024


def upload(
    connection: WorkerConnection,
    tensor: WireTensor,
    data: memoryview,
    offset: int,
    *,
    is_weight: bool,
) -> None:
    """Write `data` into a tensor from byte `offset` on; waits only for the answer to a hash.

    Raises: DeviceLostError.
    """
    threshold = connection.hash_threshold_bytes
    by_hash = is_weight and threshold is not None and len(data) > threshold
    if by_hash:
        offer = SetTensorHash(tensor, offset, fnv1a_64(data))
        if connection.call(offer, FlagReply).value:
            return
    flush = len(data) > _HOLD_BYTES
    connection.tell(SetTensor(tensor, int(by_hash), offset), data, flush=flush)
