"""An EAGLE-3 head beside its target has what it reads, whatever became of the session's row."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from inference.backends import Ranked, Segment
from inference.backends.eagle_model import EagleModel
from inference.backends.target_features import FeatureSequence
from inference.draft_tuning import TUNING
from inference.drafters.draft import Draft
from inference.engine.local_session import LocalSession
from inference.engine.session import Session
from inference.model.eagle_head import OfTarget, read_head
from inference.order import Decode
from inference.proposer import COLOCATED
from inference.sampling import SamplingParams
from tests.support import heads, pairs
from tests.support.beside import CALL, TimedTarget, engine_beside
from tests.support.clock import Clock
from tests.support.drafts import alone, assert_drafted_text
from tests.support.equality import NearTies
from tests.support.exact import asked, finish
from tests.support.repository import ROOT

TARGET, LENGTH = pairs.decoder(1), pairs.SEQUENCE_LENGTH
PROMPTS = [pairs.prompt_of(length) for length in range(20, 24)]
TOKENS = 40


class TimedHead(EagleModel):
    """A head whose calls take their time."""

    clock: Clock

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        self.clock.now += CALL
        return super().rank(segments, k)


class Beside:
    """An engine with a head beside its target, on a clock of the test."""

    def __init__(self, head: Path, rows: int = 2) -> None:
        clock = Clock()
        target = TimedTarget(TARGET, clock, rows)
        of_target = read_head(head, OfTarget.of(TARGET), LENGTH)
        drafts = TimedHead(of_target, rows=rows, capacity=LENGTH + TUNING.room, max_nodes=128)
        target.keep_features(heads.KEPT)
        drafts.clock = clock
        draft = Draft(drafts, sequence=partial(FeatureSequence, target))
        self.engine = engine_beside(target, draft, TUNING.room, clock)

    def asked(self, prompt: Sequence[int], tokens: int = TOKENS) -> Session:
        return asked(self.engine, prompt, tokens, beside=True)


@pytest.fixture(scope="module")
def useless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random head, which names a seventh of the tokens."""
    config = TARGET.config
    directory = tmp_path_factory.mktemp("useless")
    return heads.write_head(directory, heads.raw_config(config), heads.tensors_of(config))


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A head that was taught what the target says after these prompts at temperature 0."""
    directory = tmp_path_factory.mktemp("taught")
    weights = {name: one.contiguous() for name, one in TARGET.state_dict().items()}
    heads.write_head(directory / "target", pairs.raw_config(), weights)
    ids = [[*prompt[-20:], *own_text(prompt[-20:])] for prompt in PROMPTS]
    (directory / "ids.json").write_text(json.dumps(ids))
    flags = {
        "out": directory / "head",
        "target": directory / "target",
        "ids": directory / "ids.json",
        "layers": ",".join(map(str, heads.KEPT)),
        "inner": 48,
        "steps": 200,
        "threads": 1,
    }
    given = [part for name, value in flags.items() for part in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "benchmarks.training.head", *given]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return directory / "head"


def own_text(
    prompt: Sequence[int], tokens: int = TOKENS, params: SamplingParams | None = None
) -> list[int]:
    session = LocalSession(pairs.engine(TARGET))
    return alone(session, prompt, params or SamplingParams(), tokens)


@pytest.mark.parametrize("head", ["useless", "taught"])
@pytest.mark.parametrize(
    "params", [SamplingParams(), SamplingParams(0.7, seed=3), SamplingParams(1.0, seed=4)], ids=str
)
def test_the_text_is_the_targets_own_seeded_decoding(
    head: str, params: SamplingParams, ties: NearTies, request: pytest.FixtureRequest
) -> None:
    engine, prompt = Beside(request.getfixturevalue(head)).engine, PROMPTS[0][-20:]
    own = own_text(prompt, TOKENS, params)
    assert_drafted_text(engine, TARGET, prompt, params, own, ties)


def test_what_a_head_has_learned_is_accepted(taught: Path) -> None:
    beside = Beside(taught)
    session = beside.asked(PROMPTS[0][-20:])
    finish(beside.engine, session)
    assert session.spent.forwards < TOKENS / 2
    assert session.proposers.count(COLOCATED) > TOKENS / 2


def test_a_cached_prefix_has_its_features(taught: Path) -> None:
    """A second session drafts as well as it would with a prompt that was computed."""
    prompt, beside, afresh = PROMPTS[0][-20:], Beside(taught), Beside(taught)
    first = beside.asked(prompt)
    finish(beside.engine, first)
    longer = first.tokens[:40]
    beside.engine.close(first)
    hit, computed = beside.asked(longer), afresh.asked(longer)
    finish(beside.engine, hit)
    finish(afresh.engine, computed)
    assert hit.reused == 39 > computed.reused
    assert hit.tokens == computed.tokens
    assert abs(hit.spent.forwards - computed.spent.forwards) <= 2


def test_a_session_that_lost_its_row_is_drafted_for_on_another(taught: Path) -> None:
    beside = Beside(taught, rows=1)
    first = beside.asked(PROMPTS[0][-20:], 20)
    finish(beside.engine, first)
    beside.engine.detach(first)
    second = beside.asked(PROMPTS[1][-20:])
    finish(beside.engine, second)
    assert first.row is None
    beside.engine.detach(second)
    beside.engine.attach(first)
    beside.engine.decode(first, Decode(20 + TOKENS, credit=512, beside=True))
    forwards = first.spent.forwards
    finish(beside.engine, first)
    assert first.spent.forwards - forwards < 10
    for prompt, session in zip(PROMPTS, (first, second), strict=False):
        assert session.tokens[20:] == own_text(prompt[-20:])
