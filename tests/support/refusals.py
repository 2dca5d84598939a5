"""Whether wrong input is refused in one line that shows the value, or the flag, that is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from inference.errors import InvalidRequest, OutriderError


def assert_refused(
    asked: Callable[[], object], shown: Sequence[str], error: type[OutriderError] = InvalidRequest
) -> str:
    """The call raises this error, of one line with all of these words; the line."""
    with pytest.raises(error) as refused:
        asked()
    line = str(refused.value)
    assert "\n" not in line
    assert all(word in line for word in shown), line
    return line


def assert_usage_error(
    capsys: pytest.CaptureFixture[str],
    parse: Callable[[list[str]], object],
    arguments: Sequence[str],
    shown: Sequence[str],
) -> None:
    """The command line ends with exit code 2, and one line on stderr with all of these words."""
    with pytest.raises(SystemExit) as ended:
        parse(list(arguments))
    said = capsys.readouterr()
    assert (ended.value.code, said.out) == (2, "")
    (line,) = said.err.splitlines()
    assert all(word in line for word in shown), line
