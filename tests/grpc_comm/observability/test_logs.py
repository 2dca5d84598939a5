"""The log of a target: the line of each event, and what is never logged."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import Any

import pytest

from grpc_comm.observability.log import start_log
from grpc_comm.observability.metrics import Ending, Metrics
from inference.engine.tuning import TUNING
from inference.errors import InvalidRequest
from tests.support.hand_streams import MODEL, SESSION_ID, TENANT, Service

SECRET_TOKENS = [3_777, 3_778, 3_779]


def a_session() -> None:
    """Opened, three of five candidates accepted, closed."""
    service = Service()
    session = service.open([*SECRET_TOKENS, 13])
    service.ask(session, [14, 15, 16, 99, 98], [0, 1, 2, 0, 3])
    service.close(session)


def events(err: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in err.splitlines()]


def check(said: dict[str, Any], **fields: Any) -> None:
    assert {name: said.get(name) for name in fields} == fields


@pytest.mark.parametrize("form", ["text", "json"])
def test_each_event_is_a_line_with_its_counts_and_neither_tokens_nor_whole_session_ids(
    capsys: pytest.CaptureFixture[str], form: str
) -> None:
    start_log(form, "debug")
    a_session()
    said = capsys.readouterr().err
    assert "session ended" in said
    assert SESSION_ID not in said
    assert not [token for token in SECRET_TOKENS if str(token) in said]
    if form == "json":
        opened, ended = (one for one in events(said) if one["level"] == "info")
        check(opened, event="session opened", tenant=TENANT, model=MODEL, session=SESSION_ID[:8])
        check(opened, prompt_tokens=4, reused_tokens=0)
        check(ended, event="session ended", reason="closed", tokens=4, forwards=1)
        check(ended, candidates=5, accepted=3, acceptance_length=4, session=SESSION_ID[:8])
        assert ended["seconds"] > 0


@pytest.mark.parametrize("form", ["text", "json"])
def test_of_an_exception_only_its_type_and_places_are_logged(
    capsys: pytest.CaptureFixture[str], form: str
) -> None:
    start_log(form, "info")
    try:
        raise InvalidRequest("the prompt says: my password is xyzzy")
    except InvalidRequest:
        logging.getLogger("anything").exception("a session failed")
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert "xyzzy" not in said
    assert "InvalidRequest" in said
    assert "test_of_an_exception" in said


def test_refusals_drains_and_lost_streams_are_logged(capsys: pytest.CaptureFixture[str]) -> None:
    service = Service()
    session = service.open([1, 2])
    start_log("json", "info")
    service.metrics.reject("UNAUTHENTICATED")
    service.observer.record_lost(session)
    service.observer.record_resumed(session)
    service.metrics.drain()
    service.observer.record_end(session, Ending.DRAINED)
    said = events(capsys.readouterr().err)
    assert [one["event"] for one in said] == [
        "call rejected",
        "stream lost",
        "session resumed",
        "draining",
        "session ended",
    ]
    check(said[0], level="warning", code="UNAUTHENTICATED", tenant="")
    check(said[-1], reason="drained", tokens=0, acceptance_length=None, seconds=0.0)


def test_a_session_that_loses_its_row_is_logged(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference.engine.admission.TUNING", replace(TUNING, silent_seconds=-1.0))
    start_log("json", "info")
    service = Service()
    for number in range(service.model.rows + 1):
        service.open([1, 2], session_id=f"{number}-session")
    said = events(capsys.readouterr().err)
    [lent] = [one for one in said if one["event"] == "row lent to another"]
    check(lent, session="0-sessio", length=2)


def test_below_its_level_nothing_is_said_and_other_packages_say_no_more_than_warnings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    start_log("text", "warning")
    a_session()
    assert capsys.readouterr().err == ""
    start_log("json", "debug")
    logging.getLogger("httpx").info("GET a-url")
    logging.getLogger("httpx").warning("careful")
    assert [one["event"] for one in events(capsys.readouterr().err)] == ["careful"]


def test_a_session_id_cannot_write_lines_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    start_log("text", "info")
    Service().open([1, 2], session_id='a\n{b"}_c=d')
    assert "session=a??b??_c " in capsys.readouterr().err.splitlines()[-1]
    Metrics().reject("UNAUTHENTICATED")  # and there are no fields without a value
    assert capsys.readouterr().err.endswith("WARNING call rejected code=UNAUTHENTICATED\n")
