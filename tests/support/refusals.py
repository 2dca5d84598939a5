"""Whether wrong input is refused in one line that shows the value, or the flag, that is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from inference.errors import InvalidRequest, OutriderError


def assert_refused(
    call: Callable[[], object], facts: Sequence[str], error: type[OutriderError] = InvalidRequest
) -> str:
    """The call raises this error, of one line with all of these names and numbers; the line."""
    with pytest.raises(error) as refusal:
        call()
    line = str(refusal.value)
    assert "\n" not in line
    assert all(fact in line for fact in facts), line
    return line


def assert_usage_error(
    capsys: pytest.CaptureFixture[str],
    parse: Callable[[list[str]], object],
    arguments: Sequence[str],
    facts: Sequence[str],
) -> None:
    """The command line ends with exit code 2, and one line on stderr with all of these facts."""
    with pytest.raises(SystemExit) as end:
        parse(list(arguments))
    printed = capsys.readouterr()
    assert (end.value.code, printed.out) == (2, "")
    (line,) = printed.err.splitlines()
    assert all(fact in line for fact in facts), line
