"""Clients without torch at targets that are killed, drained and restarted, over links that
break: every text is the target's own.
"""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from tests.storm.client import CANCELLED, FAILED, FINISHED, Job
from tests.storm.processes import Told
from tests.storm.storm import Plan, Report, judge, storm

JOB = Job(
    0,
    "",
    [1],
    [5, 6, 7, 8],
    tokens=3,
    temperature=0.0,
    seed=0,
    alone=False,
    waits=False,
    leave_at=None,
    abruptly=False,
    patience=0.0,
)


def test_a_storm_changes_no_text_and_leaves_nothing_behind() -> None:
    plan = Plan()
    report = storm(plan)
    assert report.problems == []
    assert report.finished + report.cancelled + report.killed == plan.sessions
    assert min(report.finished, report.cuts, report.killed, report.resumes, report.reopenings) > 0


def ended(how: str, said: str = "") -> dict[int, dict[str, object]]:
    return {0: {"ended": how, "said": said, "resumes": 1, "reopenings": 2}}


FOUND: dict[str, tuple[Told, int | None, str]] = {
    "another token": (Told([JOB], {0: [5, 9, 7]}, ended(FINISHED)), 0, "differs at token 1"),
    "another token of a client that left": (
        Told([JOB], {0: [4]}, ended(CANCELLED)),
        0,
        "differs at token 0",
    ),
    "another token of a client that was killed": (
        Told([JOB], {0: [5, 6, 5]}, {}, killed=True),
        -signal.SIGKILL,
        "differs at token 2",
    ),
    "a token too many": (Told([JOB], {0: [5, 6, 7, 8]}, ended(CANCELLED)), 0, "differs at token 3"),
    "a token too few": (Told([JOB], {0: [5, 6]}, ended(FINISHED)), 0, "finished after 2 of 3"),
    "an error": (
        Told([JOB], {0: [5]}, ended(FAILED, "Unavailable: gone")),
        0,
        "failed: Unavailable: gone",
    ),
    "no end": (Told([JOB], {0: [5, 6, 7]}, {}), 0, "did not end"),
    "a process that has not ended": (
        Told([JOB], {0: [5, 6, 7]}, ended(FINISHED)),
        None,
        "exited with None",
    ),
    "a process with torch": (Told([JOB], {0: [5, 6, 7]}, ended(FINISHED)), 1, "exited with 1"),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_should_not_have_been_is_found(name: str) -> None:
    told, status, problem = FOUND[name]
    report = Report()
    judge(report, told, status)
    assert len(report.problems) == 1
    assert problem in report.problems[0]


def test_sessions_are_counted_by_their_ends() -> None:
    report = Report()
    judge(report, Told([JOB], {0: [5, 6, 7]}, ended(FINISHED)), 0)
    judge(report, Told([JOB], {0: [5]}, ended(CANCELLED)), 0)
    judge(
        report,
        Told([JOB, replace(JOB, session=1)], {0: [5, 6], 1: []}, {}, killed=True),
        -signal.SIGKILL,
    )
    assert report == Report(finished=1, cancelled=1, killed=2, tokens=6, resumes=2, reopenings=4)
