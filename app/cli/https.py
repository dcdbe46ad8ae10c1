"""HTTPS with a certificate that may be renewed under the running server.

Each handshake asks for the files as they are then; connections that stand keep what they have.
"""

import ssl
from typing import Final

from app.api.settings import TlsSettings
from app.errors import ConfigError
from app.rpc_backend.streams.context import reason
from app.rpc_backend.streams.renewal import Renewed

_FLAGS: Final = "--ssl-cert-file {} --ssl-key-file {}"


def renew_certificate(context: ssl.SSLContext, tls: TlsSettings) -> None:
    """Make handshakes that begin with `context` go on with the files as they are then.

    Raises: ConfigError when they cannot be used now.
    """
    files = Renewed((tls.cert_file, tls.key_file), lambda: _context(tls))

    def choose(tls_object: ssl.SSLObject, name: str | None, begun: ssl.SSLContext) -> None:
        tls_object.context = files.current()

    # Called in every handshake, whether or not the client names a server.
    context.sni_callback = choose


def _context(tls: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # Without a password given here OpenSSL would ask for one on the terminal.
        context.load_cert_chain(tls.cert_file, tls.key_file, password="")
    except OSError as error:
        raise ConfigError(
            f"{_FLAGS.format(tls.cert_file, tls.key_file)}: {reason(error)}: expected a "
            "certificate and its key in PEM, without a password"
        ) from error
    return context
