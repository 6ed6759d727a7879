"""Certificates from their files: opened once, when a node starts, with every check that needs no peer.

Nothing is imported from here unless TLS is on: `cryptography` takes its time to load.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, pkcs12

from holdfast.errors import SpecError
from holdfast.spec.tls import (
    CA_CERT,
    CIPHERS,
    CLIENT_CERT,
    CLIENT_PASSWORD,
    CRL,
    SERVER_CERT,
    SERVER_PASSWORD,
    Password,
    TlsSpec,
    password_file,
)
from holdfast.wire.revocations import RevocationList, read_revocations, renewal_warnings
from holdfast.wire.tls import Credentials, serial, usable_ciphers


@dataclass(frozen=True, slots=True)
class Opened:
    """Credentials that are good now, and what has to be renewed when."""

    credentials: Credentials
    ends_at: Mapping[str, datetime]
    """Field and file of each certificate, and when it expires."""
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Bundle:
    """A PKCS#12 file, and what the configuration says of it."""

    field: str
    path: str
    password: Password | None
    variable: str


def open_server(tls: TlsSpec) -> Opened:
    return _open(tls, _Bundle(SERVER_CERT, tls.server_cert, tls.server_password, SERVER_PASSWORD), datetime.now(UTC))


def open_client(tls: TlsSpec) -> Opened:
    return _open(tls, _Bundle(CLIENT_CERT, tls.client_cert, tls.client_password, CLIENT_PASSWORD), datetime.now(UTC))


def expiry_warnings(opened: Opened, *, within_days: int, now: datetime) -> list[str]:
    """What somebody should renew. None of it ends a job that runs."""
    warnings = []
    for name, ends_at in opened.ends_at.items():
        days = (ends_at - now).days
        if days < 0:
            warnings.append(f"{name} expired on {ends_at:%Y-%m-%d}; a node that has to connect anew will be refused")
        elif days < within_days:
            warnings.append(f"{name} expires in {days} days, on {ends_at:%Y-%m-%d}")
    return warnings + renewal_warnings(opened.credentials, now=now)


def _open(tls: TlsSpec, bundle: _Bundle, now: datetime) -> Opened:
    authority = _read_authority(tls, now)
    name, path = tls.name(bundle.field), bundle.path
    certificate, key = _read_pkcs12(name, bundle)
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature) as error:
        raise SpecError(name, path, f"it must be signed by the authority in {tls.ca_cert}") from error
    _check_dates(name, path, certificate, now)
    authority_pem = authority.public_bytes(Encoding.PEM).decode()
    revocations = _read_revocations(tls, authority_pem)
    if revocations is not None and serial(certificate.serial_number) in revocations.serials:
        raise SpecError(name, path, f"this certificate is revoked by {tls.crl}; use another one")
    ciphers, dropped = _choose_ciphers(tls)
    return Opened(
        Credentials(
            certificate=certificate.public_bytes(Encoding.PEM).decode(),
            key=key,
            authority=authority_pem,
            revoked=revocations.serials if revocations is not None else (),
            crl=tls.crl,
            crl_changed_ns=revocations.changed_ns if revocations is not None else 0,
            ciphers=ciphers,
        ),
        ends_at={
            f"{bundle.field} {path}": certificate.not_valid_after_utc,
            f"{CA_CERT} {tls.ca_cert}": authority.not_valid_after_utc,
        },
        notes=(f"{tls.name(CIPHERS)}: not supported and left out: {', '.join(dropped)}",) if dropped else (),
    )


def _choose_ciphers(tls: TlsSpec) -> tuple[tuple[str, ...], list[str]]:
    usable = usable_ciphers(tls.ciphers)
    if not usable:
        valid = "none of these is supported; use ECDHE suites of TLS 1.2, as in ECDHE-ECDSA-AES256-GCM-SHA384"
        raise SpecError(tls.name(CIPHERS), ":".join(tls.ciphers), valid)
    return tuple(usable), [name for name in tls.ciphers if name not in usable]


def _read(name: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise SpecError(name, path, f"the file cannot be read: {error.strerror}") from error


def _read_pkcs12(name: str, bundle: _Bundle) -> tuple[x509.Certificate, str]:
    path, password, variable = bundle.path, bundle.password, bundle.variable
    data = _read(name, path)
    if password is None:
        valid = f"its password is needed: set {variable} or {variable}_FILE, or write it to {password_file(path)}"
        raise SpecError(name, path, valid)
    # Any DER sequence begins so; what does not was never a PKCS#12 file, whatever the password.
    if not data.startswith(b"\x30"):
        raise SpecError(name, path, "it must be a PKCS#12 file")
    try:
        held = pkcs12.load_pkcs12(data, password.text.encode())
    except UnsupportedAlgorithm as error:
        raise SpecError(name, path, f"its encryption is not supported: {error}") from error
    except ValueError as error:
        raise SpecError(name, path, f"the password from {password.source} is wrong, or the file is damaged") from error
    if held.cert is None or held.key is None:
        raise SpecError(name, path, "it must hold a certificate and its private key")
    key = held.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return held.cert.certificate, key.decode()


def _read_authority(tls: TlsSpec, now: datetime) -> x509.Certificate:
    name, path = tls.name(CA_CERT), tls.ca_cert
    try:
        found = x509.load_pem_x509_certificates(_read(name, path))
    except ValueError as error:
        raise SpecError(name, path, "it must be a certificate in PEM") from error
    if len(found) != 1:
        raise SpecError(name, path, f"it must hold one certificate, not {len(found)}")
    [authority] = found
    try:
        is_authority = authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        is_authority = False
    if not is_authority:
        raise SpecError(name, path, "it must be the certificate of an authority (CA:TRUE)")
    _check_dates(name, path, authority, now)
    return authority


def _check_dates(name: str, path: str, certificate: x509.Certificate, now: datetime) -> None:
    begins_at, ends_at = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < begins_at:
        raise SpecError(name, path, f"this certificate is not valid before {begins_at:%Y-%m-%d %H:%M} UTC")
    if now > ends_at:
        raise SpecError(name, path, f"this certificate expired on {ends_at:%Y-%m-%d %H:%M} UTC; renew it")


def _read_revocations(tls: TlsSpec, authority: str) -> RevocationList | None:
    if tls.crl is None:
        return None
    try:
        return read_revocations(tls.crl, authority=authority)
    except OSError as error:
        raise SpecError(tls.name(CRL), tls.crl, f"the file cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise SpecError(tls.name(CRL), tls.crl, str(error)) from error
