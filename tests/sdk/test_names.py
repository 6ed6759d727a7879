"""Lookups of names that nobody is asked for."""

from __future__ import annotations

import socket
import threading

import pytest

from holdfast.wire.names import without_names

NAMELESS = ("127.1.2.3", 1)


def test_an_address_has_no_name_and_that_is_no_failure() -> None:
    found = without_names(lambda: socket.getnameinfo(NAMELESS, socket.NI_NUMERICSERV))
    assert found == (NAMELESS[0], str(NAMELESS[1]))


def test_names_in_files_are_found() -> None:
    assert without_names(lambda: socket.gethostbyname("localhost")) == "127.0.0.1"


def test_an_error_is_raised_where_the_call_was() -> None:
    with pytest.raises(ZeroDivisionError):
        without_names(lambda: 1 // 0)


def test_names_are_looked_up_in_vain_also_when_nobody_waits_any_more() -> None:
    given_up, found = threading.Event(), threading.Event()

    def look_up_late() -> None:
        given_up.wait()
        socket.getnameinfo(NAMELESS, socket.NI_NUMERICSERV)
        found.set()

    with pytest.raises(InterruptedError):
        without_names(look_up_late, check=interrupt)
    given_up.set()
    assert found.wait(3), "a lookup without an answer takes five seconds"


def interrupt() -> None:
    raise InterruptedError
