"""The two ends of the secure channel, as contexts of `ssl`, and what its errors mean.

Both sides show a certificate, and both check it against the one authority. Names and revocations are checked by us:
OpenSSL would refuse everybody once a revocation list is due for renewal, and certificates without any name.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import ssl
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

log = logging.getLogger(__name__)

HANDSHAKE_S = 5.0
"""From the opening of a connection until both sides know each other; then it is closed."""

VERDICTS = {
    7: "is not from the authority in ca_cert_path",
    9: "is not valid yet",
    10: "has expired",
    18: "is not from the authority in ca_cert_path",
    19: "is not from the authority in ca_cert_path",
    20: "is not from the authority in ca_cert_path",
    21: "is not from the authority in ca_cert_path",
    26: "is not meant for this purpose",
}
"""By the number that OpenSSL gives the result of a verification."""

ALERTS = {
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it has expired, by the clock there",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "it is revoked",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it is not valid there",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "it is not meant for clients",
    "TLSV1_ALERT_DECRYPT_ERROR": "it is not from the authority there",
    "TLSV1_ALERT_UNKNOWN_CA": "it is not from the authority there",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "there is none",
}
NO_COMMON_GROUND = {"TLSV1_ALERT_PROTOCOL_VERSION", "SSLV3_ALERT_HANDSHAKE_FAILURE", "NO_SHARED_CIPHER"}
NOT_TLS = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Credentials:
    """What one side shows and whom it believes, as PEM: whoever has this needs neither files nor passwords."""

    certificate: str
    key: str = field(repr=False)
    authority: str
    revoked: tuple[str, ...] = ()
    """Serial numbers, as `serial` writes them."""
    crl: str | None = None
    """Where they were read, and may have been replaced meanwhile."""
    crl_changed_ns: int = 0
    """When that file had been changed last, by then."""
    ciphers: tuple[str, ...]


class UnwantedPeer(ssl.SSLCertVerificationError):
    """OpenSSL has accepted the certificate, and we do not."""

    def __init__(self, verdict: str) -> None:
        super().__init__(1, verdict)
        self.reason, self.verify_code, self.verify_message = "", 0, verdict


class Revocations:
    """Serial numbers that are not believed any more, by the list that is in its file now.

    A list that cannot be used changes nothing: the one before it goes on to count.
    """

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._serials = frozenset(credentials.revoked)
        self._changed_ns = credentials.crl_changed_ns
        self._trouble = ""

    def current(self) -> frozenset[str]:
        if (path := self._credentials.crl) is not None:
            try:
                self._renew(path)
            except (OSError, ValueError) as error:
                self._complain(f"{path} is not used: {error}; the revocations before it still count")
        return self._serials

    def _renew(self, path: str) -> None:
        if os.stat(path).st_mtime_ns == self._changed_ns:
            return
        from holdfast.wire.revocations import read_revocations

        found = read_revocations(path, authority=self._credentials.authority)
        self._serials, self._changed_ns, self._trouble = frozenset(found.serials), found.changed_ns, ""

    def _complain(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            log.warning("%s", trouble)


def server_context(credentials: Credentials, *, refused: Callable[[str], None]) -> ssl.SSLContext:
    """For the master; `refused` hears why a handshake failed. Revoked clients are the caller's to refuse."""
    context = _context(credentials, ssl.PROTOCOL_TLS_SERVER)

    class Serving(ssl.SSLObject):
        failure: ssl.SSLError | None = None

        def do_handshake(self) -> None:
            if self.failure is not None:
                raise self.failure
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError, ssl.SSLSyscallError, ssl.SSLEOFError):
                raise
            except ssl.SSLError as error:
                refused(explain(error, whose="a client's certificate"))
                if error.reason in NOT_TLS:
                    raise
                # An event loop sends nothing more once a handshake has failed, not even the alert that tells the
                # client why. So it is made to send what is there and to wait for an answer that will not come.
                self.failure = error
                raise ssl.SSLWantReadError from error

    context.sslobject_class = Serving
    return context


def client_context(credentials: Credentials, *, check_name: bool = True) -> ssl.SSLContext:
    """For whoever dials the master with an event loop; others call `check_peer` themselves."""
    context = _context(credentials, ssl.PROTOCOL_TLS_CLIENT)
    revocations = Revocations(credentials)

    class Dialling(ssl.SSLObject):
        def do_handshake(self) -> None:
            super().do_handshake()
            host = self.server_hostname if check_name else None
            check_peer(self.getpeercert() or {}, host=host, revoked=revocations.current())

    context.sslobject_class = Dialling
    return context


def check_peer(certificate: Mapping[str, Any], *, host: str | None, revoked: Collection[str]) -> None:
    """Refuse a master whose certificate is revoked, or has names, but not the one that was dialled.

    Without a host the name does not matter.
    """
    if is_revoked(certificate, revoked):
        raise UnwantedPeer("is revoked")
    names = [value for kind, value in certificate.get("subjectAltName", ()) if kind in ("DNS", "IP Address")]
    if host is not None and names and not any(_same_host(host, name) for name in names):
        raise UnwantedPeer(f"is for {', '.join(names)}, not for {host}")


def is_revoked(certificate: Mapping[str, Any], revoked: Collection[str]) -> bool:
    return serial(int(certificate.get("serialNumber", "0"), 16)) in revoked


def serial(number: int) -> str:
    return f"{number:X}"


def usable_ciphers(names: Sequence[str]) -> list[str]:
    """Those that this OpenSSL has, that authenticate by certificate, and whose keys die with the connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    usable = []
    for name in names:
        try:
            context.set_ciphers(name)
        except ssl.SSLError:
            continue
        # Others than the suites of TLS 1.3, which are always there.
        found = [suite for suite in context.get_ciphers() if suite["kea"] != "kx-any"]
        if [suite["name"] for suite in found] == [name] and (
            found[0]["kea"] == "kx-ecdhe" and found[0]["auth"] in ("auth-rsa", "auth-ecdsa")
        ):
            usable.append(name)
    return usable


def explain(error: ssl.SSLError, *, whose: str) -> str:
    """What went wrong, as the end of a sentence about the peer; `whose` is the certificate that was checked."""
    if isinstance(error, UnwantedPeer):
        return f"{whose} {error.verify_message}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{whose} {VERDICTS.get(error.verify_code) or f'is refused: {error.verify_message}'}"
    reason = error.reason or ""
    if reason in ALERTS:
        return f"it refuses this side's certificate: {ALERTS[reason]}"
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return f"{whose} is missing"
    if reason in NO_COMMON_GROUND or reason == "UNSUPPORTED_PROTOCOL":
        return "there is no version (1.2 or newer) and cipher_list that both sides have"
    if reason in NOT_TLS:
        return "it does not speak TLS"
    return reason.lower().replace("_", " ") or str(error)


def _context(credentials: Credentials, protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(":".join(credentials.ciphers))
    context.load_verify_locations(cadata=credentials.authority)
    # `ssl` reads keys from files only; this one is in memory and has no name.
    memory = os.memfd_create("holdfast-key")
    try:
        os.write(memory, f"{credentials.key}\n{credentials.certificate}".encode())
        context.load_cert_chain(f"/proc/self/fd/{memory}")
    finally:
        os.close(memory)
    return context


def _same_host(host: str, name: str) -> bool:
    try:
        return ipaddress.ip_address(host) == ipaddress.ip_address(name)
    except ValueError:
        pass
    host, name = host.lower(), name.lower()
    if name.startswith("*."):
        return host.partition(".")[2] == name[2:]
    return host == name
