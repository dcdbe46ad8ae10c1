"""Prompts that no slot holds any more, with their keys and values, in the memory of this host.

The engine thread owns it. A slot about to lose its tokens may leave them here, and a later request
that begins the same way gets them back instead of computing them; what is fetched leaves the
memory. When it is over its limit the oldest go. On a pool every entry crosses the network twice,
which is why it is only there when asked for (`--cache-ram`). What is kept and when follows
llama.cpp's server_prompt_cache (server-context.cpp, b11434).
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from app.engine.kv_cache import CellsExhaustedError
from app.engine.kv_rows import HeldPositions, KVRows
from app.engine.slots import common_prefix

log = logging.getLogger(__name__)

MIN_SHARE = 0.25


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """One sequence."""

    tokens: tuple[int, ...]
    held: HeldPositions
    rows: tuple[bytes, ...]

    @property
    def n_bytes(self) -> int:
        """Bytes of its rows."""
        return sum(map(len, self.rows))


class PromptMemory:
    """Entries, oldest first; `takes_idle` says that idle slots are emptied into it."""

    def __init__(self, rows: KVRows, limit: int | None, *, takes_idle: bool) -> None:
        """`limit` is in bytes, None for no limit."""
        self.takes_idle = takes_idle
        self._rows = rows
        self._limit = limit
        self._kept: list[Kept] = []

    def keep(self, seq: int, tokens: Sequence[int]) -> None:
        """Remember what sequence `seq` holds, unless that is known. Raises: DeviceLostError."""
        held = self._rows.held(seq)
        n_bytes = self._rows.n_bytes(held)
        if not tokens or (self._limit is not None and n_bytes > self._limit):
            return
        if any(common_prefix(entry.tokens, tokens) == len(tokens) for entry in self._kept):
            return
        self._kept = [e for e in self._kept if common_prefix(e.tokens, tokens) < len(e.tokens)]
        self._make_room(n_bytes)
        self._kept.append(Kept(tuple(tokens), held, tuple(self._rows.read(seq))))
        log.debug("%d prompts kept, %d bytes", len(self._kept), self.n_bytes)

    def best(self, tokens: Sequence[int], *, better_than: int) -> Kept | None:
        """Return the entry that shares most leading tokens, and more than `better_than`.

        One of which less than a quarter is shared stays for whom it was kept.
        """
        scored = [(common_prefix(entry.tokens, tokens), entry) for entry in self._kept]
        useful = [(n, entry) for n, entry in scored if n >= MIN_SHARE * len(entry.tokens)]
        n_shared, entry = max(useful, key=lambda pair: pair[0], default=(0, None))
        return entry if n_shared > better_than else None

    def fetch(self, entry: Kept, seq: int) -> bool:
        """Give an entry back to the empty sequence `seq`; whether there was room for it.

        Raises: DeviceLostError.
        """
        try:
            self._rows.write(seq, entry.held, entry.rows)
        except CellsExhaustedError:
            return False
        self._kept.remove(entry)
        return True

    @property
    def n_bytes(self) -> int:
        """Bytes of all entries."""
        return sum(entry.n_bytes for entry in self._kept)

    def _make_room(self, n_bytes: int) -> None:
        while self._limit is not None and self._kept and self.n_bytes + n_bytes > self._limit:
            self._kept.pop(0)
