"""The secure channel as the user asked for it: the file of `--tls-config`, and the passwords of its certificates.

Nothing is opened here but that file and the passwords' files; certificates are the business of `wire`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.errors import JobError, SpecError

FLAG = "--tls-config"
CONFIG = "HOLDFAST_TLS_CONFIG"
SERVER_PASSWORD = "HOLDFAST_TLS_SERVER_PASSWORD"
CLIENT_PASSWORD = "HOLDFAST_TLS_CLIENT_PASSWORD"
SECRET_VARIABLES = frozenset({SERVER_PASSWORD, CLIENT_PASSWORD})
"""Variables that workers do not get."""

SERVER_CERT, CLIENT_CERT, CA_CERT, CRL = "server_cert_path", "client_cert_path", "ca_cert_path", "crl_path"
CIPHERS, WARNING_DAYS = "cipher_list", "cert_expire_warning_time_in_day"
FIELDS = (SERVER_CERT, CRL, CLIENT_CERT, CA_CERT, CIPHERS, WARNING_DAYS)
DEFAULT_WARNING_DAYS = 90
LEAST_WARNING_DAYS, MOST_WARNING_DAYS = 7, 180


@dataclass(frozen=True, slots=True)
class Password:
    """A password that no representation shows, and where it came from."""

    text: str = field(repr=False)
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TlsSpec:
    """Both ends of the channel; a node uses the server's only if it runs the master."""

    config: str
    server_cert: str
    client_cert: str
    ca_cert: str
    crl: str | None
    ciphers: tuple[str, ...]
    """As written; which of them exist is not known here."""
    warning_days: int = DEFAULT_WARNING_DAYS
    """A certificate that ends sooner than this is warned of, when the job starts and once a day."""
    server_password: Password | None = None
    client_password: Password | None = None

    def name(self, field_name: str) -> str:
        """How errors call a field."""
        return f"{self.config}: {field_name}"


def find_tls(
    given: str | None, env: Mapping[str, str] | None = None, *, source: str = FLAG
) -> tuple[TlsSpec | None, list[str]]:
    """The channel that the flag, or else the variable, names; None where TLS is off. And notes for the user."""
    env = os.environ if env is None else env
    if given is None:
        given, source = env.get(CONFIG) or None, CONFIG
    return (None, []) if given is None else _load(given, source=source, env=env)


def remember_tls(config: str, *, server_password: str, client_password: str) -> None:
    """Turn the channel on for whatever this process starts from now on."""
    os.environ[CONFIG] = os.path.abspath(config)
    for name, value in ((SERVER_PASSWORD, server_password), (CLIENT_PASSWORD, client_password)):
        if value:
            os.environ[name] = value


def forget_tls() -> None:
    for name in (CONFIG, SERVER_PASSWORD, CLIENT_PASSWORD):
        os.environ.pop(name, None)


def require_tls(config: str) -> None:
    """For workers, which are told by the variable whether their job has the channel."""
    if not os.environ.get(CONFIG):
        raise JobError(f"this job runs without TLS: start it with {FLAG} {config}, or set {CONFIG}")


def given_password(variable: str, env: Mapping[str, str] | None = None) -> Password | None:
    """From the variable, or the file that its companion names."""
    env = os.environ if env is None else env
    if text := env.get(variable):
        return Password(text, variable)
    path = env.get(f"{variable}_FILE")
    return _read_password(Path(path), source=f"{variable}_FILE") if path else None


def password_file(certificate: str) -> Path:
    """Where the password of a PKCS#12 file is looked for if nobody says."""
    return Path(certificate).with_suffix(".password")


def _usual_password(certificate: str) -> Password | None:
    path = password_file(certificate)
    return _read_password(path, source=str(path)) if path.exists() else None


def _read_password(path: Path, *, source: str) -> Password:
    try:
        text = path.read_text().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(source, str(path), f"it cannot be read: {error}") from error
    if not text:
        raise SpecError(source, str(path), "the file is empty")
    return Password(text, source)


def _load(path: str, *, source: str, env: Mapping[str, str]) -> tuple[TlsSpec, list[str]]:
    path = os.path.abspath(path)
    fields = _read_fields(path, source=source)
    server_cert, client_cert = _path(fields, SERVER_CERT, path), _path(fields, CLIENT_CERT, path)
    spec = TlsSpec(
        config=path,
        server_cert=server_cert,
        client_cert=client_cert,
        ca_cert=_path(fields, CA_CERT, path),
        crl=_path(fields, CRL, path) if fields.get(CRL) else None,
        ciphers=tuple(name for name in "".join(_text(fields, CIPHERS, path).split()).split(":") if name),
        warning_days=_warning_days(fields, path),
        server_password=given_password(SERVER_PASSWORD, env) or _usual_password(server_cert),
        client_password=given_password(CLIENT_PASSWORD, env) or _usual_password(client_cert),
    )
    return spec, [f"{path}: {name} does nothing here" for name in fields if name not in FIELDS]


def _read_fields(path: str, *, source: str) -> dict[str, Any]:
    try:
        fields = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise SpecError(source, path, f"it cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise SpecError(source, path, f"it must be a JSON file: {error}") from error
    if not isinstance(fields, dict):
        raise SpecError(source, path, f"it must hold a JSON object with {', '.join(FIELDS)}")
    return fields


def _text(fields: Mapping[str, Any], name: str, config: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise SpecError(f"{config}: {name}", value, "it must be there, and be a text that is not empty")
    return value


def _path(fields: Mapping[str, Any], name: str, config: str) -> str:
    """Relative to the configuration, so that the directory can be copied as it is."""
    return os.path.join(os.path.dirname(config), _text(fields, name, config))


def _warning_days(fields: Mapping[str, Any], config: str) -> int:
    days = fields.get(WARNING_DAYS, DEFAULT_WARNING_DAYS)
    if type(days) is not int or not LEAST_WARNING_DAYS <= days <= MOST_WARNING_DAYS:
        valid = f"it must be a whole number of days from {LEAST_WARNING_DAYS} to {MOST_WARNING_DAYS}"
        raise SpecError(f"{config}: {WARNING_DAYS}", days, valid)
    return days
