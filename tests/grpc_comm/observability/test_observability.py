"""Metrics count events under vLLM's names, and the log has a line each; neither tells a secret."""

from __future__ import annotations

import http.client
import json
import logging
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from grpc_comm.observability.endpoint import serve_metrics
from grpc_comm.observability.log import start_log
from grpc_comm.observability.metrics import Ending, Metrics
from grpc_comm.transport import Address
from inference.engine.tuning import TUNING
from inference.errors import InvalidRequest
from inference.order import Decode
from inference.sampling import SamplingParams
from tests.support.hand_streams import MODEL, SESSION_ID, TENANT, Service, counted, left_open, say
from tests.support.hostile import resume
from tests.support.wire_fixtures import background, decode_to, eventually, successor_engine

LOOPBACK = Address("127.0.0.1", 0)
SECRET_TOKEN = 3_777
"""Stands in a prompt, and must stand nowhere else."""

ACCEPTED = "vllm:spec_decode_num_accepted_tokens"
ENDED = "outrider_sessions_ended_total"
STATES = ("in_line", "prefill", "decode", "credit", "waiting", "parked", "away")


def get(address: Address, path: str, accept: str = "") -> tuple[int, str, str]:
    """Status, content type and body."""
    connection = http.client.HTTPConnection(*address, timeout=10)
    connection.request("GET", path, headers={"Accept": accept})
    response = connection.getresponse()
    return response.status, response.headers["Content-Type"], response.read().decode()


