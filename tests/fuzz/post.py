"""Doors, deliveries and pushes: to the client's own door, by another session or by this one, right
and wrong. The other worker of a push lives in this process.
"""

from dataclasses import replace

from app.errors import DeviceLostError
from app.rpc_backend.wire import extensions as x
from app.rpc_backend.wire import messages as m
from app.rpc_backend.worker.outgoing import Courier
from tests.fuzz.caller import Caller, Worker
from tests.fuzz.damage import damaged_tensor
from tests.fuzz.dice import Dice


class _Carrier:
    """An `outgoing.Courier` that is a client of the same worker, or fails."""

    def __init__(self, worker: Worker, *, fails: bool) -> None:
        self._link = Caller(replace(worker), 8)
        self._link.call(x.Extend(x.REVISION, bytes(x.NONCE_BYTES)))
        self._fails = fails

    def deliver(self, key: bytes, sequence: int, data: bytes) -> None:
        if self._fails:
            raise DeviceLostError("it went away")
        n_errors = self._link.n_errors
        self._link.call(x.Deliver(key, sequence), data)
        if self._link.n_errors > n_errors:
            raise DeviceLostError("it took no delivery")

    def close(self) -> None:
        self._link.session.close()


def post(dice: Dice, link: Caller, worker: Worker) -> None:
    """Open a door, leave something there or have it pushed there, and take it.

    Raises: SessionError, HasEndedError.
    """
    reply = link.call(x.OpenDoor())
    key = reply.key if isinstance(reply, x.DoorReply) else dice.randbytes(x.KEY_BYTES)
    size = dice.choice((0, 1, 64, 4096, 300_000))
    source, target = link.take(size + 64), link.take(size + 64)
    data = dice.randbytes(source.size)
    link.call(m.SetTensor(source.whole, 0, 0), data)
    before = link.read(target)
    n_errors, right = link.n_errors, dice.chance(0.6)
    # One that has been used may still stand in the mailbox, and is refused then.
    number = dice.getrandbits(64) if right else dice.u64()
    sent_key = key if right or dice.chance(0.7) else dice.damaged(key).ljust(16)
    tensor, start = dice.choice(((source.part(size, 64), 0), (source.whole, 64)))
    if dice.chance(0.5):
        fails = not right and dice.chance(0.5)

        def dial(host: str, port: int) -> Courier:
            return _Carrier(worker, fails=fails)

        link.session.state.mail.dial = None if fails and dice.chance(0.3) else dial
        host = b"127.0.0.1" if right else dice.choice((b"127.0.0.1", b"a b", b"", b"\xff" * 64))
        port = 1 if right else dice.u32()
        tensor = tensor if right else damaged_tensor(dice, tensor, 1)
        n = size if right else dice.size(size)
        host = host.ljust(x.HOST_BYTES, b"\0")
        link.call(x.PushTensor(tensor, start, n, number, port, host, sent_key))
    else:
        sender = link if dice.chance(0.5) else Caller(worker, 8)
        if sender is not link:
            sender.call(x.Extend(x.REVISION, bytes(x.NONCE_BYTES)))
        sender.call(x.Deliver(sent_key, number), data[64:])
        if sender is not link:
            assert right is False or sender.n_errors == 0, "a delivery was refused"
            sender.session.close()
    wanted = number if right or dice.chance(0.7) else dice.u64()
    n = size if right else dice.size(size)
    place, start = dice.choice(((target.part(size, 64), 0), (target.whole, 64)))
    link.call(x.TakeDelivery(place, start, n, wanted))
    after = link.read(target)
    assert after[:64] == before[:64], "bytes beside the tensor were written"
    if right and link.n_errors == n_errors and after:
        assert after[64:] == data[64:], "something else was delivered"
