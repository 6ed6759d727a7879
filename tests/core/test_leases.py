"""A lease runs out one length after its holder was last heard, on the receiver's clock."""

from __future__ import annotations

import math

from holdfast.core.leases import Leases


def test_a_lease_lasts_until_its_deadline_and_not_at_it():
    leases = Leases(5.0)
    leases.renew("a", now=1.0)
    assert leases.expired(now=5.999) == []
    assert leases.expired(now=6.0) == ["a"]


def test_hearing_from_the_holder_starts_it_anew():
    leases = Leases(5.0)
    leases.renew("a", now=0.0)
    leases.renew("a", now=4.0)
    assert leases.expired(now=8.9) == []
    assert leases.next_deadline() == 9.0


def test_the_longest_dead_comes_first_and_names_break_ties():
    leases = Leases(1.0)
    for holder, now in (("c", 2.0), ("b", 1.0), ("a", 2.0)):
        leases.renew(holder, now=now)
    assert leases.expired(now=10.0) == ["b", "a", "c"]


def test_what_is_dropped_never_expires():
    leases = Leases(1.0)
    leases.renew("a", now=0.0)
    leases.drop("a")
    leases.drop("never there")
    assert leases.expired(now=9.0) == []
    assert leases.next_deadline() is None


def test_silence_counts_from_the_last_that_was_heard():
    leases = Leases(5.0)
    leases.renew("a", now=0.0)
    leases.renew("a", now=1.0)
    assert leases.silence_s("a", now=9.0) == 8.0


def test_a_lease_without_end_never_runs_out():
    leases = Leases(math.inf)
    leases.renew("a", now=0.0)
    assert not leases.expired(now=1e9)
    assert leases.next_deadline() == math.inf


def test_a_restarted_master_grants_every_lease_afresh():
    leases = Leases(5.0)
    leases.renew("a", now=0.0)
    leases.renew("b", now=3.0)
    leases.renew_all(now=100.0)
    assert leases.expired(now=104.9) == []
    assert leases.expired(now=105.0) == ["a", "b"]
