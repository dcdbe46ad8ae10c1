"""Where a worker listens: "host:port" lists as `--rpc` takes them, and the way to connect.

Every failure names the endpoint and the reason in words, as people copy these lines into bug
reports.
"""

import logging
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass

from app.errors import ConfigError, DeviceLostError
from app.rpc_backend.streams.plain import tune
from app.rpc_backend.wire.constants import DEFAULT_PORT

log = logging.getLogger(__name__)

Address = tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]

_MAX_DIGITS = 5


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One worker's address."""

    host: str
    port: int = DEFAULT_PORT

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether the worker runs on this machine for sure."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")


def parse_endpoint(text: str) -> Endpoint:
    """Read "host", "host:port", "[v6]" or "[v6]:port".

    Raises: ConfigError.
    """
    text = text.strip()
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        fits = bool(closed) and (not rest or rest.startswith(":"))
        port = rest[1:]
    else:
        host, _, port = text.partition(":")
        fits = ":" not in port
    if not (fits and host) or any(c.isspace() or c == "/" for c in host):
        raise ConfigError(f"RPC endpoint '{text}': expected host:port or [IPv6 address]:port")
    if not port:
        return Endpoint(host)
    is_number = port.isascii() and port.isdigit() and len(port) <= _MAX_DIGITS
    if not (is_number and 0 < int(port) < 65536):
        raise ConfigError(f"RPC endpoint '{text}': port '{port}': expected 1 to 65535")
    return Endpoint(host, int(port))


def parse_endpoints(values: Sequence[str]) -> list[Endpoint]:
    """Read a repeatable flag of comma lists; an endpoint that comes twice counts once, which is
    logged.

    Raises: ConfigError for an empty or malformed entry.
    """
    parsed = [parse_endpoint(entry) for value in values for entry in value.split(",")]
    unique = list(dict.fromkeys(parsed))
    for endpoint in unique:
        if parsed.count(endpoint) > 1:
            log.warning("RPC endpoint %s is given more than once and used once", endpoint)
    return unique


def connect(endpoint: Endpoint, deadline: float) -> socket.socket:
    """Open a TCP connection to the first address of the host that answers before `deadline`
    (monotonic seconds); each gets its share of the time.

    Raises: DeviceLostError naming the endpoint and why each address failed.
    """
    try:
        found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise DeviceLostError(
            f"RPC worker {endpoint}: the name '{endpoint.host}' is unknown ({error})"
        ) from None
    reasons: dict[str, None] = {}
    for n_before, (family, kind, protocol, _, address) in enumerate(found):
        now = time.monotonic()
        share_s = (deadline - now) / (len(found) - n_before)
        try:
            return _open((family, kind, protocol), address, now + share_s)
        except OSError as error:
            reasons[_reason(error)] = None
    raise DeviceLostError(f"RPC worker {endpoint}: {', '.join(reasons)}")


def _open(kind: tuple[int, int, int], address: Address, deadline: float) -> socket.socket:
    """Raises: OSError."""
    sock = socket.socket(*kind)
    try:
        sock.settimeout(max(deadline - time.monotonic(), 0.001))
        sock.connect(address)
        tune(sock)
    except OSError:
        sock.close()
        raise
    return sock


def _reason(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused, nothing listens there"
    if isinstance(error, TimeoutError):
        return "no answer to the connection attempt, is a firewall in between?"
    return error.strerror or str(error)
