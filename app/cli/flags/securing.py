"""Flags about which workers to trust: they become parts of EngineConfig.

The secret itself is never a flag, since everybody on a machine sees the flags of its programs: it
stands in a file or in a variable.
"""

import os
import stat
from pathlib import Path
from typing import Final

from app.cli.flags import readers
from app.cli.flags.option import Group, Option
from app.cli.flags.parser import Parsed
from app.errors import ConfigError
from app.rpc_backend.streams.settings import ClientTls
from app.rpc_backend.wire.extensions import proof_key

MIN_SECRET_BYTES: Final = 16
MAX_SECRET_BYTES: Final = 4096

_FILE_FLAG: Final = "--rpc-secret-file"

SECRET: Final = Option(
    dest="rpc_secret",
    names=(),
    read=readers.text,
    metavar="TEXT",
    env="LLAMA_SERVE_RPC_SECRET",
    help="secret that main host and workers share; a file is better",
)

SECURING: Final = Group(
    "trust between main host and workers",
    (
        Option(
            dest="rpc_secret_file",
            names=(_FILE_FLAG,),
            read=readers.text,
            metavar="FILE",
            env="LLAMA_ARG_RPC_SECRET_FILE",
            help="file with the secret of the workers' --secret-file; workers that do not know it "
            "are not used (llama-serve's own flag)",
        ),
        Option(
            dest="rpc_tls",
            names=("--rpc-tls",),
            env="LLAMA_ARG_RPC_TLS",
            default=False,
            help="speak TLS to the workers, which have --tls-cert; without --rpc-tls-ca their "
            "certificates are checked by the secret, or else by the system's list of CAs "
            "(llama-serve's own flag)",
        ),
        Option(
            dest="rpc_tls_ca",
            names=("--rpc-tls-ca",),
            read=readers.text,
            metavar="FILE",
            env="LLAMA_ARG_RPC_TLS_CA",
            help="speak TLS to the workers and trust these certificates, PEM: a CA's or the "
            "workers' own (llama-serve's own flag)",
        ),
    ),
)


def rpc_secret(parsed: Parsed) -> bytes | None:
    """Return the key of the secret that workers have to know, None for none.

    Raises: ConfigError, which never shows the secret.
    """
    if parsed.is_given("rpc_secret_file"):
        return secret_in_file(_FILE_FLAG, parsed.text("rpc_secret_file"))
    return secret_in_variable(parsed)


def rpc_tls(parsed: Parsed) -> ClientTls | None:
    """Return how to speak TLS to workers, None for not at all.

    Raises: ConfigError when the file of certificates cannot be used.
    """
    path = parsed.text("rpc_tls_ca")
    if not path:
        if parsed.is_given("rpc_tls_ca"):
            raise ConfigError("--rpc-tls-ca '': expected the name of a file")
        return ClientTls() if parsed.flag("rpc_tls") else None
    from app.rpc_backend.streams.context import client_context

    tls = ClientTls(Path(path).expanduser())
    # Better now than when the first worker is met.
    client_context(tls, has_secret=False)
    return tls


def secret_remarks(parsed: Parsed) -> list[str]:
    """Return what there is to say about the file of the secret."""
    return file_remarks(_FILE_FLAG, parsed.text("rpc_secret_file"))


def secret_in_variable(parsed: Parsed) -> bytes | None:
    """Return the key of the secret that stands in the environment, None when there is none.

    Raises: ConfigError.
    """
    if not parsed.is_given(SECRET.dest):
        return None
    return _key(SECRET.env, os.fsencode(parsed.text(SECRET.dest)))


def secret_in_file(flag: str, path: str) -> bytes:
    """Return the key of the secret that stands in a file, without the end of its last line.

    Raises: ConfigError.
    """
    source = f"{flag} '{path}'"
    try:
        with Path(path).expanduser().open("rb") as file:
            secret = file.read(MAX_SECRET_BYTES + 2)
    except OSError as error:
        raise ConfigError(f"{source}: {error.strerror}: expected a file with a secret") from error
    return _key(source, secret)


def file_remarks(flag: str, path: str | None) -> list[str]:
    """Return a warning when everybody on this machine can read a file."""
    if not path:
        return []
    try:
        mode = stat.S_IMODE(Path(path).expanduser().stat().st_mode)
    except OSError:
        return []
    if not mode & stat.S_IROTH:
        return []
    return [f"{flag} {path}: everybody on this machine can read it (mode {mode:o}): chmod 600"]


def _key(source: str, secret: bytes) -> bytes:
    """Return the key of a secret without the end of its last line, if it can be one."""
    secret = secret.removesuffix(b"\n").removesuffix(b"\r")
    if len(secret.strip()) < MIN_SECRET_BYTES or len(secret) > MAX_SECRET_BYTES:
        raise ConfigError(
            f"{source}: a secret of {len(secret.strip())} bytes: expected {MIN_SECRET_BYTES} to "
            f"{MAX_SECRET_BYTES}; openssl rand -hex 32 makes a good one"
        )
    return proof_key(secret)
