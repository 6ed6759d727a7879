"""The authority's list of certificates that count no more, from its file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPublicKeyTypes

from holdfast.spec.tls import CRL
from holdfast.wire.tls import Credentials, serial


@dataclass(frozen=True, slots=True)
class RevocationList:
    serials: tuple[str, ...]
    """As `serial` writes them."""
    renewal_at: datetime | None
    """When the authority has promised another one."""
    changed_ns: int
    """The file's time of change, or an older one."""


def read_revocations(path: str, *, authority: str) -> RevocationList:
    """Raises `ValueError`, with what the file must be, if the list cannot be believed."""
    # Before the content: a file that is replaced in between is then read once more.
    changed_ns = os.stat(path).st_mtime_ns
    data = Path(path).read_bytes()
    try:
        found = x509.load_pem_x509_crl(data) if data.startswith(b"-----") else x509.load_der_x509_crl(data)
    except ValueError as error:
        raise ValueError("it must be a revocation list in PEM or DER") from error
    issuer = x509.load_pem_x509_certificate(authority.encode())
    key: CertificateIssuerPublicKeyTypes = issuer.public_key()  # type: ignore[assignment]
    if found.issuer != issuer.subject or not found.is_signature_valid(key):
        raise ValueError("it must be signed by the authority in ca_cert_path")
    if found.last_update_utc > datetime.now(UTC):
        raise ValueError(f"it is not valid before {found.last_update_utc:%Y-%m-%d %H:%M} UTC")
    return RevocationList(tuple(serial(entry.serial_number) for entry in found), found.next_update_utc, changed_ns)


def renewal_warnings(credentials: Credentials, *, now: datetime) -> list[str]:
    """Of the list that is in the file now; whoever cannot use it says so when it should be used."""
    if credentials.crl is None:
        return []
    try:
        due = read_revocations(credentials.crl, authority=credentials.authority).renewal_at
    except (OSError, ValueError):
        return []
    if due is None or due > now:
        return []
    return [f"{CRL} {credentials.crl} was to be renewed by {due:%Y-%m-%d}; it is used as it is"]
