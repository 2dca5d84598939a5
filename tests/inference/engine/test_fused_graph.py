"""Rounds that one graph drafts, verifies and accepts, run eagerly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import count, product
from pathlib import Path

import numpy as np
import pytest
import torch

from inference.backends import Segment
from inference.backends.eager import EagerModel
from inference.drafters.draft_tree import DraftTree
from inference.drafters.round_proposer import Budget, RankChildren, RoundProposer
from inference.engine.colocated.graph_rounds import GraphRounds, blank_tree, read_answer
from inference.engine.engine import Engine
from inference.engine.sessions.local_session import LocalSession
from inference.engine.sessions.session import Session
from inference.engine.tuning import TUNING
from inference.errors import BadArtifact, InvalidRequest
from inference.files.artifact import (
    Bucket,
    DraftBucket,
    FusedPart,
    Manifest,
    RoundBucket,
    read_manifest,
    write_manifest,
)
from inference.model.decoder import Decoder
from inference.model.graphs.round_graph import accept_in_graph
from inference.order import Decode, End, Pace
from inference.proposer import Proposer
from inference.sampling import SamplingParams
from inference.times import Times
from inference.tree.growing_tree import Mark
from inference.tree.token_tree import IntArray, TokenTree, accept_matches
from inference.tree.tree_shape import NONE, Branches
from tests.support.beside import engine_of_rounds, fused
from tests.support.clock import Clock
from tests.support.exact import GREEDY, Cost, chain, finish, free, opened
from tests.support.exact import text_of as made_by
from tests.support.models import SAMPLINGS
from tests.support.pairs import (
    SEQUENCE_LENGTH,
    VOCABULARY,
    alone,
    decoder,
    engine,
    perturbed,
    text_of,
)

LENGTH, TOKENS, PROMPT = 120, 30, [5, 17, 250, 3, 99]
SHAPES = [Branches.chain(4), Branches((3, 1, 2))]
RIGHT, CLOSE, USELESS = decoder(1), perturbed(1, 0.02), decoder(99, layers=1)
BESIDE = Decode(len(PROMPT) + TOKENS, beside=True)
"""Drafted by the target's graphs where they can."""


@cache
def own_text(
    prompt: tuple[int, ...] = (*PROMPT,), params: SamplingParams = GREEDY, tokens: int = TOKENS
) -> list[int]:
    return alone(LocalSession(engine(RIGHT)), prompt, params, tokens)


def forwards_of(
    served: Engine,
    params: SamplingParams,
    prompt: Sequence[int] = PROMPT,
    order: Decode = BESIDE,
    proposers: Sequence[Proposer] = (),
) -> list[tuple[int, ...]]:
    """The tokens of each forward pass that brought some."""
    steps = list[tuple[int, ...]]()
    session = LocalSession(served)
    text_of(prompt, params, session, order, proposers, lambda step: steps.append((*step.tokens,)))
    return [tokens for tokens in steps if tokens]


# --- acceptance


@pytest.mark.parametrize("branches", [(1,), (1, 1, 1), (3,), (2, 3), (4, 2, 1)], ids=str)
def test_acceptance_in_the_graph_is_acceptance_on_the_host(branches: tuple[int, ...]) -> None:
    shape, rng, accepted = Branches(branches), np.random.default_rng(3), 0
    for _ in range(100):
        tokens = _tokens(shape, rng)
        chosen = rng.integers(0, 6, shape.nodes).astype(np.int32)
        path, next_token = accept_in_graph(
            shape, *(torch.from_numpy(part)[None] for part in (tokens, chosen))
        )
        tree = TokenTree(tokens, np.array(shape.parents))
        [expected] = accept_matches([tree], [chosen])
        assert path[0].tolist() == [*expected.path, *[NONE] * (shape.depth - len(expected.path))]
        assert next_token.tolist() == [expected.next_token]
        accepted += len(expected.path)
    assert accepted > 10


