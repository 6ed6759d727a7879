"""Every experiment fails without its repair, as it must."""

from __future__ import annotations

from pathlib import Path

import pytest
from playing import TO_THE_END, expect_as_it_must

from holdfast.chaos.experiment_file import names

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("name", [name for name in names() if name not in TO_THE_END])
def test_it_fails_without_the_repair(name: str, tmp_path: Path) -> None:
    expect_as_it_must(name, tmp_path, negative=True)
