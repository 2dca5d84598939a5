"""Options of pytest that choose and order tests: by measured seconds, or at random.

    --below N          leave out files that took N or more seconds, unread
    -m "not extended"  leave out files of the slower tier, unread
    --measure FILE     write the seconds of each file, and print the dearest tests
    --shuffle SEED     files in a random order, and the tests of each

Seconds are the processor's, those of ended child processes included: a busy machine changes them
little. tests/seconds.json has those of the last measured run.

Property tests try the same examples in every run. EXAMPLES=N draws anew, and N times as many; a
failure prints the line that repeats it.
"""

from __future__ import annotations

import json
import os
import random
import re
import resource
from collections import defaultdict
from collections.abc import Generator, Sequence
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.support.repository import ROOT

SECONDS = ROOT / "tests" / "seconds.json"
DEAREST = 20
QUICKER = ("not extended", "not slow and not extended")
EXTENDED = re.compile(r"^pytestmark = .*\bextended\b", re.MULTILINE)


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("tiers")
    group.addoption("--below", type=float, help="leave out files that took as many seconds")
    group.addoption("--measure", type=Path, help="write each file's seconds of the processor here")
    group.addoption("--shuffle", type=int, help="seed of a random order")


def is_of_slower_tier(path: Path, config: pytest.Config) -> bool:
    """Whether a file's line `pytestmark = ...` says so, where only other tiers run."""
    return config.getoption("-m") in QUICKER and bool(EXTENDED.search(path.read_text("utf-8")))


def is_dear(path: Path, config: pytest.Config) -> bool:
    """Whether a file took at least as long as --below says. A new file did not."""
    below: float | None = config.getoption("--below")
    return below is not None and _measured().get(path.relative_to(ROOT).as_posix(), 0.0) >= below


@cache
def _measured() -> dict[str, float]:
    """Seconds of each file that was measured."""
    whole: dict[str, float] = json.loads(SECONDS.read_text(encoding="utf-8"))
    return whole


def thin_products(items: list[pytest.Item]) -> None:
    """Of tests with the mark `covering`, leave so many cases that any values of so many parameters
    are together in one of them.
    """
    cases: defaultdict[tuple[str, int], list[pytest.Function]] = defaultdict(list)
    for item in items:
        mark = item.get_closest_marker("covering")
        if mark and isinstance(item, pytest.Function):
            cases[item.nodeid.partition("[")[0], mark.args[0]].append(item)
    dropped = set[pytest.Item]()
    for (_, count), same in cases.items():
        covered = set[Any]()
        for is_slower in (False, True):  # so that the quicker tier lacks no value that it can have
            group = [item for item in same if is_slower is _is_extended(item)]
            values = [_together(item, count) - covered for item in group]
            chosen = _covering(values)
            dropped |= {item for number, item in enumerate(group) if number not in chosen}
            covered = covered.union(*values)
    items[:] = (item for item in items if item not in dropped)


def _is_extended(item: pytest.Function) -> bool:
    return item.get_closest_marker("extended") is not None


def _together(item: pytest.Function, count: int) -> set[tuple[tuple[str, int], ...]]:
    """Each so many of its parameters, with the identities of their values, which cases share."""
    values = sorted((name, id(value)) for name, value in item.callspec.params.items())
    return {*combinations(values, count)}


def _covering(cases: Sequence[set[Any]]) -> set[int]:
    """Numbers of cases that have, together, all that the cases have: few, if not the fewest. They
    are looked at in an order that is random and always the same, so that they differ in all values.
    """
    left, chosen = set[Any]().union(*cases), set[int]()
    order = random.Random(0).sample(range(len(cases)), len(cases))
    for new in range(max(map(len, cases), default=0), 0, -1):
        for number in order:
            if len(cases[number] & left) >= new:
                chosen.add(number)
                left -= cases[number]
    return chosen


def drop_impossible(items: list[pytest.Item]) -> None:
    """Leave out cases for which `possible`, a test's mark, says no of the values by their names."""

    def is_possible(item: pytest.Item) -> bool:
        return not isinstance(item, pytest.Function) or all(
            mark.args[0](**{name: item.callspec.params[name] for name in mark.args[1:]})
            for mark in item.iter_markers("possible")
        )

    items[:] = filter(is_possible, items)


def shuffle(items: list[pytest.Item], seed: int) -> None:
    """Order files at random, and the tests of each, which share its fixtures."""
    dice = random.Random(seed)
    places = {path: dice.random() for path in sorted({item.path for item in items})}
    items.sort(key=lambda item: (places[item.path], dice.random()))


class Meter:
    """Takes the seconds of each test where it runs, and adds them up where pytest was started."""

    def __init__(self, config: pytest.Config) -> None:
        self._config, self._tests = config, defaultdict[str, float](float)
        self._before = 0.0

    def pytest_collection_finish(self) -> None:
        self._before = _processor_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, Any, Any]:
        report = yield
        now = _processor_seconds()
        report.processor_seconds = now - self._before
        self._before = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._tests[report.nodeid] += getattr(report, "processor_seconds", 0.0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        into: Path = self._config.getoption("--measure")
        files = defaultdict[str, float](float)
        for test, seconds in self._tests.items():
            files[test.partition("::")[0]] += seconds
        whole = json.loads(into.read_text(encoding="utf-8")) if into.exists() else {}
        whole |= {file: round(seconds, 1) for file, seconds in files.items()}
        whole = {file: taken for file, taken in whole.items() if (ROOT / file).exists()}
        into.write_text(json.dumps(whole, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        write = terminalreporter.write_line
        write(f"{sum(files.values()):.0f} s of the processor in tests; the dearest:")
        for test, seconds in sorted(self._tests.items(), key=lambda one: -one[1])[:DEAREST]:
            write(f"{seconds:7.1f} s  {test[:100]}")


def _processor_seconds() -> float:
    """Of this process and of its children that ended."""
    uses = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(use.ru_utime + use.ru_stime for use in uses)


TIMES = int(os.environ.get("EXAMPLES", "0"))


def examples(count: int) -> int:
    """The examples of a test that tries so many in the ordinary run."""
    return count * max(TIMES, 1)


def load_profile() -> None:
    """Set what holds for each property test. A busy machine is no failure: there is no deadline."""
    hypothesis.settings.register_profile(
        "outrider",
        deadline=None,
        derandomize=not TIMES,
        max_examples=examples(100),
        print_blob=True,
    )
    hypothesis.settings.load_profile("outrider")
