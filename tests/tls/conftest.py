from __future__ import annotations

from pathlib import Path

import pytest
from certs import Files


@pytest.fixture
def tls(tmp_path: Path) -> Files:
    return Files(tmp_path / "tls")
