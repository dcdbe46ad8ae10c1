"""Adds to rpc_frames.json.gz what is missing: the shortest request of each command, and its reply,
between stock peers. `python -m tests.golden.capture` needs both of them (tests.fetch_assets).
"""

import gzip
import json
from contextlib import ExitStack
from typing import Final

from app.rpc_backend.wire.constants import VERSIONS
from tests.helpers.rpc_frames import GOLDEN
from tests.helpers.rpc_tap import Exchange, tapped
from tests.helpers.stock_peers import stock_ggml, stock_worker

_RANKS: Final = {7: 1, 8: 2}
"""Version 8 needs two workers for the commands of all-reduce."""


def main() -> None:
    """Run the stock client library on stock workers, once per version."""
    frames = json.loads(gzip.decompress(GOLDEN.read_bytes()))
    for version in VERSIONS:
        known = frames[str(version)]
        for name, exchange in _captured(version).items():
            known.setdefault(name, _row(exchange))
        frames[str(version)] = dict(sorted(known.items()))
    GOLDEN.write_bytes(gzip.compress(json.dumps(frames).encode(), 9, mtime=0))


def _captured(version: int) -> dict[str, Exchange]:
    found: dict[str, Exchange] = {}
    with ExitStack() as stack:
        ports = [stack.enter_context(stock_worker(version)) for _ in range(_RANKS[version])]
        taps = [stack.enter_context(tapped(port, version)) for port in ports]
        stock_ggml(version, *(tap.port for tap in taps))
        # The second rank's COMM_INIT is the one that names a host.
        for tap in taps:
            found |= tap.shortest()
    return found


def _row(exchange: Exchange) -> dict[str, str | None]:
    request, reply = exchange
    return {"request": request.hex(), "reply": None if reply is None else reply.hex()}


if __name__ == "__main__":
    main()
