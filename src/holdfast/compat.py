"""Functions that scripts know from elsewhere, with the same names and arguments."""

from __future__ import annotations

import os

from holdfast.errors import SpecError
from holdfast.spec.tls import CLIENT_PASSWORD, SERVER_PASSWORD, find_tls, forget_tls, remember_tls, require_tls
from holdfast.spec.worker import load_worker


def set_ps_context(
    *, config_file_path: str = "", enable_ssl: bool = False, client_password: str = "", server_password: str = ""
) -> None:
    """MindSpore's switch for the secure channel: on, or off, for every job that this process starts from now on.

    The certificates are checked at once; the server's only where its file is, since only the master needs it, and will
    say so. In a worker the channel exists already; there the call only makes sure that it is secure.
    """
    if load_worker().agent is not None:
        if enable_ssl:
            require_tls(config_file_path)
        return
    if not enable_ssl:
        forget_tls()
        return
    if not config_file_path:
        raise SpecError("config_file_path", config_file_path, "it must name the JSON file with the certificates")
    passwords = {CLIENT_PASSWORD: client_password, SERVER_PASSWORD: server_password}
    _check(config_file_path, passwords)
    remember_tls(config_file_path, server_password=server_password, client_password=client_password)


def _check(config: str, passwords: dict[str, str]) -> None:
    from holdfast.wire.certificates import open_client, open_server

    tls, _ = find_tls(config, passwords, source="config_file_path")
    assert tls is not None, "a configuration is given"
    open_client(tls)
    if tls.server_password is not None and os.path.exists(tls.server_cert):
        open_server(tls)
