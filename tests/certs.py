"""Authorities and certificates for the tests, good ones and bad ones."""

from __future__ import annotations

import ipaddress
import json
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import NameOID

from holdfast.spec.tls import find_tls
from holdfast.wire.certificates import open_client
from holdfast.wire.tls import client_context

SERVER_PASSWORD, CLIENT_PASSWORD = "sesame-of-the-server", "sesame-of-the-client"
PASSWORDS = {"HOLDFAST_TLS_SERVER_PASSWORD": SERVER_PASSWORD, "HOLDFAST_TLS_CLIENT_PASSWORD": CLIENT_PASSWORD}
SEED_CIPHERS = (
    "ECDHE-R SA-AES128-GCM-SHA256:ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES256-GCM-SHA384:"
    "ECDHE-ECDSA-AES256-GCM-SHA384:DHE-RSA-AES128-GCM-SHA256:DHE-DSS-AES128-GCM-SHA256:DHE-RSA-AES256-GCM-SHA384:"
    "DHE-DSS-AES256-GCM-SHA384:DHE-PSK-AES128-GCM-SHA256:DHE-PSK-AES256-GCM-SHA384:DHE-PSK-CHACHA20-POLY1305:"
    "ECDHE-RSA-CHACHA20-POLY1305:ECDHE-PSK-CHACHA20-POLY1305:DHE-RSA-AES128-CCM:DHE-RSA-AES256-CCM:"
    "DHE-RSA-CHACHA20-POLY1305:DHE-PSK-AES128-CCM:DHE-PSK-AES256-CCM:ECDHE-ECDSA-AES128-CCM:ECDHE-ECDSA-AES256-CCM:"
    "ECDHE-ECDSA-CHACHA20-POLY1305"
)
"""The list of MindSpore's manual, with its stray blank."""
CIPHERS = "ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-ECDSA-AES128-GCM-SHA256"


def in_days(days: float) -> datetime:
    return datetime.now(UTC) + timedelta(days=days)


@dataclass
class Authority:
    """Signs certificates and revocation lists; days count from now."""

    days: tuple[float, float] = (-1, 3650)
    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    is_authority: bool = True

    def __post_init__(self) -> None:
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "an authority for tests")])
        self.certificate = (
            self._builder(self.name, self.key, self.days)
            .add_extension(x509.BasicConstraints(ca=self.is_authority, path_length=None), critical=True)
            .sign(self.key, hashes.SHA256())
        )

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    def issue(
        self, path: Path, *, password: str, names: Sequence[str] = (), days: tuple[float, float] = (-1, 365)
    ) -> int:
        """Write a PKCS#12 file; returns the serial number."""
        key, certificate = self._sign(path.stem, names, days)
        encryption = BestAvailableEncryption(password.encode())
        path.write_bytes(pkcs12.serialize_key_and_certificates(None, key, certificate, None, encryption))
        return certificate.serial_number

    def issue_pem(self, path: Path, *, days: tuple[float, float] = (-1, 365)) -> Path:
        """Write a certificate and its key as PEM, for clients that are not ours."""
        key, certificate = self._sign(path.stem, (), days)
        bare = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        path.write_bytes(bare + certificate.public_bytes(Encoding.PEM))
        return path

    def revoke(self, path: Path, serials: Sequence[int], *, days: tuple[float, float] = (-1, 30)) -> None:
        builder = x509.CertificateRevocationListBuilder().issuer_name(self.name)
        builder = builder.last_update(in_days(days[0])).next_update(in_days(days[1]))
        for number in serials:
            entry = x509.RevokedCertificateBuilder().serial_number(number).revocation_date(in_days(-1))
            builder = builder.add_revoked_certificate(entry.build())
        path.write_bytes(builder.sign(self.key, hashes.SHA256()).public_bytes(Encoding.PEM))

    def _sign(
        self, name: str, names: Sequence[str], days: tuple[float, float]
    ) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), key, days)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName([_general(name) for name in names]), False)
        return key, builder.sign(self.key, hashes.SHA256())

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, days: tuple[float, float]
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(in_days(days[0]))
            .not_valid_after(in_days(days[1]))
        )


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


class Files:
    """The files of a job with TLS, in one directory; each of them can be replaced by a worse one."""

    def __init__(self, directory: Path, authority: Authority | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.authority = authority or Authority()
        self.fields: dict[str, Any] = {
            "server_cert_path": "server.p12",
            "crl_path": "",
            "client_cert_path": "client.p12",
            "ca_cert_path": "ca.crt",
            "cipher_list": CIPHERS,
            "cert_expire_warning_time_in_day": 90,
        }
        (directory / "ca.crt").write_bytes(self.authority.pem)
        self.authority.issue(directory / "server.p12", password=SERVER_PASSWORD)
        self.client_serial = self.authority.issue(directory / "client.p12", password=CLIENT_PASSWORD)
        self.write()

    @property
    def config(self) -> str:
        return str(self.directory / "tls.json")

    def write(self, **fields: object) -> str:
        self.fields |= fields
        Path(self.config).write_text(json.dumps(self.fields))
        return self.config

    def without(self, name: str) -> str:
        del self.fields[name]
        return self.write()

    def revoke(self, *serials: int, **options: Any) -> str:
        self.authority.revoke(self.directory / "crl.pem", serials, **options)
        return self.write(crl_path="crl.pem")

    def client(self) -> ssl.SSLContext:
        """As a person's program would have it."""
        tls, _ = find_tls(self.config, PASSWORDS)
        assert tls is not None
        return client_context(open_client(tls).credentials)
