"""An EAGLE-3 head beside its target has what it reads, whatever became of the session's row."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from inference.engine.engine import Engine
from inference.engine.sessions.local_session import LocalSession
from inference.engine.sessions.session import Session
from inference.order import Decode
from inference.proposer import COLOCATED
from inference.sampling import SamplingParams
from tests.support import heads, pairs
from tests.support.beside import head_beside
from tests.support.exact import asked, finish
from tests.support.pairs import alone
from tests.support.repository import ROOT

TARGET, LENGTH = pairs.decoder(1), pairs.SEQUENCE_LENGTH
PROMPTS = [pairs.prompt_of(length) for length in range(20, 24)]
TOKENS = 40


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


def own_text(prompt: Sequence[int]) -> list[int]:
    return alone(LocalSession(pairs.engine(TARGET)), prompt, SamplingParams(), TOKENS)


def drafted(engine: Engine, prompt: Sequence[int], tokens: int = TOKENS) -> Session:
    return asked(engine, prompt, tokens, beside=True)


def test_what_a_head_has_learned_is_accepted(taught: Path) -> None:
    engine = head_beside(taught)
    session = drafted(engine, PROMPTS[0][-20:])
    finish(engine, session)
    assert session.spent.forwards < TOKENS / 2
    assert session.proposers.count(COLOCATED) > TOKENS / 2


def test_a_cached_prefix_has_its_features(taught: Path) -> None:
    """A second session drafts as well as it would with a prompt that was computed."""
    prompt, engine, afresh = PROMPTS[0][-20:], head_beside(taught), head_beside(taught)
    first = drafted(engine, prompt)
    finish(engine, first)
    longer = first.tokens[:40]
    engine.close(first)
    hit, computed = drafted(engine, longer), drafted(afresh, longer)
    finish(engine, hit)
    finish(afresh, computed)
    assert hit.reused == 39 > computed.reused
    assert hit.tokens == computed.tokens
    assert abs(hit.spent.forwards - computed.spent.forwards) <= 2


def test_a_session_that_lost_its_row_is_drafted_for_on_another(taught: Path) -> None:
    engine = head_beside(taught, rows=1)
    first = drafted(engine, PROMPTS[0][-20:], 20)
    finish(engine, first)
    engine.detach(first)
    second = drafted(engine, PROMPTS[1][-20:])
    finish(engine, second)
    assert first.row is None
    engine.detach(second)
    engine.attach(first)
    engine.decode(first, Decode(20 + TOKENS, credit=512, beside=True))
    forwards = first.spent.forwards
    finish(engine, first)
    assert first.spent.forwards - forwards < 10
    for prompt, session in zip(PROMPTS, (first, second), strict=False):
        assert session.tokens[20:] == own_text(prompt[-20:])
