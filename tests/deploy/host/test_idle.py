"""When a host counts as idle, by what its target's metrics say."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.host.idle import Activity, Idleness, idleness, main
from grpc_comm.observability.endpoint import serve_metrics
from grpc_comm.observability.metrics import Metrics
from grpc_comm.transport import Address
from tests.support.hand_streams import counted
from tests.support.wire_fixtures import connected, eventually, free_port, opened, successor_engine

AT_ONCE = "1e-9"
"""Minutes after which a second look finds a target idle."""


SEEN = Idleness(100.0, ended=3)


@pytest.mark.parametrize(
    ("before", "activity", "after"),
    [
        (None, Activity(open=0, ended=3), Idleness(160.0, 3)),
        (SEEN, Activity(open=0, ended=3), SEEN),
        (SEEN, Activity(open=2, ended=3), Idleness(160.0, 3)),
        (SEEN, Activity(open=0, ended=4), Idleness(160.0, 4)),  # a session between two looks
        (SEEN, None, SEEN),
        (SEEN, Activity(open=0, ended=0), Idleness(100.0, 0)),  # the target restarted
    ],
)
def test_idle_time_begins_when_the_last_session_is_seen(
    before: Idleness | None, activity: Activity | None, after: Idleness
) -> None:
    assert idleness(before, activity, 160.0) == after


def test_a_host_is_idle_before_and_after_a_session_and_not_while_it_is_open(tmp_path: Path) -> None:
    target = Metrics()
    with (
        connected(successor_engine(), metrics=target) as connection,
        serve_metrics(target, Address("127.0.0.1", 0)) as metrics,
    ):
        words = [AT_ONCE, str(metrics.port), str(tmp_path / "idle")]
        assert [main(words), main(words)] == [1, 0]
        session = opened(connection)
        assert [main(words), main(words)] == [1, 1]
        session.close()
        eventually(lambda: counted(target, "outrider_sessions_ended_total", reason="closed") == 1)
        assert [main(words), main(words)] == [1, 0]


def test_a_spoilt_file_of_what_was_seen_starts_the_time_anew(tmp_path: Path) -> None:
    state = tmp_path / "idle"
    state.write_text("{")
    words = [AT_ONCE, str(free_port()), str(state)]
    assert [main(words), main(words)] == [1, 0]
