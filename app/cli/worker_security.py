"""What llama-rpc-server's command line says about whom to serve: TLS and a secret, and what it has
to say when somebody else might be served.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path
from typing import Final

from app.cli.flags.parser import Parsed
from app.cli.flags.securing import file_remarks, secret_in_file, secret_in_variable
from app.errors import ConfigError
from app.rpc_backend.streams.settings import ClientTls, ServerTls
from app.rpc_backend.worker.allowed import Network, as_met

_SECRET_FLAG: Final = "--secret-file"
_CA_FLAG: Final = "--tls-ca"
_ALLOW_FLAG: Final = "--allow"
_BAR: Final = "!" * 76


@dataclass(frozen=True, slots=True)
class Security:
    """Whom a worker serves, and whose certificates it trusts where it connects to other workers."""

    secret: bytes | None = field(default=None, repr=False)
    tls: ServerTls | None = None
    trust: ClientTls = field(default_factory=ClientTls)
    remarks: tuple[str, ...] = ()
    allowed: tuple[Network, ...] = ()

    @property
    def places(self) -> str:
        """Where clients may come from, in words; empty for anywhere."""
        return ", ".join(map(str, self.allowed))

    @property
    def words(self) -> str:
        """What clients need, in words."""
        needs = [*(["TLS"] if self.tls else []), *(["a secret"] if self.secret else [])]
        return " and ".join(needs) or "nothing"


def add_security_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that `read_security` reads."""
    add = parser.add_argument
    add(
        "--tls-cert",
        metavar="FILE",
        help="speak TLS with this certificate (PEM, its CAs behind); renewed files are used for "
        "new connections",
    )
    add("--tls-key", metavar="FILE", help="the certificate's private key (PEM, no password)")
    add(
        _CA_FLAG,
        metavar="FILE",
        help="certificates that other workers' are checked by, PEM: a CA's or the workers' own "
        "(default: the secret, or else the system's list of CAs)",
    )
    add(
        _SECRET_FLAG,
        metavar="FILE",
        help="serve only main hosts that know the secret in this file: llama-serve's "
        "--rpc-secret-file; stock ones cannot",
    )
    add(
        _ALLOW_FLAG,
        action="append",
        default=[],
        metavar="ADDRESS,...",
        help="serve only these addresses and networks (192.168.1.5, 10.0.0.0/24, fd00::/8); "
        "repeatable (default: all)",
    )


def read_security(args: argparse.Namespace, environment: Parsed) -> Security:
    """Return what flags and environment say; a flag overrides the variable.

    Raises: ConfigError, which never shows the secret.
    """
    path = args.secret_file
    secret = secret_in_variable(environment) if path is None else secret_in_file(_SECRET_FLAG, path)
    remarks = (*file_remarks(_SECRET_FLAG, path), *file_remarks("--tls-key", args.tls_key))
    return Security(secret, _tls(args), _trust(args), remarks, _allowed(args.allow))


def _allowed(texts: Sequence[str]) -> tuple[Network, ...]:
    entries = [entry.strip() for text in texts for entry in text.split(",")]
    try:
        return tuple(as_met(ip_network(entry, strict=False)) for entry in entries)
    except ValueError as error:
        raise ConfigError(
            f"{_ALLOW_FLAG}: {error}: expected addresses or networks such as 10.0.0.0/24"
        ) from None


def _tls(args: argparse.Namespace) -> ServerTls | None:
    if args.tls_cert is None and args.tls_key is None:
        return None
    if not (args.tls_cert and args.tls_key):
        raise ConfigError("TLS needs both --tls-cert and --tls-key")
    from app.rpc_backend.streams.context import worker_context

    tls = ServerTls(Path(args.tls_cert).expanduser(), Path(args.tls_key).expanduser())
    # Better now than after everything else has been made ready.
    worker_context(tls)
    return tls


def _trust(args: argparse.Namespace) -> ClientTls:
    if args.tls_ca is None:
        return ClientTls(flag=_CA_FLAG)
    if not args.tls_cert:
        raise ConfigError(f"{_CA_FLAG}: only a worker with --tls-cert speaks TLS to others")
    from app.rpc_backend.streams.context import client_context

    trust = ClientTls(Path(args.tls_ca).expanduser(), _CA_FLAG)
    client_context(trust, has_secret=False)
    return trust


def open_warning(host: str, security: Security) -> str:
    """Return what to say about listening on `host`: nothing when only this machine reaches it."""
    if host in ("localhost", "::1") or host.startswith("127."):
        return ""
    if security.secret is None:
        what = "encryption but no secret" if security.tls else "no secret and no encryption"
        whence = f" from {security.places}" if security.allowed else ""
        return (
            f"\n{_BAR}\nWARNING: listening on {host}, which other machines can reach. There is\n"
            f"{what}: whoever reaches this port{whence} can use the\n"
            "devices of this machine. Never expose it to an open network, or see\n"
            f"{_SECRET_FLAG}, --tls-cert and {_ALLOW_FLAG}.\n{_BAR}\n"
        )
    if security.tls is None:
        return (
            f"note: listening on {host} with a secret but without TLS: what main hosts send and "
            "read can be read on the network (--tls-cert, --tls-key)"
        )
    return ""
