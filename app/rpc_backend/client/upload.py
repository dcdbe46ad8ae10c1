"""Weights on their way to a worker: offered by hash, and sent where the worker has not got them.

Offers run ahead of their answers, so that hashing, asking and sending go on at the same time and a
slow link is never idle; how far ahead is bounded. The bytes are sent from where they lie and told
of as they leave, so that whoever mapped the file can let go of its pages. Everything happens in the
caller's thread.

Every weight of `hash_threshold_bytes` and more is offered, also to a worker that keeps nothing: a
hash is computed once per file, and an offer costs 321 bytes and no time.
"""

from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, TypeVar

from app.devices.base import Weight
from app.rpc_backend.client.connection import WorkerConnection
from app.rpc_backend.wire.messages import FlagReply, SetTensor, SetTensorHash
from app.rpc_backend.wire.tensor import WireTensor

R = TypeVar("R")

_MAX_OFFERS: Final = 64
_MAX_OFFERED_BYTES: Final = 256 << 20
_MAX_QUEUED_BYTES: Final = 32 << 20
_TICK_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class _Offer:
    """A weight whose hash the worker was asked about."""

    tensor: WireTensor
    weight: Weight
    answer: Future[FlagReply]


@dataclass(slots=True)
class _Sending:
    """A weight that is being sent: the place on the wire where it ends, and how much of it is known
    to have left.
    """

    weight: Weight
    end: int
    told: int = 0


class Upload:
    """One run of weights to one worker; used by one thread."""

    def __init__(self, connection: WorkerConnection) -> None:
        self._connection = connection
        self._offers: deque[_Offer] = deque()
        self._offered_bytes = 0
        self._sending: deque[_Sending] = deque()

    def run(self, weights: Iterable[tuple[WireTensor, Weight]]) -> None:
        """Bring each weight to the place that is described beside it.

        Raises: DeviceLostError; what a worker of our own says of a request that failed.
        """
        for tensor, weight in weights:
            if weight.data.nbytes < self._connection.hash_threshold_bytes:
                self._send(tensor, weight, cache=False)
            else:
                self._offer(tensor, weight)
            while self._offers and (self._is_far_ahead() or self._offers[0].answer.done()):
                self._settle()
        while self._offers:
            self._settle()

    def wait(self, answer: Future[R]) -> R:
        """Return the answer to a request, and tell meanwhile of the bytes that leave."""
        while True:
            self._tell()
            try:
                result = answer.result(_TICK_S)
            except TimeoutError:
                continue
            self._tell()
            return result

    def _is_far_ahead(self) -> bool:
        return len(self._offers) > _MAX_OFFERS or self._offered_bytes > _MAX_OFFERED_BYTES

    def _offer(self, tensor: WireTensor, weight: Weight) -> None:
        request = SetTensorHash(tensor, 0, weight.hash())
        self._offers.append(_Offer(tensor, weight, self._connection.ask(request, FlagReply)))
        self._offered_bytes += weight.data.nbytes

    def _settle(self) -> None:
        """Wait for the answer to the oldest offer and do what it says."""
        offer = self._offers.popleft()
        size = offer.weight.data.nbytes
        self._offered_bytes -= size
        if self.wait(offer.answer).value:
            offer.weight.arrived(0, size, True)
        else:
            self._send(offer.tensor, offer.weight, cache=True)

    def _send(self, tensor: WireTensor, weight: Weight, *, cache: bool) -> None:
        connection = self._connection
        while (behind := connection.position - _MAX_QUEUED_BYTES) > connection.bytes_sent:
            connection.wait_sent(behind, _TICK_S)
            self._tell()
        connection.tell(SetTensor(tensor, int(cache), 0), weight.data)
        self._sending.append(_Sending(weight, connection.position))
        self._tell()

    def _tell(self) -> None:
        """Tell of what has left since the last time."""
        sent = self._connection.bytes_sent
        while self._sending:
            head = self._sending[0]
            size = head.weight.data.nbytes
            done = min(size, size - head.end + sent)
            if done > head.told:
                head.weight.arrived(head.told, done, False)
                head.told = done
            if done < size:
                return
            self._sending.popleft()
