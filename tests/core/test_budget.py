"""Failures are counted within a sliding window."""

from __future__ import annotations

from holdfast.core.budget import Budget


def test_the_limit_is_the_number_of_failures_forgiven():
    budget = Budget(2, window_s=100.0)
    assert [budget.spend(now=1.0) for _ in range(3)] == [True, True, False]


def test_a_refused_failure_is_not_counted():
    budget = Budget(1, window_s=100.0)
    assert budget.spend(now=0.0)
    assert not budget.spend(now=50.0)
    assert budget.spend(now=100.0)


def test_a_failure_is_forgiven_exactly_one_window_later():
    budget = Budget(1, window_s=10.0)
    budget.spend(now=5.0)
    assert budget.used(now=14.999) == 1
    assert budget.used(now=15.0) == 0


def test_no_restarts_means_none():
    assert not Budget(0, window_s=10.0).spend(now=0.0)
