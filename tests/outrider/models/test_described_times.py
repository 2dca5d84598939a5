"""What a target says about its times reaches its clients; what is measured serves the next run."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from threading import Event
from typing import Any

import pytest

from grpc_comm import translate
from grpc_comm.client.connection import connect
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.server.server import BackgroundServer, Target
from grpc_comm.translate import MAX_TIMES, PROTOCOL_VERSION
from inference.backends.cuda.model import CudaModel
from inference.backends.eager import EagerModel
from inference.engine.engine import Engine
from inference.engine.sessions.local_session import LocalSession
from inference.errors import Mismatch
from inference.loop.decode import decode
from inference.loop.draft_thread import inline
from inference.loop.draft_tuning import TUNING
from inference.order import Decode
from inference.planner.acceptance import read_acceptance
from inference.sampling import SamplingParams
from inference.times import TRUSTED, Times
from outrider.client.connecting import PROBES, measure_round_trip
from outrider.client.drafting import GrowingRows, Pair
from outrider.draft_methods import find_draft
from outrider.models.found_model import Capacity
from outrider.models.loading import PREFILL_NODES, find_checkpoint
from outrider.models.profiles import Profiles
from outrider.money import Goal
from outrider.options.groups import DeviceOptions, DraftModelOptions
from outrider.options.roles import DraftRole, TargetRole
from outrider.target.target import load_target
from outrider.text.completion import Request, complete, silent
from tests.support.fake_cuda import Reruns
from tests.support.wire_fixtures import LOOPBACK, describe, eventually, opened, successor_engine

SERVED = TargetRole(port=0, batch=2, max_tree_nodes=16, usd_per_hour=1.34375, measure_first=True)
EMULATED = "llama-3.1-8b-trn1.2xlarge-measured"


def test_times_price_and_sessions_come_over_a_link_that_is_measured_without_work() -> None:
    engine = successor_engine()
    times = (((1, 8), 0.03125), ((4, 8), 0.0625))
    described = replace(describe(engine), times=times, draft_model="d", usd_per_hour=1.5)
    with (
        BackgroundServer(Target(engine, described, LOOPBACK)) as server,
        connect(str(server.address)) as connection,
    ):
        assert connection.description == described
        assert measure_round_trip(connection.probe, list[str]().append) > 0
        assert not engine.model.calls  # type: ignore[attr-defined]  # of a Successor
        verifier = opened(connection)
        with connect(str(server.address)) as later:
            assert later.description == replace(described, sessions=1)
        verifier.close()


def test_a_served_model_says_what_it_takes_as_measured_once_or_as_its_profile_says(
    port: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with connect(f"127.0.0.1:{port}") as connection:
        said = connection.description
    times = Times(dict(said.times))
    assert sorted({shape[0] for shape, _ in said.times}) == [1, 2]
    assert max(shape[1] for shape, _ in said.times) == 16
    assert 0 < times.seconds(1, 1) <= times.seconds(2, 16)
    assert said.usd_per_hour == 1.34375
    capsys.readouterr()
    again = load_target(SERVED).description.times
    assert dict(again).keys() == dict(said.times).keys()
    profile = load_target(TargetRole(port=0, batch=4, emulate=EMULATED, sequence_length=128))
    seconds = Times(dict(profile.description.times)).seconds(1, 1)
    assert seconds == pytest.approx(0.0368, abs=0.0002)
    assert "measuring" not in capsys.readouterr().err


def one_time(rows: int = 1, nodes: int = 1, seconds: float = 0.1) -> pb.ForwardTime:
    return pb.ForwardTime(rows=rows, nodes=nodes, seconds=seconds)


@pytest.mark.parametrize(
    "values",
    [
        {"times": [one_time(seconds=0.0)]},
        {"times": [one_time(seconds=float("inf"))]},
        {"times": [one_time(seconds=float("nan"))]},
        {"times": [one_time(rows=0)]},
        {"times": [one_time(nodes=0)]},
        {"times": [one_time()] * (MAX_TIMES + 1)},
        {"usd_per_hour": -1.0},
        {"usd_per_hour": float("nan")},
    ],
)
def test_a_target_that_tells_nonsense_is_refused(values: dict[str, Any]) -> None:
    message = pb.Description(protocol_version=PROTOCOL_VERSION, **values)
    with pytest.raises(Mismatch, match="the target"):
        translate.read_description(message)


def test_a_long_link_is_measured_by_fewer_exchanges_and_said_to_be_over_a_second() -> None:
    for seconds, exchanges, lines in ((0.02, PROBES, 0), (0.3, TRUSTED, 0), (0.6, TRUSTED, 1)):
        told, probes = list[str](), iter([seconds] * 100)
        assert measure_round_trip(partial(next, probes), told.append) == pytest.approx(seconds)
        assert (100 - len(list(probes)), len(told)) == (exchanges, lines)


@pytest.mark.parametrize("tokens", [(40, 2), (2, 40)], ids=str)
def test_the_link_is_measured_once_for_all_rows_and_what_most_was_learned_from_is_kept(
    tmp_path: Path, tokens: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target takes 37 ms for a forward: a draft comes in time."""
    path, learned, probes = tmp_path / "acceptance" / "pair.json", list[Any](), list[float]()
    found = find_draft(DraftModelOptions())
    draft = found.load(DeviceOptions(), Capacity(2, 128, TUNING.room, PREFILL_NODES))
    slow = load_target(TargetRole(port=0, batch=2, emulate=EMULATED))
    with BackgroundServer(slow) as server, connect(str(server.address)) as connection:
        probe = connection.probe

        def counted() -> float:
            probes.append(probe())
            return probes[-1]

        monkeypatch.setattr(connection, "probe", counted)
        pair = Pair(connection, {(1, 1): 0.002, (1, 64): 0.008}, path)
        pool = GrowingRows(draft, pair, Goal(), copies=False, rows=2)
        assert len(probes) <= PROBES
        assert {row.round_trip for row in pool.stats} == {median(probes)}
        pool.keep()
        assert not path.exists()  # nothing was learned
        with ExitStack() as stack:
            for index, most in enumerate(tokens):
                (proposer,) = stack.enter_context(pool.lent(lambda: True))
                ids = found.tokenizer.encode("def main():")
                request = Request(index, "", ids, SamplingParams(), most, frozenset())
                session = connection.session()
                complete(request, session, inline([proposer]), found.tokenizer, silent, Event())
                learned.append(pool.stats[index].acceptance.to_record())
        pool.keep()
    assert json.loads(path.read_text()) == learned[tokens.index(40)] != learned[tokens.index(2)]
    assert read_acceptance(path).to_record()["version"] == learned[0]["version"]


