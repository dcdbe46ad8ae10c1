"""Opens the sockets that the server answers on: TCP addresses and UNIX paths.

They listen before anything slow happens, so that a client that comes early waits instead of being
refused. With several TCP addresses `::` means IPv6 only, as it does for llama-server.
"""

import errno
import os
import socket
import stat
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.api.settings import ServerSettings
from app.errors import ConfigError

_BACKLOG: Final = 2048
_UNIX_SUFFIX: Final = ".sock"


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening socket and the URL that reaches it."""

    socket: socket.socket
    url: str


def open_listeners(settings: ServerSettings) -> list[Listener]:
    """Listen on every address of the settings.

    Raises: ConfigError naming the address when one cannot be had; then none is open.
    """
    hosts = [host for host in settings.hosts if not host.endswith(_UNIX_SUFFIX)]
    if settings.port == 0 and len(hosts) > 1:
        raise ConfigError("--port 0 is not supported with multiple TCP addresses")
    if not settings.hosts:
        raise ConfigError("--host: expected at least one address")
    with ExitStack() as opened:
        listeners: list[Listener] = []
        for host in settings.hosts:
            if host.endswith(_UNIX_SUFFIX):
                found = [_listen_unix(Path(host))]
            else:
                found = _listen_tcp(host, settings, v6_only=len(hosts) > 1)
            for listener in found:
                opened.callback(listener.socket.close)
            listeners += found
        opened.pop_all()
        return listeners


def _listen_tcp(host: str, settings: ServerSettings, *, v6_only: bool) -> list[Listener]:
    """A name may stand for several addresses; with port 0 only the first of them is used."""
    try:
        infos = socket.getaddrinfo(
            host.strip("[]"), settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise ConfigError(f"--host {host}: {error.strerror}") from error
    addresses = list(dict.fromkeys((info[0], info[4]) for info in infos))
    if settings.port == 0:
        addresses = addresses[:1]
    listeners: list[Listener] = []
    failed: OSError | None = None
    for family, address in addresses:
        try:
            sock = _bound(family, address, settings.reuse_port, v6_only or len(addresses) > 1)
        except OSError as error:
            failed = error
            # A name may resolve to IPv6 where the machine has none.
            if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT) and len(addresses) > 1:
                continue
            break
        listeners.append(Listener(sock, _url(sock, settings)))
        failed = None if listeners else failed
    else:
        if listeners:
            return listeners
    for listener in listeners:
        listener.socket.close()
    reason = failed.strerror if failed is not None else "no address"
    raise ConfigError(f"cannot listen on {host}:{settings.port}: {reason}")


def _bound(
    family: int, address: tuple[object, ...], reuse_port: bool, v6_only: bool
) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port and hasattr(socket, "SO_REUSEPORT"):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(v6_only))
        sock.bind(address)
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def _listen_unix(path: Path) -> Listener:
    """A socket file that nobody listens on any more is replaced; any other file is not."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if _is_stale(path):
            path.unlink()
        sock.bind(os.fspath(path))
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise ConfigError(f"cannot listen on {path}: {error.strerror}") from error
    return Listener(sock, f"unix://{path.absolute()}")


def _is_stale(path: Path) -> bool:
    if not path.exists() or not stat.S_ISSOCK(path.stat().st_mode):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(os.fspath(path)) == errno.ECONNREFUSED


def _url(sock: socket.socket, settings: ServerSettings) -> str:
    host, port = sock.getsockname()[:2]
    scheme = "http" if settings.tls is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def remove_unix_paths(listeners: Sequence[Listener]) -> None:
    """Remove the files of UNIX sockets; TCP needs nothing."""
    for listener in listeners:
        if listener.url.startswith("unix://"):
            Path(listener.url.removeprefix("unix://")).unlink(missing_ok=True)
