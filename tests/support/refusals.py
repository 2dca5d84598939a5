"""Whether wrong input is refused in one line that shows the value, or the flag, that is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from inference.errors import InvalidRequest, OutriderError


def assert_refused(
    asked: Callable[[], object],
    shown: Sequence[str],
    error: type[OutriderError] = InvalidRequest,
) -> None:
    """The call raises this error, of one line with all of these words."""
    with pytest.raises(error) as refused:
        asked()
    line = str(refused.value)
    assert "\n" not in line
    assert all(word in line for word in shown), line