def scraped(metrics: Metrics) -> list[Sample]:
    with serve_metrics(metrics, LOOPBACK) as address:
        text = get(address, "/metrics")[2]
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def value(samples: list[Sample], name: str, **labels: str) -> float:
    found = [
        sample.value
        for sample in samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    assert len(found) == 1, f"{name} {labels}: {len(found)} samples"
    return found[0]


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    """Of one session with five candidates, three of them right, then none; and of an idle one."""
    service = Service()
    metrics, observer = service.metrics, service.observer
    prompt = [SECRET_TOKEN, 5, 6, 7, 8, 9, 10, 11, 12, 13]
    first = service.open(prompt)
    service.ask(first, [14, 15, 16, 99, 98], [0, 1, 2, 0, 3])
    service.ask(first, [], [])
    service.close(first)
    service.engine.step()
    service.open(prompt)
    metrics.bytes_up.inc(130)
    metrics.bytes_down.inc(40)
    metrics.dropped["rate"].inc(17)
    metrics.reject("RESOURCE_EXHAUSTED", TENANT)
    metrics.reject("RESOURCE_EXHAUSTED")
    observer.record_lost(first)
    observer.record_resumed(first)
    return scraped(metrics)


DECODE, PREFILL = {"kind": "decode"}, {"kind": "prefill"}
WHAT_HAPPENED: list[tuple[str, dict[str, str], float]] = [
    ("vllm:spec_decode_num_drafts_total", {}, 1),  # the second forward had none
    ("vllm:spec_decode_num_draft_tokens_total", {}, 5),
    ("vllm:spec_decode_num_accepted_tokens_total", {}, 3),
    ("vllm:generation_tokens_total", {}, 5),  # three and the target's own, then one
    ("vllm:prompt_tokens_total", {}, 20),
    ("vllm:prefix_cache_queries_total", {}, 20),
    ("vllm:prefix_cache_hits_total", {}, 9),  # the last token of a prompt is a root, never found
    ("vllm:num_preemptions_total", {}, 0),
    ("vllm:time_to_first_token_seconds_count", {}, 1),
    ("vllm:inter_token_latency_seconds_count", {}, 1),
    ("vllm:request_time_per_output_token_seconds_count", {}, 1),
    ("vllm:e2e_request_latency_seconds_count", {}, 1),
    ("vllm:request_queue_time_seconds_count", {}, 2),
    ("vllm:request_prefill_time_seconds_count", {}, 2),
    ("vllm:request_prompt_tokens_sum", {}, 10),
    ("vllm:request_generation_tokens_sum", {}, 5),
    ("vllm:num_requests_running", {}, 1),
    ("vllm:num_requests_waiting", {}, 0),
    ("vllm:kv_cache_usage_perc", {}, 9 / 4_000),
    *((f"{ACCEPTED}_per_pos_total", {"position": str(depth)}, 1) for depth in range(3)),
    ("outrider_rows", {}, 4),
    ("outrider_used_slots", {}, 9),
    ("outrider_forward_queue_seconds_count", {}, 2),
    ("outrider_root_only_forwards_total", {}, 1),
    ("outrider_credit_stalls_total", {}, 0),
    ("outrider_forward_seconds_count", DECODE, 2),
    ("outrider_batch_rows_sum", DECODE, 2),
    ("outrider_computed_rows_total", DECODE, 4),  # padding is what was not asked for
    ("outrider_useful_nodes_total", DECODE, 6 + 1),
    ("outrider_computed_nodes_total", DECODE, 2 * (2 * 8)),
    ("outrider_useful_nodes_total", PREFILL, 9),  # the second prompt was there
    ("outrider_computed_nodes_total", PREFILL, 2 * 64),
    *(("outrider_sessions", {"state": state}, int(state == "waiting")) for state in STATES),
    ("outrider_wire_bytes_total", {"direction": "up"}, 130),
    ("outrider_wire_bytes_total", {"direction": "down"}, 40),
    ("outrider_rejected_total", {"code": "RESOURCE_EXHAUSTED"}, 2),
    ("outrider_dropped_candidates_total", {"reason": "rate"}, 17),
    ("outrider_dropped_candidates_total", {"reason": "late"}, 0),
    ("outrider_dropped_candidates_total", {"reason": "cap"}, 0),
    ("outrider_streams_lost_total", {}, 1),
    ("outrider_sessions_resumed_total", {}, 1),
    ("outrider_target_info", {"device": "emulated: by hand", "version": "1.2"}, 1),
    *((ENDED, {"reason": reason.value}, int(reason is Ending.CLOSED)) for reason in Ending),
]


def test_a_scrape_says_what_happened_and_what_the_server_told(samples: list[Sample]) -> None:
    for name, labels, expected in WHAT_HAPPENED:
        assert value(samples, name, **labels) == pytest.approx(expected), (name, labels)


def test_how_far_a_key_is_trusted_is_told_by_its_name_proposer_and_depth() -> None:
    service = Service()
    session, _ = service.engine.open([1, 2], SamplingParams(), tenant="liar")
    for _ in range(5):
        service.ask(session, [99, 98], [0, 0])
    samples = scraped(service.metrics)
    labels = {"key": "liar", "proposer": "model", "depth": "1"}
    assert 0 < value(samples, "outrider_calibration_factor", **labels) < 0.4


def test_a_session_that_uses_up_its_credit_is_counted_once_each_time() -> None:
    service = Service()
    session = service.open([1, 2])
    for _ in range(2):
        service.engine.decode(session, Decode(400, credit=5))
        while service.engine.step():
            pass
        service.engine.acknowledge(session, session.length)
    service.engine.close(session)
    assert value(scraped(service.metrics), "outrider_credit_stalls_total") == 2


def test_no_label_holds_a_session_or_a_token_and_only_trust_names_a_key(
    samples: list[Sample],
) -> None:
    labels = [item for sample in samples for item in sample.labels.items()]
    assert not [text for _, text in labels if SESSION_ID in text or str(SECRET_TOKEN) in text]
    assert {name for name, text in labels if TENANT in text} == {"key"}


def test_each_model_is_counted_on_its_own_and_more_sessions_bring_no_more_series() -> None:
    first = Service()
    second, series = Service(first.metrics, "other"), set[int]()
    for number in range(3):
        session = second.open([1, 2, 3 + number], session_id=f"session-{number}")
        second.ask(session, [session.root + 1], [0])
        second.close(session)
        series.add(len(scraped(first.metrics)))
    assert len(series) == 1
    samples = scraped(first.metrics)
    assert value(samples, "vllm:generation_tokens_total", model_name="other") == 6
    assert value(samples, "vllm:generation_tokens_total", model_name=MODEL) == 0
    assert value(samples, "vllm:e2e_request_latency_seconds_count", model_name="other") == 3
    assert counted(Metrics(), "outrider_wire_bytes_total", direction="up") == 0


def test_what_happens_to_a_session_on_the_wire_is_counted() -> None:
    metrics = Metrics()
    with background(successor_engine(), metrics=metrics) as server:
        with left_open(server.address) as opened:
            pass
        assert say(server.address, [resume(opened), decode_to(5)]).tokens == [4, 5]
        eventually(lambda: counted(metrics, ENDED, reason="closed") == 1)
    assert counted(metrics, "outrider_streams_lost_total") == 1
    assert counted(metrics, "outrider_sessions_resumed_total") == 1
    for direction in ("up", "down"):
        assert counted(metrics, "outrider_wire_bytes_total", direction=direction) > 30


def test_health_says_whether_sessions_are_taken_and_a_scraper_may_ask_for_openmetrics() -> None:
    metrics = Metrics()
    with serve_metrics(metrics, LOOPBACK) as address:
        assert get(address, "/healthz")[::2] == (503, "loading\n")
        Service(metrics)
        assert get(address, "/healthz")[::2] == (200, "serving\n")
        metrics.drain()
        assert get(address, "/healthz")[::2] == (503, "draining\n")
        assert get(address, "/anything")[0] == 404
        openmetrics = "application/openmetrics-text"
        status, kind, text = get(address, "/metrics", f"{openmetrics}; version=1.0.0")
    assert (status, kind.split(";")[0], text[-6:]) == (200, openmetrics, "# EOF\n")


def test_a_port_in_use_is_said_and_free_again_when_the_context_ends() -> None:
    second = Metrics()
    with (
        serve_metrics(Metrics(), LOOPBACK) as address,
        pytest.raises(InvalidRequest, match="in use"),
        serve_metrics(second, address),
    ):
        pass
    with serve_metrics(second, address) as again:
        assert again == address


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
