"""Fixtures of this room."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.scratch_host import build_wheel


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Outrider's wheel, which takes seconds to build."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))
