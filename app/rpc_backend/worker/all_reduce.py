"""Adding a tensor up over two workers (COMM_INIT, COMM_ALLREDUCE, COMM_FREE of version 8).

A client gives two workers the ranks 0 and 1 and from then on names tensors; the workers exchange
them over a connection of their own (`link.py`), without lengths. Rank 0 sends and then receives,
rank 1 the other way round, so that data of any size flows. F32 tensors of 32,768 elements and more
travel as BF16, and then each rank adds its own exact values to the other's rounded ones; the two
results differ in that as those of stock workers do. A tensor changes only after all of the other's
has arrived. Whatever goes wrong during an exchange ends the group.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from app.errors import GraphError
from app.ggml.types import TRAITS, GGMLType
from app.rpc_backend.errors import GroupError
from app.rpc_backend.wire.layout import Body
from app.rpc_backend.wire.messages import CommInit
from app.rpc_backend.worker.allowed import Network
from app.rpc_backend.worker.buffers import Region
from app.rpc_backend.worker.link import Link, LinkLimits
from app.rpc_backend.worker.meeting import accept_link, open_link
from app.rpc_backend.worker.seal import STOCK_FORM, Seal

log = logging.getLogger(__name__)

F32Array = npt.NDArray[np.float32]

ROUNDED_FROM: Final = 32768
"""Elements from which F32 travels as BF16."""

MAX_WIRE_BYTES: Final = 1 << 30
"""Most that is received into this machine's memory at once."""

_PIECE_ELEMENTS: Final = 128 * 1024
_WORLD: Final = 2


@dataclass(frozen=True, slots=True)
class _Form:
    """How a type's bytes become numbers to add, and back."""

    read: Callable[[Body], F32Array]
    write: Callable[[F32Array], bytes]


class Groups:
    """The groups that one client has made, by device; used by that client's thread."""

    def __init__(
        self,
        host: str = "127.0.0.1",
        limits: LinkLimits | None = None,
        has_left: Callable[[], bool] = lambda: False,
        allowed: Sequence[Network] = (),
        seal: Seal = STOCK_FORM,
    ) -> None:
        """`host` is where rank 0 listens, for rank 1 from an allowed address; `has_left` tells
        whether the client has gone, so that nobody waits for its sake; `seal` is what both ranks
        have to show each other.
        """
        self._host = host
        self._limits = limits or LinkLimits()
        self._has_left = has_left
        self._allowed = allowed
        self._seal = seal
        self._members: dict[int, tuple[int, Link]] = {}

    def join(self, message: CommInit) -> None:
        """Become one of the two ranks.

        Raises: GroupError.
        """
        if message.world != _WORLD or message.rank >= _WORLD or not 0 < message.port < 65536:
            raise GroupError(
                f"rank {message.rank} of {message.world} over port {message.port}: "
                f"expected rank 0 or 1 of {_WORLD} and a port"
            )
        self._forget_broken(message.device)
        if message.device in self._members:
            raise GroupError(f"device {message.device} is in a group already")
        if message.rank == 0:
            link = accept_link(
                self._host, message.port, self._limits, self._has_left, self._allowed, self._seal
            )
        else:
            host = message.host.partition(b"\0")[0].decode("ascii", "replace")
            link = open_link(host, message.port, self._limits, self._has_left, self._seal)
        self._members[message.device] = (message.rank, link)

    def all_reduce(self, device: int, region: Region) -> None:
        """Add the other rank's values to a tensor [any], in place.

        Raises: GroupError; GraphError for a tensor that cannot be added up.
        """
        if device not in self._members:
            raise GroupError(f"device {device} is in no group")
        _check(device, region)
        rank, link = self._members[device]
        done = False
        try:
            if rank == 0:
                _send(link, region)
            theirs = _receive(link, region)
            if rank == 1:
                _send(link, region)
            done = True
        finally:
            if not done:
                self.leave(device)
        _add(region, theirs)

    def leave(self, device: int) -> None:
        """End a device's group, if it is in one."""
        member = self._members.pop(device, None)
        if member is not None:
            member[1].close()

    def close(self) -> None:
        """End all groups."""
        for device in list(self._members):
            self.leave(device)

    def _forget_broken(self, device: int) -> None:
        member = self._members.get(device)
        if member is not None and member[1].is_broken:
            self.leave(device)


