"""Declining RDMA: one line in the log for a peer that offers it.

Called by both ends once they have a peer's HELLO. The line has a logger of its own, so that the
command lines can keep it quiet when RDMA is turned off anyway (`GGML_RPC_NO_RDMA`).
"""

import logging

from app.rpc_backend.wire.rdma import parse_offer

log = logging.getLogger(__name__)


def decline(peer: str, capabilities: bytes) -> None:
    """Say that `peer` offered RDMA and stays on TCP; nothing for a peer that offered none."""
    offer = parse_offer(capabilities)
    if offer is not None:
        log.info("%s offers RDMA (%s); it stays on TCP, which is all there is here", peer, offer)


def keep_quiet() -> None:
    """Leave the line out."""
    log.setLevel(logging.WARNING)
