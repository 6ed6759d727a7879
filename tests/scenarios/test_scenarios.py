"""Whole stories, word for word: what is told to the core, and everything it answers.

A transcript that should change is written anew by `python tests/scenarios/transcript.py FILE`, and the difference
is read like any other change.
"""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest
from transcript import play

SCENARIOS = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_story_is_still_the_same(path):
    written = path.read_text()
    played = play(written)
    if played != written:
        lines = difflib.unified_diff(
            written.splitlines(), played.splitlines(), "as written", "as played", lineterm="", n=4
        )
        pytest.fail(f"{path.name}:\n" + "\n".join(lines), pytrace=False)


def test_there_are_stories():
    assert len(SCENARIOS) >= 5
