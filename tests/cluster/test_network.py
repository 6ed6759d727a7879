"""Workers listen in the network that leads to the scheduler."""

from __future__ import annotations

import os

import pytest

from holdfast.cluster import network


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.7", "::1"])
def test_a_loopback_address_is_reached_over_the_loopback_interface(host: str) -> None:
    assert network.find_interface(host, 8118) == "lo"


def test_a_user_who_has_named_an_interface_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(network.VARIABLE, "mine")
    network.use_network_towards("127.0.0.1", 8118)
    assert os.environ[network.VARIABLE] == "mine"


def test_without_a_name_the_one_that_leads_to_the_scheduler_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(network.VARIABLE, "mine")
    monkeypatch.delenv(network.VARIABLE)
    network.use_network_towards("127.0.0.1", 8118)
    assert os.environ[network.VARIABLE] == "lo"
