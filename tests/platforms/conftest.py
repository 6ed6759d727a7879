"""The platforms that a test can ask for."""

from __future__ import annotations

import pytest
from watched import why_not_apart


@pytest.fixture(params=["fake", "plain", "apart"])
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "apart" and (reason := why_not_apart()):
        pytest.skip(reason)
    return request.param


@pytest.fixture
def apart() -> str:
    if reason := why_not_apart():
        pytest.skip(reason)
    return "apart"
