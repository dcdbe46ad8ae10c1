"""Which certificates and ciphers are good enough, and what a failed handshake means in words.

TLS 1.2 is the oldest version spoken, 1.3 what both ends of ours agree on. Nothing is resumed and
nothing negotiated again, so after the handshake the worker sends nothing but replies.
"""

import hashlib
import re
import ssl
from dataclasses import dataclass
from typing import Final

from app.errors import ConfigError
from app.rpc_backend.streams.renewal import Renewed
from app.rpc_backend.streams.settings import ClientTls, ServerTls

_EXPIRED: Final = 10
_NOT_YET_VALID: Final = 9
_WRONG_HOST: Final = (62, 64)
"""Numbers of OpenSSL's X509_V_ERR_ list."""

_BRACKETS: Final = re.compile(r"^\[[^]]*\] | \(_ssl\.c:\d+\)$")
"""What Python adds to OpenSSL's words."""


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """What a worker speaks TLS with; `digest` is the sha256 of its certificate."""

    context: ssl.SSLContext
    digest: bytes


Certificate = Renewed[WorkerContext]
"""A worker's certificate, which may be renewed in its files."""


def client_context(tls: ClientTls, *, has_secret: bool) -> ssl.SSLContext:
    """Return whom a client trusts: the file's certificates, else with a secret anybody (the proof
    of it names the certificate), else the system's list.

    Raises: ConfigError when the file cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _restrict(context)
    if tls.ca_file is not None:
        # The worker's own certificate may stand in the file, whoever signed it.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        try:
            context.load_verify_locations(tls.ca_file)
        except OSError as error:
            raise ConfigError(
                f"{tls.flag} {tls.ca_file}: {reason(error)}: expected certificates in PEM"
            ) from error
    elif has_secret:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context.load_default_certs()
    return context


def worker_context(tls: ServerTls) -> WorkerContext:
    """Return what a worker shows to its clients.

    Raises: ConfigError when the files cannot be used or do not belong together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _restrict(context)
    context.num_tickets = 0
    try:
        # Without a password given here OpenSSL would ask for one on the terminal.
        context.load_cert_chain(tls.cert_file, tls.key_file, password="")
        certificate = _first_certificate(tls.cert_file.read_text("ascii", "replace"))
    except (OSError, ValueError) as error:
        said = reason(error) if isinstance(error, OSError) else str(error)
        raise ConfigError(
            f"--tls-cert {tls.cert_file} --tls-key {tls.key_file}: {said}: expected a "
            "certificate and its key in PEM, without a password"
        ) from error
    return WorkerContext(context, hashlib.sha256(certificate).digest())


def worker_certificate(tls: ServerTls) -> Certificate:
    """Return what a worker shows to its clients, for as long as it runs.

    Raises: ConfigError when the files cannot be used now.
    """
    return Renewed((tls.cert_file, tls.key_file), lambda: worker_context(tls))


def handshake_failure(error: OSError, ca_flag: str) -> str:
    """Say why a client's handshake failed and what can be done."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _certificate_failure(error, ca_flag)
    if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
        what = f"the TLS handshake failed ({reason(error)})"
    elif isinstance(error, TimeoutError):
        return "no answer to the TLS handshake: the worker serves another client, or has no TLS"
    else:
        what = "the worker closed the connection in the TLS handshake"
    return (
        f"{what}: most likely it does not speak TLS: start it with --tls-cert and --tls-key, or "
        "leave out --rpc-tls"
    )


def _certificate_failure(error: ssl.SSLCertVerificationError, ca_flag: str) -> str:
    said = error.verify_message.rstrip(".")
    if error.verify_code == _EXPIRED:
        return f"the worker's certificate has expired ({said}): it needs a new one"
    if error.verify_code == _NOT_YET_VALID:
        return f"the worker's certificate is not valid yet ({said}): are both clocks right?"
    if error.verify_code in _WRONG_HOST:
        return f"the worker's certificate is for another host ({said})"
    return (
        f"the worker's certificate is not trusted ({said}): name it or the CA that signed it with "
        f"{ca_flag}, or share a secret with the worker"
    )


def _first_certificate(text: str) -> bytes:
    """The one that the worker shows, in DER; what follows it are those that signed."""
    begin, end = text.find(ssl.PEM_HEADER), text.find(ssl.PEM_FOOTER)
    if not 0 <= begin < end:
        raise ValueError(f"no {ssl.PEM_HEADER}")
    return ssl.PEM_cert_to_DER_cert(text[begin : end + len(ssl.PEM_FOOTER)])


def _restrict(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_NO_TICKET


def reason(error: OSError) -> str:
    """Return an error in words, OpenSSL's without brackets."""
    if isinstance(error, ssl.SSLError):
        return _BRACKETS.sub("", str(error))
    return error.strerror or str(error)
