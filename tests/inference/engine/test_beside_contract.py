"""The contract of an engine that drafts beside its target: a new way joins by a line of ENGINES."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pytest

from inference.engine.engine import Engine
from inference.engine.sessions.local_session import LocalSession
from inference.model.decoder import Decoder
from inference.order import Decode, End
from inference.sampling import SamplingParams
from inference.tree.tree_shape import Branches
from tests.support import heads, pairs
from tests.support.beside import engine_of_rounds, fused, head_beside, layers_beside, model_beside
from tests.support.equality import NearTies
from tests.support.exact import GREEDY, asked, finish, run_dry, text_of
from tests.support.pairs import alone, assert_drafted_text
from tests.support.repository import ROOT

HEAD = "a head"
TARGET, LENGTH, TOKENS = pairs.decoder(1), pairs.SEQUENCE_LENGTH, 40
PROMPT, OTHER = [5, 17, 250, 3, 99] * 4, pairs.prompt_of(20)
CLOSE, USELESS = pairs.perturbed(1, 0.02), pairs.decoder(99, layers=1)
SAMPLINGS = [
    GREEDY,
    SamplingParams(1.0, seed=4),
    SamplingParams(0.7, top_p=0.9, top_k=20, seed=5).on_the_wire(),
]
each_sampling = pytest.mark.parametrize("params", SAMPLINGS, ids=str)


@cache
def own_text(params: SamplingParams, prompt: tuple[int, ...] = (*PROMPT,)) -> list[int]:
    return alone(LocalSession(pairs.engine(TARGET)), prompt, params, TOKENS)


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An EAGLE-3 head that was taught what the target says after both prompts at temperature 0."""
    directory = tmp_path_factory.mktemp("taught")
    weights = {name: one.contiguous() for name, one in TARGET.state_dict().items()}
    heads.write_head(directory / "target", pairs.raw_config(), weights)
    ids = [[*prompt, *own_text(GREEDY, (*prompt,))] for prompt in (PROMPT, OTHER)]
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


def in_the_graph(draft: Decoder, *branches: int) -> Callable[[Path, int], Engine]:
    def make(_: Path, rows: int) -> Engine:
        model = fused(TARGET, draft, Branches(branches), rows=rows, length=LENGTH)
        return engine_of_rounds(model, LENGTH)

    return make


ENGINES: dict[str, Callable[[Path, int], Engine]] = {
    "chains in the graph": in_the_graph(CLOSE, 1, 1, 1, 1),
    "trees in the graph": in_the_graph(CLOSE, 3, 1, 2),
    "an unrelated draft in the graph": in_the_graph(USELESS, 3, 1, 2),
    "a model": lambda _, rows: model_beside(CLOSE, rows),
    "a model and copies": lambda _, rows: model_beside(CLOSE, rows, copies=True),
    "an unrelated model and copies": lambda _, rows: model_beside(USELESS, rows, copies=True),
    "the target's layers": lambda _, rows: layers_beside(rows=rows)[0],
    HEAD: head_beside,
}
HELPFUL = (
    *("chains in the graph", "trees in the graph", "a model", "a model and copies"),
    *("the target's layers", HEAD),
)
"""Those whose draft is often right at temperature 0."""


def helps(name: str, params: SamplingParams) -> bool:
    """Whether a draft is often right. A head was taught greedy texts alone."""
    return name in HELPFUL and (name != HEAD or params.greedy)


Make = Callable[[int], Engine]


