"""Whether wrong input is refused in one line that says what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from inference.errors import InvalidRequest


def assert_refused(asked: Callable[[], object], needed: Sequence[str]) -> None:
    """The call raises InvalidRequest, of one line with all of these words."""
    with pytest.raises(InvalidRequest) as refused:
        asked()
    line = str(refused.value)
    assert "\n" not in line
    assert all(word in line for word in needed), line