def _tokens(shape: Branches, rng: np.random.Generator) -> np.ndarray:
    """Of few ids, so that many are accepted; siblings distinct."""
    below = [
        rng.permutation(6)[:branch]
        for wide, branch in zip(shape.levels, shape.branches, strict=False)
        for _ in range(wide)
    ]
    return np.concatenate([[0], *below]).astype(np.int32)


def test_what_is_accepted_ends_at_the_limit_with_the_token_that_the_target_chose_there() -> None:
    answer = np.array([4, 5, 6, 1, 2, NONE, 7], dtype=np.int32)
    tree, verdict = read_answer(blank_tree(Branches.chain(3), 9), answer, limit=1)
    assert (verdict.path, verdict.next_token) == ((1,), 5)
    assert tree.tokens.tolist() == [9, 4, 5, 6]


# --- the text


@dataclass(frozen=True)
class Branching:
    """A tree policy that drafts trees of one shape, level by level."""

    shape: Branches

    @property
    def max_ranked(self) -> int:
        return self.shape.inner

    def grow(self, tree: DraftTree, budget: Budget, rank: RankChildren) -> list[Mark]:
        grown, level = list[Mark](), [tree.root]
        for branch in self.shape.branches[: budget.depth]:
            ids = rank(level, branch).ids.tolist()
            level = [
                tree.add(parent, token, tree.rank(tree.root))
                for parent, tokens in zip(level, ids, strict=True)
                for token in tokens
            ]
            grown += level
        return grown


