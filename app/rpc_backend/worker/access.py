"""What a connection has to show before a client is served: TLS, the secret, or nothing."""

from dataclasses import dataclass, field

from app.rpc_backend.wire.extensions import Announced


@dataclass(frozen=True, slots=True)
class Access:
    """The rules for one connection. `certificate` is the sha256 of the worker's certificate when
    the connection is TLS, empty when it is not.
    """

    secret: bytes | None = field(default=None, repr=False)
    certificate: bytes = b""
    demands_tls: bool = False

    @property
    def announced(self) -> Announced:
        """What HELLO's padding byte says."""
        bits = Announced.EXTENDED
        if self.secret is not None:
            bits |= Announced.SECRET
        if self.demands_tls:
            bits |= Announced.TLS
        return bits

    @property
    def refuses_plain(self) -> bool:
        """Whether this connection should have been TLS."""
        return self.demands_tls and not self.certificate


OPEN = Access()
"""Everybody is served."""
