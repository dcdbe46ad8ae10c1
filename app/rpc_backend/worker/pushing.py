"""Handlers of pushes between workers (`wire/extensions.py`); the other half is in `mailbox.py` and
`outgoing.py`.
"""

import logging
import re
from dataclasses import replace
from typing import Final

from app.errors import GraphError, LlamaServeError
from app.rpc_backend.errors import RemoteProtocolError
from app.rpc_backend.wire import extensions as x
from app.rpc_backend.wire.worker_core import Chunk
from app.rpc_backend.worker.lanes import Later, Report
from app.rpc_backend.worker.outgoing import Address, Letter, letter_cost
from app.rpc_backend.worker.state import ClientState

log = logging.getLogger(__name__)

_HOST: Final = re.compile(rb"[0-9A-Za-z._:%-]+")


def open_door(state: ClientState, message: x.OpenDoor) -> x.DoorReply:
    """Give the client the key under which others leave deliveries for it."""
    return x.DoorReply(state.mail.door().key)


def push_tensor(state: ClientState, message: x.PushTensor) -> Later:
    """Read bytes behind the graph that makes them and send them to another worker."""
    region = state.buffers.check_region(message.tensor, message.offset, message.size)
    if region.size > x.MAX_PUSH_BYTES:
        raise GraphError(
            f"push of '{region.tensor.name}': {region.size} bytes: "
            f"expected up to {x.MAX_PUSH_BYTES}"
        )
    address, outgoing = _address(message), state.mail.outgoing()
    letter = Letter(message.key, message.sequence)

    def work(report: Report) -> None:
        held = outgoing.budget.hold(letter_cost(region.size), f"push of '{region.tensor.name}'")
        data = region.device.get_tensor(region.tensor, region.offset, region.size).result()
        outgoing.send(address, replace(letter, data=data, report=report, held=held))

    def call_off() -> None:
        try:
            outgoing.send(address, letter)
        except LlamaServeError as error:
            log.debug("%s: a push was not called off: %s", state.peer, error)

    return Later(region.held.device_index, work, (region.held.event,), call_off)


def _address(message: x.PushTensor) -> Address:
    host = message.host.partition(b"\0")[0]
    if not (_HOST.fullmatch(host) and 0 < message.port < 65536):
        raise RemoteProtocolError(f"host {host!r}, port {message.port}: expected a worker's")
    return Address(host.decode("ascii"), message.port)


def deliver(state: ClientState, message: x.Deliver, chunk: Chunk) -> None:
    """Put bytes of another worker into the mailbox that has the key."""
    mail = state.mail
    if chunk.at == 0:
        mailbox = mail.mailboxes.find(message.key)
        mail.incoming = mailbox.begin(message.sequence, chunk.total, mail.has_left)
    assert mail.incoming is not None
    mail.incoming.write(chunk.data)
    if chunk.is_last:
        mail.incoming.finish()
        mail.incoming = None


def take_delivery(state: ClientState, message: x.TakeDelivery) -> Later:
    """Write a delivery into a tensor, in the order of its device's lane."""
    region = state.buffers.check_region(message.tensor, message.offset, message.size)
    mailbox, has_left = state.mail.mailbox, state.mail.has_left
    if mailbox is None:
        raise RemoteProtocolError("expected OPEN_DOOR before it")

    def work(report: Report) -> None:
        at = region.offset
        for piece in mailbox.take(message.sequence, region.size, has_left):
            region.device.set_tensor(region.tensor, piece, at)
            at += len(piece)

    return Later(region.held.device_index, work, (region.held.event,))
