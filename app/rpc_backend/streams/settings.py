"""What the user says about TLS towards workers: files, read when the first connection is made.

Apart from the code that speaks TLS, so that configuration objects need not import it.
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ClientTls:
    """Speak TLS to every worker. `ca_file` (PEM) says whom to trust instead of the system's list;
    without it a shared secret is enough, since the proof of it names the certificate. `flag` is the
    program's name for the file.
    """

    ca_file: Path | None = None
    flag: str = "--rpc-tls-ca"


@dataclass(frozen=True, slots=True)
class ServerTls:
    """Speak TLS with every client; both files are PEM."""

    cert_file: Path
    key_file: Path
