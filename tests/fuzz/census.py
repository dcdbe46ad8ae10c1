"""What a run reached: how often each command, operation, type and reply was accepted and refused.

A refused one came past the first look: its frame was whole, its fields could be read. With a graph
that is refused every operation and type in it counts as refused, whichever was wrong.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from app.rpc_backend.wire.layout import Body
from app.rpc_backend.wire.messages import CommInit, FlagReply, Message
from app.rpc_backend.wire.worker_core import Request
from app.rpc_backend.worker.session import Session

COMMAND: Final = "command"
OPERATION: Final = "operation"
TYPE: Final = "type"
REPLY: Final = "answer"


@dataclass(slots=True)
class Census:
    """Counts under "kind name"; what is expected and never came counts 0."""

    accepted: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)

    def expect(self, kind: str, names: Iterable[str]) -> None:
        """Note what a run should reach."""
        for name in names:
            self.accepted[f"{kind} {name}"] += 0

    def add(self, kind: str, name: str, *, ok: bool = True) -> None:
        """Count one."""
        (self.accepted if ok else self.refused)[f"{kind} {name}"] += 1

    def update(self, other: "Census") -> None:
        """Add what another run counted, with what it expected."""
        for mine, theirs in (self.accepted, other.accepted), (self.refused, other.refused):
            for key, count in theirs.items():
                mine[key] += count

    def lines(self) -> Iterator[str]:
        """Show a table: for each kind the names with "accepted/refused"."""
        keys = self.accepted.keys() | self.refused.keys()
        for kind in sorted({key.partition(" ")[0] for key in keys}):
            mine = sorted(key for key in keys if key.startswith(f"{kind} "))
            expected = [key for key in mine if key in self.accepted]
            missing = [key.partition(" ")[2] for key in expected if not self.accepted[key]]
            n_reached = len(expected) - len(missing)
            yield f"  {kind}s: {n_reached} of {len(expected)} accepted (accepted/refused)"
            shown = [
                f"{key.partition(' ')[2]} {self.accepted[key]}/{self.refused[key]}" for key in mine
            ]
            for at in range(0, len(shown), 6):
                yield f"    {', '.join(shown[at : at + 6])}"
            if missing:
                yield f"    never accepted: {', '.join(missing)}"


class CountedSession(Session):
    """A session that counts the commands that reach their handlers, and how those end; `last` is
    the one that was read last.
    """

    census: Census | None = None
    last: Request | None = None

    def _handle(self, request: Request) -> Iterator[Body]:
        self.last = request
        if self.census is not None and (request.chunk is None or request.chunk.at == 0):
            self.census.add(COMMAND, request.command.number.name)
        yield from super()._handle(request)

    def _fail(
        self, request: Request, error: Exception, *, is_silent: bool = False
    ) -> Iterator[Body]:
        self._take_back(request.command.number.name)
        yield from super()._fail(request, error, is_silent=is_silent)

    def _advance(self, message: Message, outcome: Message) -> None:
        if isinstance(message, CommInit) and outcome == FlagReply(0):
            self._take_back("COMM_INIT")
        super()._advance(message, outcome)

    def _take_back(self, name: str) -> None:
        if self.census is not None:
            self.census.accepted[f"{COMMAND} {name}"] -= 1
            self.census.add(COMMAND, name, ok=False)
