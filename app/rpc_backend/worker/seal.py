"""What the two workers of a group demand of the connection between them, beyond the stock form.

Made by the server from its own secret and certificate, so both workers must have the same kinds;
with neither the connection is what stock workers have. Who says what when stands in
`wire/extensions.py`.
"""

import socket
from dataclasses import dataclass, field

from app.errors import ConfigError
from app.rpc_backend.errors import GroupError
from app.rpc_backend.streams.base import Stream
from app.rpc_backend.streams.context import Certificate, client_context
from app.rpc_backend.streams.plain import PlainStream
from app.rpc_backend.streams.settings import ClientTls
from app.rpc_backend.streams.tls import TlsStream


@dataclass(frozen=True, slots=True)
class Seal:
    """`certificate` is what this worker shows as rank 0, and that it speaks TLS; `trust` says whom
    it believes as rank 1.
    """

    secret: bytes | None = field(default=None, repr=False)
    certificate: Certificate | None = None
    trust: ClientTls = field(default_factory=ClientTls)

    def wrap(self, sock: socket.socket, host: str | None) -> Stream:
        """Return the stream of a connected socket before its greeting; `host` is what rank 1 calls
        rank 0, None at rank 0.

        Raises: GroupError.
        """
        if self.certificate is None:
            return PlainStream(sock)
        if host is None:
            shown = self.certificate.current()
            return TlsStream(sock, shown.context, own_digest=shown.digest)
        try:
            context = client_context(self.trust, has_secret=self.secret is not None)
            return TlsStream(sock, context, host)
        except (ConfigError, OSError, ValueError) as error:
            raise GroupError(f"TLS with rank 0 at {host}: {error}") from None


STOCK_FORM = Seal()
"""Whoever connects is believed."""
