"""The operator's view of sessions and of the last minute, on a terminal and in a file."""

from __future__ import annotations

import io
import threading
from urllib.request import urlopen

import pytest
from rich.console import Console

from grpc_comm.observability.dashboard import (
    WINDOW_SECONDS,
    Dashboard,
    Recent,
    Totals,
    Window,
    as_line,
    as_table,
)
from grpc_comm.observability.statistics import Statistics
from inference.engine.events import Forward
from outrider.options.roles import TargetRole
from outrider.target.observing import observed
from tests.support.clock import Clock
from tests.support.observed import MODEL, TENANT, Service, log_as_before

WAIT = 10.0


def console(terminal: bool) -> Console:
    return Console(
        file=io.StringIO(), force_terminal=terminal, width=160, color_system=None, record=True
    )


def drawn(watch: Dashboard) -> str:
    paper = console(terminal=False)
    paper.print(as_table(watch.view()))
    return paper.export_text()


def busy_watch(clock: Clock, usd_per_hour: float | None = None) -> tuple[Dashboard, Service]:
    """Two sessions; the first made four tokens from five candidates."""
    watch = Dashboard(console(terminal=False), statistics := Statistics(), usd_per_hour, clock)
    service = Service(statistics)
    session = service.open([1, 2, 3, 13])
    service.ask(session, [14, 15, 16, 99, 98], [0, 1, 2, 0, 3])
    service.open([4, 5], session_id="", tenant="")
    return watch, service


def test_sessions_are_listed_with_their_key_length_acceptance_and_state() -> None:
    rows = [line.split() for line in drawn(busy_watch(Clock(0.0))[0]).splitlines()[-2:]]
    *name, first_model, second_model, tokens, acceptance, _, state = rows[0]
    assert (name, [first_model, second_model], tokens, acceptance, state) == (
        ["01234567", TENANT],
        MODEL.split(),
        "8",
        "4.00",
        "waiting",
    )
    assert rows[1] == ["#2", *MODEL.split(), "2", "-", "-", "waiting"]


def test_totals_are_of_the_time_that_passed() -> None:
    clock = Clock(0.0)
    watch, _ = busy_watch(clock)
    clock.now = 8.0
    said = as_line(watch.view())
    assert "sessions 2, rows held 2 of 4, in line 0" in said
    assert "last 8 s: 0.5 tokens/s, acceptance length 4.00" in said
    # Forwards: prompts of 3 and of 1 token, one tree of 6 nodes; each computed as 2 rows of 8
    # nodes.
    assert "batch 1.0 rows 3.3 nodes, padding 79%, 0.4 forwards/s" in said
    assert "$" not in said


def test_dollars_are_the_price_of_the_time_for_the_tokens_made_in_it() -> None:
    clock = Clock(0.0)
    watch, _ = busy_watch(clock, usd_per_hour=3.6)
    clock.now = 8.0
    # 3.6 dollars an hour are 0.001 a second: 0.008 for 4 tokens.
    price = "$2000.00 per million tokens at $3.6 an hour, idle time included"
    assert price in as_line(watch.view())
    assert price in drawn(watch)


def test_what_is_older_than_the_window_is_forgotten() -> None:
    window = Window(now=0.0)
    window.add(10.0, Totals(tokens=100), 1)
    assert window.add(WINDOW_SECONDS, Totals(tokens=160), 1).done.tokens == 160
    later = window.add(WINDOW_SECONDS + 10, Totals(tokens=160), 1)
    assert (later.seconds, later.done.tokens) == (WINDOW_SECONDS, 60)


def test_nothing_is_said_where_nothing_happened() -> None:
    watch = Dashboard(
        console(terminal=False), statistics := Statistics(), usd_per_hour=1.0, clock=Clock(0.0)
    )
    Service(statistics)
    said = as_line(watch.view())
    assert (
        "- tokens/s, acceptance length -, batch - rows - nodes, padding -, - forwards/s, model "
        "busy -, no tokens to share $1 an hour" in said
    )


def test_a_model_is_busy_while_it_is_in_a_forward() -> None:
    clock = Clock(0.0)
    watch = Dashboard(console(terminal=False), statistics := Statistics(), clock=clock)
    engines = [Service(statistics).engine for _ in range(2)]
    for listener in engines[0].listeners:
        listener(Forward(False, 1, 1, 1, 1, model_seconds=3.0, engine_seconds=0.5))
    clock.now = 4.0
    assert watch.view().recent == Recent(4.0, Totals(1, 1, 1, 1, 3.0), engines=2)
    clock.now = 6.0
    assert "model busy 25%" in as_line(watch.view())


def test_many_sessions_are_counted_and_not_all_listed() -> None:
    watch = Dashboard(console(terminal=False), statistics := Statistics(), clock=Clock(0.0))
    service = Service(statistics)
    for _ in range(service.model.rows):
        service.open([1, 2])
    shown = watch.view()
    paper = console(terminal=False)
    paper.print(as_table(shown._replace(sessions=list(shown.sessions) * 6)))
    said = paper.export_text()
    assert said.count("waiting") == 20
    assert "and 4 more" in said


def test_what_a_client_calls_itself_is_no_markup() -> None:
    watch = Dashboard(console(terminal=False), statistics := Statistics(), clock=Clock(0.0))
    Service(statistics).open([1, 2], session_id="[red]x", tenant="[b]")
    assert "redx" in drawn(watch)
    assert "[b]" in drawn(watch)


@pytest.mark.parametrize(("terminal", "shown"), [(True, "\x1b["), (False, "watch: sessions 1")])
def test_it_shows_itself_until_it_is_told_to_stop(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, shown: str
) -> None:
    monkeypatch.setattr("grpc_comm.observability.dashboard._VIEW_SECONDS", 0.01)
    monkeypatch.setattr("grpc_comm.observability.dashboard._LINE_SECONDS", 0.01)
    seen = threading.Event()
    screen = console(terminal)

    class Screen(io.StringIO):
        def write(self, text: str) -> int:
            written = super().write(text)
            if shown in self.getvalue() and "sessions 1" in self.getvalue():
                seen.set()
            return written

    screen.file = Screen()
    watch = Dashboard(screen, statistics := Statistics())
    Service(statistics).open([1, 2])
    with watch:
        assert seen.wait(WAIT)
    assert "the target has ended: 0 tokens in " in screen.file.getvalue().splitlines()[-1]
    assert not [thread for thread in threading.enumerate() if thread.name == "watch"]


def test_a_target_that_was_asked_for_all_of_it_tells_all_of_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpc_comm.observability.dashboard._LINE_SECONDS", 0.01)
    options = TargetRole(metrics_port=0, watch=True, log="json", log_level="info")
    with log_as_before(), observed(options) as statistics:
        service = Service(statistics)
        service.close(service.open([1, 2]))
        said = ""
        while "watch: sessions 0" not in said:
            said += capsys.readouterr().err
        address = said.split("http://")[1].split("/")[0]
        with urlopen(f"http://{address}/metrics", timeout=WAIT) as answer:
            assert f'vllm:prompt_tokens_total{{model_name="{MODEL}"}} 2.0' in answer.read().decode()
    assert '"event": "session ended"' in said