@pytest.fixture(params=ENGINES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make(name: str, taught: Path) -> Make:
    """Makes an engine with so many rows."""
    return partial(ENGINES[name], taught)


@each_sampling
def test_the_text_is_the_targets_own(make: Make, params: SamplingParams, ties: NearTies) -> None:
    assert_drafted_text(make(2), TARGET, PROMPT, params, own_text(params), ties)


def test_a_good_draft_saves_forwards(make: Make, name: str) -> None:
    engine = make(2)
    session = asked(engine, PROMPT, TOKENS, beside=True)
    finish(engine, session)
    assert (session.spent.forwards < 0.8 * TOKENS) == (name in HELPFUL)


@pytest.mark.covering(1)
@each_sampling
def test_a_text_ends_where_the_sequence_does(make: Make, params: SamplingParams) -> None:
    engine, prompt = make(2), pairs.prompt_of(LENGTH - 7)
    session = asked(engine, prompt, 7, params, beside=True)
    finish(engine, session)
    assert session.end is End.LIMIT
    assert text_of(session) == alone(LocalSession(pairs.engine(TARGET)), prompt, params, 7)


@pytest.mark.covering(1)
@each_sampling
def test_nothing_is_committed_behind_a_stop_id(make: Make, params: SamplingParams) -> None:
    engine, text = make(2), own_text(params)
    for index in (1, 4, 7, 11):
        stop = text[index]
        session = asked(engine, PROMPT, TOKENS, params, beside=True, stop_ids=frozenset({stop}))
        finish(engine, session)
        assert text_of(session) == text[: text.index(stop) + 1]
        assert session.end is End.STOP_ID
        engine.close(session)


@pytest.mark.covering(1)
@each_sampling
def test_no_more_is_committed_than_the_clients_credit(make: Make, params: SamplingParams) -> None:
    engine = make(2)
    session = asked(engine, PROMPT, TOKENS, params, beside=True, credit=7)
    run_dry(engine)
    assert text_of(session) == own_text(params)[:7]
    engine.acknowledge(session, session.length)
    finish(engine, session)
    assert text_of(session) == own_text(params)


@pytest.mark.covering(1)
@each_sampling
def test_a_text_goes_on_with_its_draft_and_without_it_in_turn(
    make: Make, name: str, params: SamplingParams
) -> None:
    """The draft is fed what it missed, and helps again."""
    engine = make(2)
    session = asked(engine, PROMPT, 4, params)
    finish(engine, session)
    for beside, bound in ((True, 14), (False, 20), (True, TOKENS)):
        before = session.spent.forwards
        engine.decode(session, Decode(len(PROMPT) + bound, credit=512, beside=beside))
        finish(engine, session)
    assert text_of(session) == own_text(params)
    assert not helps(name, params) or session.spent.forwards - before < 0.8 * (TOKENS - 20)


@pytest.mark.covering(1)
@each_sampling
def test_a_session_that_lost_its_row_goes_on_in_another_with_its_draft(
    make: Make, name: str, params: SamplingParams
) -> None:
    """And gives that of its draft to whoever has the row."""
    engine = make(1)
    first = asked(engine, PROMPT, 20, beside=True)
    finish(engine, first)
    engine.detach(first)
    second = asked(engine, OTHER, TOKENS, params, beside=True)
    finish(engine, second)
    assert first.row is None
    assert not helps(name, params) or second.spent.forwards < 0.8 * TOKENS
    engine.detach(second)
    engine.attach(first)
    engine.decode(first, Decode(len(PROMPT) + TOKENS, credit=512, beside=True))
    before = first.spent.forwards
    finish(engine, first)
    assert name not in HELPFUL or first.spent.forwards - before < 0.8 * 20
    assert text_of(first) == own_text(GREEDY)
    assert text_of(second) == own_text(params, (*OTHER,))


def test_a_cached_prefix_has_its_features(taught: Path) -> None:
    """A second session drafts as well as it would with a prompt that was computed."""
    engine, afresh = head_beside(taught), head_beside(taught)
    first = asked(engine, PROMPT, TOKENS, beside=True)
    finish(engine, first)
    longer = first.tokens[:40]
    engine.close(first)
    hit, computed = (asked(each, longer, TOKENS, beside=True) for each in (engine, afresh))
    finish(engine, hit)
    finish(afresh, computed)
    assert hit.reused == 39 > computed.reused
    assert hit.tokens == computed.tokens
    assert abs(hit.spent.forwards - computed.spent.forwards) <= 2
