"""Who hangs and who waits, from what the beacons show."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.core.progress import Limits, Progress, View

LIMITS = Limits(floor_s=2.0, ceiling_s=60.0)
WORKING = View(step=5, phase="working", since=0.0, stopped=False)
WAITING = replace(WORKING, phase="waiting")
OUTSIDE = replace(WORKING, phase="outside")
JOINING = replace(WORKING, phase="joining")


def paced(*, step_s: float, steps: int = 10) -> Progress:
    """After so many steps of this length, seen at the end of each; the last ends at 0."""
    progress = Progress(LIMITS)
    for step in range(steps):
        at = (step - steps + 1) * step_s
        progress.judge({0: View(step, "outside", at, False)}, now=at)
    return progress


@pytest.mark.parametrize(
    ("step_s", "allowed_s"), [(0.01, 2.0), (0.1, 2.0), (0.5, 5.0), (3.0, 30.0), (7.0, 60.0), (100.0, 60.0)]
)
def test_the_time_allowed_follows_the_steps_between_a_floor_and_a_ceiling(step_s: float, allowed_s: float):
    assert paced(step_s=step_s).allowed_s() == pytest.approx(allowed_s)


def test_the_first_steps_are_given_the_ceiling():
    assert Progress(LIMITS).allowed_s() == 60.0
    assert paced(step_s=0.1, steps=3).allowed_s() == 60.0
    assert paced(step_s=0.1, steps=4).allowed_s() == 2.0


def test_a_rank_that_works_while_another_waits_is_late_when_its_time_is_up():
    progress = paced(step_s=0.1)
    views = {0: WAITING, 1: WORKING}
    assert progress.judge(views, now=1.99).late == ()
    verdict = progress.judge(views, now=2.0)
    assert verdict.late == (1,)
    assert verdict.waited_for


def test_a_rank_that_waits_is_never_late():
    assert paced(step_s=0.1).judge({0: WAITING, 1: WAITING}, now=1000.0).late == ()


def test_nobody_waits_for_ranks_that_all_work():
    verdict = paced(step_s=0.1).judge({0: WORKING, 1: WORKING}, now=1000.0)
    assert verdict.late == (0, 1)
    assert not verdict.waited_for


def test_a_rank_that_does_not_leave_an_old_world_holds_up_those_who_join_the_new_one():
    verdict = paced(step_s=0.1).judge({0: JOINING, 1: WORKING}, now=5.0)
    assert verdict.late == (1,)
    assert verdict.waited_for


@pytest.mark.parametrize("view", [WAITING, JOINING])
def test_a_rank_that_waits_in_a_world_that_is_over_is_late_soon(view: View):
    progress = paced(step_s=0.1)
    views = {0: replace(JOINING, generation=2), 1: replace(view, generation=1)}
    assert progress.judge(views, now=10.0, generation=2).late == ()
    assert progress.judge(views, now=11.9, generation=2).late == ()
    assert progress.judge(views, now=12.0, generation=2).late == (1,)
    assert progress.judge({0: OUTSIDE, 1: WORKING}, now=1.0, generation=2).late == ()


def test_outside_guarded_functions_nobody_is_judged():
    assert paced(step_s=0.1).judge({0: WAITING, 1: OUTSIDE}, now=1000.0).late == ()


@pytest.mark.parametrize("view", [WORKING, WAITING, OUTSIDE, JOINING])
def test_a_stopped_rank_is_late_wherever_it_is_counted_from_when_it_was_seen(view: View):
    progress = paced(step_s=0.1)
    stopped = replace(view, stopped=True)
    assert progress.judge({0: WAITING, 1: stopped}, now=100.0).late == ()
    assert progress.judge({0: WAITING, 1: stopped}, now=101.9).late == ()
    assert progress.judge({0: WAITING, 1: stopped}, now=102.0).late == (1,)


def test_a_rank_that_was_continued_is_judged_anew():
    progress = paced(step_s=0.1)
    stopped = replace(OUTSIDE, stopped=True)
    progress.judge({1: stopped}, now=100.0)
    progress.judge({1: OUTSIDE}, now=101.0)
    assert progress.judge({1: stopped}, now=102.5).late == ()


def test_a_section_has_its_own_time_but_not_for_standing_still():
    progress = paced(step_s=0.1)
    section = replace(WORKING, limit_s=30.0)
    assert progress.judge({0: WAITING, 1: section}, now=29.0).late == ()
    assert progress.judge({0: WAITING, 1: section}, now=30.0).late == (1,)
    stopped = replace(section, stopped=True)
    progress.judge({0: WAITING, 1: stopped}, now=31.0)
    assert progress.judge({0: WAITING, 1: stopped}, now=33.0).late == (1,)


# --- scripts without the SDK ----------------------------------------------------------------------------------

STEPPING = View(step=5, phase="stepping", since=0.0, stopped=False)


def test_while_any_rank_makes_steps_nobody_is_late():
    ahead = replace(STEPPING, step=6, since=1.5)
    assert paced(step_s=0.1).judge({0: ahead, 1: STEPPING}, now=3.4).late == ()


def test_when_no_rank_makes_steps_the_hindmost_are_late():
    ahead = replace(STEPPING, step=6, since=1.5)
    assert paced(step_s=0.1).judge({0: ahead, 1: STEPPING, 2: STEPPING}, now=3.5).late == (1, 2)
