"""What a target says about its times reaches its clients, and what a user measures with --calibrate serves the next run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from grpc_comm import translate
from grpc_comm.client import connect
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.server import BackgroundServer, Target
from grpc_comm.translate import MOST_TIMES, PROTOCOL_VERSION
from inference.errors import Mismatch
from inference.times import DraftTimes, LinkTimes, TargetTimes
from outrider.calibrate import PROBES, measure_link
from outrider.cli import main
from outrider.fused import with_draft
from outrider.options import Options, parse
from outrider.profiles import Profiles
from outrider.serve import load_target
from tests.wire_fixtures import LOOPBACK, describe, opened, successor_engine

TIMES = (((1, 8), 0.03125), ((4, 8), 0.0625))


@pytest.fixture(scope="module")
def port() -> Iterator[str]:
    options = Options(role="fused_target", port=0, batch=2, max_tree_nodes=16, usd_per_hour=1.34375)
    with BackgroundServer(with_draft(load_target(options), options)) as server:
        yield str(server.address.port)


def test_times_price_and_open_sessions_come_over_the_wire() -> None:
    engine = successor_engine()
    described = replace(describe(engine), times=TIMES, draft_model="d", draft_times=((1, 0.5), (8, 1.0)), usd_per_hour=1.5)
    with BackgroundServer(Target(engine, described, LOOPBACK)) as server, connect(str(server.address)) as connection:
        assert connection.description == described
        verifier = opened(connection)
        with connect(str(server.address)) as later:
            assert later.description == replace(described, sessions=1)
        verifier.close()


def test_a_served_model_says_what_it_takes(port: str) -> None:
    with connect(f"127.0.0.1:{port}") as connection:
        said = connection.description
    target, draft = TargetTimes(dict(said.times)), DraftTimes(dict(said.draft_times))
    assert sorted({shape[0] for shape, _ in said.times}) == [1, 2]
    assert max(shape[1] for shape, _ in said.times) == 16
    assert 0 < target.seconds(1, 1) <= target.seconds(2, 16)
    assert draft.seconds(5) > 0
    assert said.usd_per_hour == 1.34375


def test_an_emulated_target_says_what_its_profile_says_and_measures_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    target = load_target(Options(role="target", port=0, batch=4, emulate="llama-3.1-8b-trn1.2xlarge-measured", sequence_length=128))
    times = TargetTimes(dict(target.description.times))
    assert times.seconds(1, 1) == pytest.approx(0.0368, abs=0.0002)
    assert "measuring" not in capsys.readouterr().err


WRONG = {
    "a time of 0": pb.Description(times=[pb.ForwardTime(rows=1, nodes=1, seconds=0.0)]),
    "an endless time": pb.Description(times=[pb.ForwardTime(rows=1, nodes=1, seconds=float("inf"))]),
    "no time": pb.Description(draft_times=[pb.ForwardTime(rows=1, nodes=1, seconds=float("nan"))]),
    "no rows": pb.Description(times=[pb.ForwardTime(rows=0, nodes=1, seconds=0.1)]),
    "no nodes": pb.Description(times=[pb.ForwardTime(rows=1, nodes=0, seconds=0.1)]),
    "too many": pb.Description(times=[pb.ForwardTime(rows=1, nodes=1, seconds=0.1)] * (MOST_TIMES + 1)),
    "a negative price": pb.Description(usd_per_hour=-1.0),
    "no price": pb.Description(usd_per_hour=float("nan")),
}


@pytest.mark.parametrize("message", WRONG.values(), ids=WRONG)
def test_a_target_that_tells_nonsense_is_refused(message: pb.Description) -> None:
    message.protocol_version = PROTOCOL_VERSION
    with pytest.raises(Mismatch, match="the target"):
        translate.read_description(message)


def test_a_link_is_measured_by_exchanges_without_work() -> None:
    link, engine = LinkTimes(), successor_engine()
    with BackgroundServer(Target(engine, describe(engine), LOOPBACK)) as server, connect(str(server.address)) as connection:
        assert connection.probe().transferred > 0
        measure_link(connection, link)
    assert 0 < link.round_trip.seconds < 1
    assert not engine.model.calls  # type: ignore[attr-defined]  # of a Successor


def test_a_target_is_measured_once(capsys: pytest.CaptureFixture[str]) -> None:
    options = Options(role="target", port=0, batch=1, max_tree_nodes=4)
    first = load_target(options).description.times
    capsys.readouterr()
    assert load_target(options).description.times == first
    assert "measuring" not in capsys.readouterr().err


def test_calibrate_prints_and_keeps_what_it_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, port: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["--role", "draft", "--calibrate", "--port", port]) == 0
    said = capsys.readouterr()
    for line in ("draft outrider-embedded-draft on cpu", "target outrider-embedded-target on cpu", f"({PROBES} exchanges", "$1.34375 an hour"):
        assert line in said.out
    (path,) = (tmp_path / "outrider" / "profiles").iterdir()
    assert [nodes for _, nodes, _ in json.loads(path.read_text())["seconds"]] == [1, 2, 4, 8, 16, 32, 64]


def test_calibrate_measures_the_draft_afresh_and_alone_where_no_target_answers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    command = ["--role", "draft", "--calibrate", "--port", "1"]
    assert main(command) == main(command) == 0
    said = capsys.readouterr()
    assert said.err.count("measuring the draft") == 2
    assert said.err.count("the target and the link were not measured: no Outrider target answers at 127.0.0.1:1") == 2
    assert "link to" not in said.out


def test_calibrate_is_for_the_draft(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--role", "target", "--calibrate"])
    assert "--calibrate is for --role draft" in capsys.readouterr().err


def test_a_profile_that_cannot_be_kept_is_used_all_the_same(tmp_path: Path) -> None:
    from outrider.models import find_checkpoint, load_model

    (tmp_path / "profiles").write_text("a file", encoding="utf-8")
    options, told = Options(), list[str]()
    checkpoint = find_checkpoint(options, "draft")
    model = load_model(options, checkpoint, rows=1, sequence_length=64, spare=8, max_nodes=8)
    assert set(Profiles(tmp_path / "profiles", told.append).draft(checkpoint, model, 64)) == {1, 2, 4, 8}
    assert "not kept" in told[-1]
