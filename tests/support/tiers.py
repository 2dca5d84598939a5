"""Options of pytest that choose and order tests: by measured seconds, or at random.

    --below N          leave out files that took N or more seconds, unread
    --measure FILE     write the seconds of each file, and print the dearest tests
    --shuffle SEED     files in a random order, and the tests of each

Seconds are the processor's, those of ended child processes included: a busy machine changes them
little. tests/seconds.json has those of the last measured run.
"""

from __future__ import annotations

import json
import random
import resource
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.repository import ROOT

SECONDS = ROOT / "tests" / "seconds.json"
DEAREST = 20


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("tiers")
    group.addoption("--below", type=float, help="leave out files that took as many seconds")
    group.addoption("--measure", type=Path, help="write each file's seconds of the processor here")
    group.addoption("--shuffle", type=int, help="seed of a random order")


def is_dear(path: Path, config: pytest.Config) -> bool:
    """Whether a file took at least as long as --below says. A new file did not."""
    below: float | None = config.getoption("--below")
    return below is not None and _measured().get(name_of(path), 0.0) >= below


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


_known: dict[str, float] = {}


def _measured() -> dict[str, float]:
    if not _known and SECONDS.exists():
        _known.update(json.loads(SECONDS.read_text(encoding="utf-8")))
    return _known


def shuffle(items: list[pytest.Item], seed: int) -> None:
    """Order files at random, and the tests of each, which share its fixtures."""
    files: defaultdict[Path, list[pytest.Item]] = defaultdict(list)
    for item in items:
        files[item.path].append(item)
    dice = random.Random(seed)
    order = sorted(files)
    dice.shuffle(order)
    for path in order:
        dice.shuffle(files[path])
    items[:] = [item for path in order for item in files[path]]


class Meter:
    """Takes the seconds of each test where it runs, and adds them up where pytest was started."""

    def __init__(self, config: pytest.Config) -> None:
        self._config, self._before = config, _processor_seconds()
        self._tests = Counter[str]()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        report = yield
        now = _processor_seconds()
        report.processor_seconds = now - self._before
        self._before = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._tests[report.nodeid] += getattr(report, "processor_seconds", 0.0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        into: Path = self._config.getoption("--measure")
        files = Counter[str]()
        for test, seconds in self._tests.items():
            files[test.partition("::")[0]] += seconds
        whole = json.loads(into.read_text(encoding="utf-8")) if into.exists() else {}
        whole |= {file: round(seconds, 1) for file, seconds in files.items()}
        whole = {file: taken for file, taken in whole.items() if (ROOT / file).exists()}
        into.write_text(json.dumps(whole, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        write = terminalreporter.write_line
        write(f"{sum(files.values()):.0f} s of the processor in tests; the dearest:")
        for test, seconds in self._tests.most_common(DEAREST):
            write(f"{seconds:7.1f} s  {test[:100]}")


def _processor_seconds() -> float:
    """Of this process and of its children that ended."""
    uses = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(use.ru_utime + use.ru_stime for use in uses)
