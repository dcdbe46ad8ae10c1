"""Which graphs a worker still has, so that they need only be named the next time.

Both ends follow the same rule without telling each other: version 8 keeps up to 1,024 graphs per
device by uid and forgets all of them when one more arrives, version 7 keeps the last graph of each
device, and freeing any buffer makes every kept graph of the connection invalid. A failure ends the
conversation with a stock worker; one of our own goes on, and this end then counts nothing as kept.
That worker may keep more than is counted here, never less: it lets go of its oldest graphs only.
"""

from collections import defaultdict

from app.rpc_backend.wire.constants import KEPT_GRAPHS


class KeptGraphs:
    """The client's copy of one worker's memory; guarded by the connection's lock."""

    def __init__(self, major: int) -> None:
        self._by_uid = major >= 8
        self._uids: defaultdict[int, set[int]] = defaultdict(set)

    def has(self, device: int, uid: int) -> bool:
        """Whether `device` can run graph `uid` again; never true of uid 0."""
        return uid != 0 and uid in self._uids[device]

    def sent(self, device: int, uid: int) -> None:
        """Note that a graph is on its way; uid 0 is not kept."""
        uids = self._uids[device]
        if not self._by_uid or (uid != 0 and len(uids) >= KEPT_GRAPHS):
            uids.clear()
        if uid != 0:
            uids.add(uid)

    def forget_all(self) -> None:
        """Note that a buffer was freed."""
        self._uids.clear()