def test_what_takes_long_is_measured_while_nobody_asks_and_changes_no_text(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("outrider.models.profiles.QUICK_SECONDS", 0.0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "by hand"))
    target = load_target(TargetRole(port=0, batch=1, max_tree_nodes=16, sequence_length=512))
    engine, prompt = target.engine, list(range(3, 300))
    texts = [_text(engine, prompt)]
    while engine.use_idle_time():
        texts.append(_text(engine, prompt))  # from the prefix that the row has cached
    assert len(texts) > 3
    assert texts == texts[:1] * len(texts)
    (stored,) = (tmp_path / "by hand" / "outrider" / "profiles").iterdir()
    seconds = {(rows, nodes) for rows, nodes, _ in json.loads(stored.read_text())["times"]}
    assert seconds == {shape for shape, _ in target.description.times}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "idle"))
    with BackgroundServer(load_target(TargetRole(port=0, batch=1, max_tree_nodes=4))):
        eventually(lambda: (tmp_path / "idle" / "outrider" / "profiles").exists())


def _text(engine: Engine, prompt: list[int]) -> list[int]:
    session = LocalSession(engine)
    order = Decode(len(prompt) + 30, frozenset())
    steps = list(decode(prompt, SamplingParams(1.0, seed=3), session, order, []))
    session.close()
    engine.step()
    return [token for step in steps for token in step.tokens]


def test_a_profile_that_cannot_be_kept_is_used_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "profiles").write_text("a file", encoding="utf-8")
    options, told = DraftRole(), list[str]()
    found = find_draft(options)
    draft = found.load(options, Capacity(1, 64, 8, 8))
    profiles = Profiles(tmp_path / "profiles", told.append, upfront=True)
    assert set(found.times(profiles, draft, 64)) == {(1, 1), (1, 2), (1, 4), (1, 8)}
    assert "not stored" in told[-1]


@pytest.mark.parametrize("seconds", [60.0, 0.0])
def test_a_target_on_cuda_records_its_calls_before_the_first_request_or_when_it_is_idle(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seconds: float
) -> None:
    monkeypatch.setattr("outrider.models.profiles.RECORDING_SECONDS", seconds)
    found, reruns, told = find_checkpoint(None, "target"), Reruns(), list[str]()
    eager = found.load(DeviceOptions(), Capacity(1, 64, 0, 2))
    assert isinstance(eager, EagerModel)
    model = CudaModel(eager.decoder, rows=1, capacity=100, max_nodes=2, recorder=reruns)
    profiles = Profiles(tmp_path, told.append, upfront=True)
    times = profiles.target(found, "identity", model, 64, 2)
    planned = 3 * 2 * 2  # choices, nodes, slots
    recorded = f"recorded {planned if seconds else 0} CUDA graphs in"
    assert any(line.startswith(recorded) for line in told)  # beside lines of progress
    assert reruns.eager == (0 if seconds else 1)  # of the shape that is measured
    assert times.when_idle is not None
    no_engine: Any = None
    while times.when_idle(no_engine):
        pass
    assert reruns.recorded == planned
