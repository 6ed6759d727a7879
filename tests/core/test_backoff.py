"""Delays double up to a limit, each drawn from the upper half of its step."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.backoff import Backoff


def test_the_step_doubles_until_the_limit():
    backoff = Backoff(first_s=0.1, most_s=0.5)
    assert [backoff.delay_s(attempt, draw=1.0) for attempt in range(5)] == [0.1, 0.2, 0.4, 0.5, 0.5]


def test_the_draw_takes_away_at_most_half():
    assert Backoff(first_s=1.0, most_s=8.0).delay_s(2, draw=0.0) == 2.0


@given(attempt=st.integers(0, 10_000), draw=st.floats(0.0, 1.0, exclude_max=True))
def test_every_delay_is_within_bounds(attempt, draw):
    backoff = Backoff()
    assert backoff.first_s / 2 <= backoff.delay_s(attempt, draw=draw) <= backoff.most_s