def _check(device: int, region: Region) -> None:
    tensor, name = region.tensor, f"all-reduce of '{region.tensor.name}'"
    if region.held.device_index != device:
        raise GraphError(f"{name}: expected memory on device {device}")
    if tensor.type not in _FORMS or not tensor.is_contiguous:
        types = ", ".join(type_.name for type_ in _FORMS)
        raise GraphError(f"{name} of {tensor.type.name}: expected {types} without gaps")
    n_bytes = tensor.n_elements * TRAITS[_wire_type(region)].type_size
    if n_bytes > MAX_WIRE_BYTES:
        raise GraphError(f"{name}: {n_bytes} bytes to receive: expected up to {MAX_WIRE_BYTES}")


def _wire_type(region: Region) -> GGMLType:
    tensor = region.tensor
    rounded = tensor.type is GGMLType.F32 and tensor.n_elements >= ROUNDED_FROM
    return GGMLType.BF16 if rounded else tensor.type


def _send(link: Link, region: Region) -> None:
    own, wire = region.tensor.type, _wire_type(region)
    for at, size in _pieces(region):
        data = region.device.get_tensor(region.tensor, at, size).result()
        link.send(data if own is wire else _FORMS[wire].write(_FORMS[own].read(data)))


def _receive(link: Link, region: Region) -> memoryview:
    n_bytes = region.tensor.n_elements * TRAITS[_wire_type(region)].type_size
    # Unlike a bytearray this takes memory only as bytes arrive.
    view = np.empty(n_bytes, np.uint8).data
    link.receive_into(view)
    return view


def _add(region: Region, theirs: memoryview) -> None:
    own, wire = _FORMS[region.tensor.type], _wire_type(region)
    ratio = TRAITS[region.tensor.type].type_size // TRAITS[wire].type_size
    for at, size in _pieces(region):
        data = region.device.get_tensor(region.tensor, at, size).result()
        other = _FORMS[wire].read(theirs[at // ratio : (at + size) // ratio])
        with np.errstate(all="ignore"):
            total = own.write(own.read(data) + other)
        region.device.set_tensor(region.tensor, total, at)


def _pieces(region: Region) -> list[tuple[int, int]]:
    """Byte ranges of whole elements that cover the tensor."""
    step = _PIECE_ELEMENTS * TRAITS[region.tensor.type].type_size
    return [(at, min(step, region.size - at)) for at in range(0, region.size, step)]


def _read_bf16(data: Body) -> F32Array:
    halves = np.frombuffer(data, "<u2")
    values = np.zeros(len(halves), "<u4")
    values.view("<u2")[1::2] = halves
    return values.view("<f4")


def _write_bf16(values: F32Array) -> bytes:
    """Round to the nearest, ties to even; a NaN stays one and becomes quiet."""
    bits = values.view("<u4")
    rounded = bits >> 16
    rounded &= 1
    rounded += 0x7FFF
    rounded += bits
    is_nan = np.isnan(values)
    if is_nan.any():
        rounded[is_nan] = bits[is_nan] | (64 << 16)
    return rounded.view("<u2")[1::2].tobytes()


def _write_f16(values: F32Array) -> bytes:
    with np.errstate(over="ignore"):
        return values.astype("<f2").tobytes()


_FORMS: Final[dict[GGMLType, _Form]] = {
    GGMLType.F32: _Form(lambda data: np.frombuffer(data, "<f4"), lambda values: values.tobytes()),
    GGMLType.F16: _Form(lambda data: np.frombuffer(data, "<f2").astype(np.float32), _write_f16),
    GGMLType.BF16: _Form(_read_bf16, _write_bf16),
}