@pytest.mark.covering(1)
@pytest.mark.parametrize("params", SAMPLINGS[:4], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_round_drafts_what_its_draft_drafts(shape: Branches, params: SamplingParams) -> None:
    """Its caches are right after any verdict: else its trees would be others."""
    model = EagerModel(CLOSE, rows=1, capacity=SEQUENCE_LENGTH, max_nodes=64)
    elsewhere = RoundProposer(model, Branching(shape), room=64)
    waits = replace(BESIDE, pace=Pace.WAIT)
    served = engine_of_rounds(fused(RIGHT, CLOSE, shape))
    theirs = forwards_of(engine(RIGHT), params, order=waits, proposers=[elsewhere])
    assert forwards_of(served, params) == theirs


# --- limits


def test_a_session_whose_forwards_are_narrower_than_a_round_makes_none() -> None:
    served = engine_of_rounds(fused(RIGHT, RIGHT, Branches.chain(4)))
    session, _ = served.open(PROMPT, SAMPLINGS[1])
    session.tree_nodes = 4
    served.decode(session, BESIDE)
    finish(served, session)
    assert made_by(session) == own_text(params=SAMPLINGS[1])
    assert session.spent.lone == session.spent.forwards == TOKENS


def test_a_text_with_a_rule_has_open_forwards() -> None:
    """Graphs of rounds neither adjust logits nor report any."""
    model = fused(RIGHT, RIGHT, Branches.chain(4))
    served, rounds = engine_of_rounds(model), GraphRounds(model)
    session = opened(served, PROMPT, SAMPLINGS[1])
    served.decode(session, BESIDE)
    assert rounds.select([session], lambda rows, nodes: 0.01) == ([], [session])
    for rule in (SamplingParams(presence_penalty=1.0), SamplingParams(logprobs=0)):
        session.params = rule
        assert rounds.select([session], lambda rows, nodes: 0.01) == ([], [])


def watch(model: object, name: str, note: Callable[[Sequence[Segment]], object]) -> None:
    """Note the segments of each call of this method before it is made."""
    call: Callable[[Sequence[Segment]], list[IntArray]] = getattr(model, name)

    def watched(segments: Sequence[Segment]) -> list[IntArray]:
        note(segments)
        return call(segments)

    setattr(model, name, watched)


def test_texts_of_any_sampling_share_rounds_and_a_long_prompt_is_fed_between_them() -> None:
    model = fused(RIGHT, CLOSE, Branches.chain(3), rows=4)
    served, calls = engine_of_rounds(model), list[tuple[str, int]]()
    watch(model.draft, "choose", lambda segments: calls.append(("choose", len(segments))))
    watch(model, "rounds", lambda segments: calls.append(("rounds", len(segments))))
    kinds = [((*PROMPT[:-1], number), SAMPLINGS[number]) for number in range(3)]
    sessions = [opened(served, *kind) for kind in kinds]
    long = opened(served, [index % 200 for index in range(80)])
    for session in sessions:
        served.decode(session, BESIDE)
    served.step()
    calls.clear()
    served.decode(long, Decode(90, beside=True))
    finish(served, *sessions, long)
    assert [made_by(session) for session in sessions] == [own_text(*kind) for kind in kinds]
    assert ("rounds", 3) in calls
    fed = [index for index, (name, _) in enumerate(calls) if name == "choose"]
    assert len(fed) > 2
    assert all(calls[index + 1][0] == "rounds" for index in fed)


# --- what is refused and what is remembered


def test_rounds_for_greedy_decoding_alone_refuse_another_temperature() -> None:
    served = engine_of_rounds(fused(RIGHT, CLOSE, Branches.chain(2), sampled=False))
    assert text_of(PROMPT, GREEDY, LocalSession(served), BESIDE) == own_text()
    with pytest.raises(InvalidRequest, match="greedy decoding"):
        text_of(PROMPT, SAMPLINGS[1], LocalSession(served), BESIDE)


def manifest(fused: FusedPart | None) -> Manifest:
    return Manifest(
        "m", "cpu", 61, (Bucket(1, 8, 64, 8, 4, True, 64),), 2, 56, 8, "float32", 1, {},
        "f", "t", (2,), {}, 64, {}, {}, {}, "c", "now", fused=fused
    )  # fmt: skip


def test_a_manifest_remembers_the_draft_and_is_what_it_was_without_one(tmp_path: Path) -> None:
    prefill = (DraftBucket(1, 8, 64, 1, 1, False, 64),)
    rounds = (RoundBucket.of(Branches((2, 1)), 1, 64, 64, sampled=True),)
    with_draft, without = manifest(FusedPart("d", "fp", {}, prefill, rounds)), manifest(None)
    write_manifest(tmp_path, with_draft)
    assert read_manifest(tmp_path) == with_draft
    assert read_manifest(tmp_path).digest() == with_draft.digest() != without.digest()
    assert [bucket.name for bucket in with_draft.graphs] == [
        "verify_b1_t8_s64_sampled",
        "draft_prefill_b1_t8_s64_greedy",
        "round_b1_2x1_s64_sampled",
    ]
    write_manifest(tmp_path, without)
    assert "fused" not in (tmp_path / "manifest.json").read_text()
    assert read_manifest(tmp_path) == without
    with pytest.raises(InvalidRequest):
        Branches(())
    with pytest.raises(BadArtifact, match="chain of 2"):
        RoundBucket(1, 4, 64, 4, 3, False, 64, (1, 1))


# --- neighbours

LONG, DEPTH = 400, 4


def cpu(rows: int, nodes: int) -> float:
    return 0.004 + 0.018 * rows * nodes


def neuron(rows: int, nodes: int) -> float:
    return 0.040 if nodes <= 1 else 0.065


DEVICES = {"cpu": cpu, "neuron": neuron}


class Graph:
    """A target that drafts in its graphs, on a clock of the test. rounds: sessions in each."""

    def __init__(self, draft: Decoder, cost: Cost) -> None:
        self.clock, self.rounds, self.cost = Clock(), list[int](), cost
        self.model = model = fused(RIGHT, draft, Branches.chain(DEPTH), rows=4, length=LONG)
        model.padded = lambda rows, nodes: (rows, nodes)  # type: ignore[method-assign]
        self._time(model, "choose", cost)
        self._time(model, "rounds", self._round)
        self._time(model.draft, "choose", lambda rows, nodes: cost(rows, 1) / 4)
        known = {shape: cost(*shape) for shape in product(range(1, 5), (1, 2, 4, 8, 16, 32))}
        self.engine = Engine(
            model,
            sequence_length=LONG,
            max_tree_nodes=1 + DEPTH,
            vocabulary=VOCABULARY,
            times=Times(known, measured=True),
            graphs=GraphRounds(model, known),
            clock=self.clock,
        )

    def asked(self, kinds: Sequence[tuple[bool, int]]) -> list[Session]:
        """Texts after [5, 17, 0], [5, 17, 1], ... kinds: whether each asks, and its tokens"""
        sessions = [opened(self.engine, [5, 17, last]) for last in range(len(kinds))]
        for session, (beside, tokens) in zip(sessions, kinds, strict=True):
            order = Decode(3 + tokens, credit=512, beside=beside)
            self.engine.decode(session, order)
        return sessions

    def measured(self) -> None:
        [session] = self.asked([(True, 20)])
        finish(self.engine, session)
        self.engine.close(session)
        self.rounds.clear()

    def live(self, sessions: Sequence[Session], proposing: Sequence[int] = ()) -> Iterator[None]:
        """Make forwards until a text has ended; all clients have read what there is. Those of
        these numbers propose what their target will say.
        """
        streams = {number: self.engine.join(sessions[number]) for number in proposing}
        for first in count(step=7):
            for number, stream in streams.items():
                session, made = sessions[number], len(made_by(sessions[number]))
                ahead = neighbours_text(number)[made : made + 7]
                self.engine.append(session, stream, chain(session.length - 1, ahead, 0.9, first))
            assert self.engine.step(), "somebody can go on"
            for session in sessions:
                self.engine.acknowledge(session, session.length)
            yield
            if any(session.end is not End.NOT for session in sessions):
                return

    def _round(self, rows: int, nodes: int) -> float:
        self.rounds.append(rows)
        return self.cost(rows, nodes) + DEPTH * self.cost(rows, 1) / 6

    def _time(self, model: object, name: str, cost: Cost) -> None:
        def note(segments: Sequence[Segment]) -> None:
            self.clock.now += cost(len(segments), max(len(one.tokens) for one in segments))

        watch(model, name, note)


def neighbours_text(last: int) -> list[int]:
    return own_text((5, 17, last), tokens=217)


@pytest.mark.covering(2)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("draft", [RIGHT, USELESS], ids=["right", "useless"])
@pytest.mark.parametrize("drafted", [1, 3])
@pytest.mark.parametrize("proposed", [False, True], ids=["bare", "with candidates"])
def test_who_did_not_ask_for_rounds_keeps_its_root_only_rate(
    device: str, draft: Decoder, drafted: int, proposed: bool
) -> None:
    """0.98 of what forwards of the same sessions' roots give it, at any moment."""
    graph = Graph(draft, DEVICES[device])
    graph.measured()
    sessions = graph.asked([(last < drafted, 200) for last in range(4)])
    others, began = sessions[drafted:], graph.clock.now
    for _ in graph.live(sessions, range(drafted, 4) if proposed else ()):
        promised = TUNING.min_rate * (graph.clock.now - began) / graph.cost(4, 1)
        assert all(len(made_by(one)) >= promised - TUNING.max_deficit for one in others)
    for last, one in enumerate(sessions):
        assert made_by(one) == neighbours_text(last)[: len(made_by(one))]


def test_rounds_are_made_beside_others_that_are_ahead_and_where_they_pay() -> None:
    """Three texts get five tokens each in less time than two forwards take."""
    graph = Graph(RIGHT, free)
    graph.measured()
    sessions = graph.asked([(last < 3, 200) for last in range(4)])
    for _ in graph.live(sessions, [3]):
        pass
    assert 3 in graph.rounds
    assert len(made_by(sessions[0])) > 1.5 * sessions[0].spent.forwards


def test_a_text_goes_on_in_rounds_when_it_is_alone_again() -> None:
    graph = Graph(RIGHT, neuron)
    sessions = graph.asked([(True, 200), (False, 40)])
    for _ in graph.live(sessions):
        pass
    assert not graph.rounds, "none was measured, so nobody knows whether one pays"
    before, forwards = len(made_by(sessions[0])), sessions[0].spent.forwards
    finish(graph.engine, sessions[0])
    assert made_by(sessions[0]) == neighbours_text(0)[:200]
    assert sessions[0].spent.forwards - forwards <= 2 + (200 - before) / (1 + DEPTH)
