"""Certificates made for a test: a CA of its own, and what it and nobody signs."""

from datetime import UTC, datetime
from pathlib import Path

import trustme

from app.rpc_backend.streams.settings import ClientTls, ServerTls


class Certificates:
    """One CA, and files of what it signed; `trust` is for clients that know it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ca = trustme.CA()
        self._n_made = 0
        self.trust = ClientTls(folder / "ca.pem")
        self._ca.cert_pem.write_to_path(str(self.trust.ca_file))

    def signed(self, *hosts: str, expires_at: datetime | None = None) -> ServerTls:
        """Return a certificate for hosts that the CA signed."""
        return self._written(self._ca.issue_cert(*hosts, not_after=expires_at))

    def expired(self, *hosts: str) -> ServerTls:
        """Return a certificate of the past."""
        return self.signed(*hosts, expires_at=datetime(2020, 1, 1, tzinfo=UTC))

    def own(self, *hosts: str) -> ServerTls:
        """Return a certificate of another CA, which nobody knows."""
        return self._written(trustme.CA().issue_cert(*hosts))

    def _written(self, made: trustme.LeafCert) -> ServerTls:
        self._n_made += 1
        files = ServerTls(
            self._folder / f"cert{self._n_made}.pem", self._folder / f"key{self._n_made}.pem"
        )
        made.private_key_pem.write_to_path(str(files.key_file))
        files.cert_file.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
        return files
