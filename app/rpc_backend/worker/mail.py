"""One client's part in pushes between workers: its door, what it delivers, what it sends."""

from collections.abc import Callable
from dataclasses import dataclass, field

from app.rpc_backend.errors import DeliveryError
from app.rpc_backend.worker.budget import Budget
from app.rpc_backend.worker.mailbox import Incoming, Mailbox, Mailboxes
from app.rpc_backend.worker.outgoing import Dial, Outgoing

DELIVERY_TIMEOUT_S = 60.0


@dataclass(slots=True)
class Mail:
    """`mailboxes` is the worker's, `dial` its way to others, None when it has none; `has_left`
    tells whether the client has gone, so that nobody waits for its sake.
    """

    mailboxes: Mailboxes = field(default_factory=Mailboxes)
    dial: Dial | None = None
    has_left: Callable[[], bool] = lambda: False
    timeout_s: float = DELIVERY_TIMEOUT_S
    mailbox: Mailbox | None = None
    incoming: Incoming | None = None
    budget: Budget = field(default_factory=Budget)
    _outgoing: Outgoing | None = None

    def door(self) -> Mailbox:
        """Return the client's mailbox, made when it is asked for first."""
        if self.mailbox is None:
            self.mailbox = self.mailboxes.open(self.timeout_s)
        return self.mailbox

    def outgoing(self) -> Outgoing:
        """Return what brings this client's tensors to other workers.

        Raises: DeliveryError when this worker does not connect to others.
        """
        if self._outgoing is None:
            if self.dial is None:
                raise DeliveryError("this worker does not connect to others")
            self._outgoing = Outgoing(self.dial, self.budget, self.has_left)
        return self._outgoing

    def drop_incoming(self) -> None:
        """Give up a delivery in the middle."""
        if self.incoming is not None:
            self.incoming.abandon()
            self.incoming = None

    def stop(self) -> None:
        """End the waiting of everybody, here and where something is expected from here."""
        self.drop_incoming()
        if self.mailbox is not None:
            self.mailboxes.close(self.mailbox)
        if self._outgoing is not None:
            self._outgoing.call_off()

    def close(self) -> None:
        """End the connections to others, once they know; `stop` comes first."""
        if self._outgoing is not None:
            self._outgoing.close()
