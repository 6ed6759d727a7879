"""An authority of one's own, with one certificate for the master and one for the nodes."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

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
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from holdfast.spec.tls import (
    CA_CERT,
    CIPHERS,
    CLIENT_CERT,
    CRL,
    DEFAULT_WARNING_DAYS,
    SERVER_CERT,
    WARNING_DAYS,
)

AUTHORITY_LIFE = timedelta(days=3650)
CERTIFICATE_LIFE = timedelta(days=730)
CLOCK_SKEW = timedelta(hours=1)
"""Nodes whose clocks are behind must find new certificates valid already."""

THIS_MACHINE = ("localhost", "127.0.0.1", "::1")
SUITES = [
    f"ECDHE-{kind}-{cipher}"
    for cipher in ("AES256-GCM-SHA384", "AES128-GCM-SHA256", "CHACHA20-POLY1305")
    for kind in ("ECDSA", "RSA")
]


def issue(hosts: Sequence[str], *, passwords: Mapping[str, str]) -> dict[str, bytes]:
    """Every file that a configuration needs, and itself; `passwords` are those of `server` and `client`."""
    now = datetime.now(UTC)
    authority_key = ec.generate_private_key(ec.SECP256R1())
    subject = _name("Holdfast job authority")
    authority = (
        _builder(subject, subject, authority_key.public_key(), now=now, life=AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_authority_usage(), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    files = {
        "tls.json": json.dumps(_config(), indent=2).encode() + b"\n",
        "ca.crt": authority.public_bytes(Encoding.PEM),
        "ca.key": authority_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    }
    purposes = {"server": ExtendedKeyUsageOID.SERVER_AUTH, "client": ExtendedKeyUsageOID.CLIENT_AUTH}
    for role, purpose in purposes.items():
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(f"Holdfast {role}"), subject, key.public_key(), now=now, life=CERTIFICATE_LIFE)
        builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False).add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
        )
        if role == "server":
            builder = builder.add_extension(_alternatives([*hosts, *THIS_MACHINE]), critical=False)
        certificate = builder.sign(authority_key, hashes.SHA256())
        encryption = BestAvailableEncryption(passwords[role].encode())
        bundle = pkcs12.serialize_key_and_certificates(role.encode(), key, certificate, None, encryption)
        files[f"{role}.p12"] = bundle
    return files


def _config() -> dict[str, str | int]:
    return {
        SERVER_CERT: "server.p12",
        CRL: "",
        CLIENT_CERT: "client.p12",
        CA_CERT: "ca.crt",
        CIPHERS: ":".join(SUITES),
        WARNING_DAYS: DEFAULT_WARNING_DAYS,
    }


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, *, now: datetime, life: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + life)
    )


def _authority_usage() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )


def _alternatives(hosts: Sequence[str]) -> x509.SubjectAlternativeName:
    names: list[x509.GeneralName] = []
    for host in dict.fromkeys(hosts):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    return x509.SubjectAlternativeName(names)
