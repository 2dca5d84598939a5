"""How trees grow: a node is sent once, policies keep their budgets, and the text stays its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest

from inference.backends import Ranked
from inference.drafters.draft_tree import DraftTree
from inference.drafters.growing_proposer import Draft, GrowingProposer
from inference.drafters.round_proposer import BestFirst, Budget, Chain, Policy
from inference.errors import InvalidRequest
from inference.loop.draft_tuning import TUNING
from inference.planner.prices import Prices, Usage
from inference.tree.growing_tree import NOWHERE, Mark
from tests.support.exact import GREEDY
from tests.support.scripted import (
    BASE,
    CALL,
    PROMPT,
    Says,
    ScriptedModel,
    World,
    candidates_of,
    disagreeing,
    knowledge,
    own_text,
    perfect,
    progress,
    scripted_proposer,
    useless,
)

TEXT = own_text(PROMPT, 400)


def fair(says: Says, tokens: int = 200, times: float = 1.0) -> tuple[World, GrowingProposer]:
    proposer = scripted_proposer(says, times=times)
    return World(proposer, tokens), proposer


@pytest.mark.parametrize(("says", "forwards"), [(perfect, 80), (disagreeing, 125)])
def test_paths_are_sent_once_and_for_their_worth_and_save_forwards(
    says: Says, forwards: int
) -> None:
    """What is sent is worth the floor, or leads to what is."""
    world, paths = fair(says)[0].live(), dict[int, tuple[int, ...]]()
    assert world.made == TEXT[:200]
    assert world.forwards < forwards
    edges: dict[int, tuple[int, int, float]] = {}  # parent, position and chance by number
    for message in world.sent:
        base, sent = tuple(world.session.tokens[: message.base + 1]), candidates_of(message)
        for number, parent, token, chance in sent:
            paths[number] = (*(base if parent == BASE else paths[parent]), token)
            edges[number] = parent, len(paths[number]) - 1, chance
        for leaf in {node.number for node in sent} - {node.parent for node in sent}:
            node, value = leaf, 1.0
            while node != BASE and edges[node][1] > message.base:
                node, value = edges[node][0], value * edges[node][2]
            assert value >= 0.005 - 1e-6
    assert len(set(paths.values())) == len(paths) > 100


def test_a_node_is_sent_where_its_value_is_worth_more_than_its_bytes() -> None:
    prices = Prices()
    assert prices.min_value() == pytest.approx(0.005)
    dear = Prices(tariff=prices.tariff._replace(byte_up=1e-4))
    assert dear.min_value() == pytest.approx(0.005)  # nobody knows what a token is worth
    dear.committed(10, dear.effort._replace(wall=0.1))
    assert dear.token == pytest.approx(0.01)
    assert dear.min_value() == pytest.approx(0.05)
    dear.committed(1000, dear.effort._replace(wall=1e-4))
    assert dear.min_value() == 1.0


def test_live_sent_nodes_stay_within_what_the_target_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    world, _ = fair(disagreeing)
    monkeypatch.setattr("inference.drafters.growing_proposer.MAX_CANDIDATES", 20)
    most = 0
    while world.goes_on:
        world.turn()
        most = max(most, world.session.candidates.live)
    assert 5 < most <= 20


def test_a_useless_or_slow_draft_falls_silent_and_tries_again_now_and_then() -> None:
    world, proposer = fair(useless, 400)
    while len(world.made) < 200:
        world.turn()
    before, tokens = proposer.usage.calls, 400 - len(world.made)
    world.live()
    assert 1 <= proposer.usage.calls - before <= 1 + tokens // TUNING.tries_again
    world, proposer = fair(disagreeing, 400, times=4.0)  # slower than the target
    world.live()
    assert 3 <= proposer.usage.calls <= 40
    world, _ = fair(lambda prefix: (useless if len(prefix) < 150 else perfect)(prefix), 400)
    while world.session.length < 149:
        world.turn()
    forwards, left = world.forwards, 400 - len(world.made)
    assert world.live().forwards - forwards < 0.75 * left  # useful again


def test_a_call_must_bring_more_on_a_battery_and_beside_the_target() -> None:
    plugged, battery, beside = Prices(), Prices(battery=True), Prices(holds_target=True)
    for prices in (plugged, battery, beside):
        prices.committed(10, prices.effort._replace(wall=0.2))  # 20 ms a token
    assert plugged.width([0.01], lambda width: 0.01) == 1
    assert battery.width([0.01], lambda width: 0.01) == 0
    assert battery.width([0.02], lambda width: 0.01) == 1
    assert beside.width([0.4], lambda width: 0.01) == 0
    assert beside.width([0.6], lambda width: 0.01) == 1
    assert beside.width([0.6, 1.2], lambda width: 0.01 * width) == 2


def test_what_the_target_does_not_hold_any_more_is_sent_again() -> None:
    world, proposer = fair(disagreeing)
    for _ in range(20):
        world.turn()
    world.hear()
    world.flush()
    live, numbers, now = world.session.candidates.live, world.numbers, world.now
    position = world.session.length
    assert live > 0
    proposer.on_progress(progress(position, [], numbers, live), now)
    assert world.flush() is None
    proposer.on_progress(progress(position, [], 0, 0), now)  # none can be there yet
    assert world.flush() is None
    proposer.on_progress(progress(position, [], numbers, 0), now)
    assert world.flush(now=0.0) is not None


def test_keys_of_what_lives_on_are_kept_and_all_others_are_free() -> None:
    """A row with room for 40 nodes lasts, and no node that was ranked is fed again."""
    model = ScriptedModel(disagreeing, capacity=140)
    proposer = Draft(model).proposer(0, knowledge(), Prices(), room=40)
    proposer.open(PROMPT, GREEDY)
    assert not proposer.feed()
    fed, stayed = 0, 0
    for step in range(90):
        for _ in range(3):
            if proposer.choose(0.0):
                segment = proposer.segment()
                fed += len(segment.tokens)
                proposer.take(model.rank([segment], TUNING.width)[0], CALL)
        stayed += disagreeing((*PROMPT, *TEXT[:step]))[0][0] == TEXT[step]
        proposer.on_progress(progress(len(PROMPT) + step, TEXT[step : step + 1]), 0.0)
    assert proposer.usage.nodes > 5 * 40
    assert stayed > 50
    assert fed <= proposer.usage.nodes + 90 - stayed


def test_a_row_that_is_full_ends_drafting_and_nothing_else() -> None:
    proposer = scripted_proposer(perfect, room=4)
    proposer.open(PROMPT, GREEDY, end=len(PROMPT) + 300)
    while proposer.work(0.0) is not None:
        pass
    assert proposer.usage.nodes == 4
    for step in range(300):
        proposer.on_progress(progress(len(PROMPT) + step, TEXT[step : step + 1]), 0.0)
        proposer.work(0.0)
    with pytest.raises(ValueError, match=f"not {len(PROMPT) + 300}"):
        proposer.on_progress(progress(len(PROMPT) + 301, [0]), 0.0)


class Ranker:
    """A draft whose children of a node are 10 * token + rank."""

    def __init__(self, of: DraftTree) -> None:
        self.tree, self.ranked = of, {NOWHERE}

    def __call__(self, nodes: Sequence[Mark], k: int) -> Ranked:
        assert self.ranked.issuperset(map(self.tree.parent, nodes))
        self.ranked |= set(nodes)
        tokens = [self.tree.token(node) for node in nodes]
        ids = np.array([[10 * token + rank for rank in range(k)] for token in tokens], np.int32)
        scores = [[-(1.0 + token % 3) * rank for rank in range(k)] for token in tokens]
        return Ranked(ids, np.array(scores, np.float32))


def tree() -> DraftTree:
    return DraftTree(1, 0, 1000)


@pytest.mark.parametrize("policy", [Chain(4), BestFirst(12, 4)], ids=["chain", "best first"])
@pytest.mark.parametrize(
    "budget",
    [Budget(0, 5), Budget(5, 0), Budget(1, 1), Budget(3, 9), Budget(40, 2), Budget(40, 40)],
)
def test_policies_keep_their_budgets_and_make_trees(policy: Policy, budget: Budget) -> None:
    whole = tree()
    grown = policy.grow(whole, budget, Ranker(whole))
    assert len(grown) <= min(budget.nodes, 12)
    assert all(whole.position_of(node) <= budget.depth for node in grown)
    sent = {whole.root}
    for node in grown:
        assert whole.parent(node) in sent
        sent.add(node)
    ranks = [whole.rank(node) for node in grown]
    assert ranks == sorted(ranks)
    if isinstance(policy, Chain):  # the likeliest token again and again
        likeliest = [10, 100, 1000, 10_000][: min(budget.nodes, budget.depth)]
        assert [whole.token(node) for node in grown] == likeliest
        assert [whole.position_of(node) for node in grown] == [*range(1, len(likeliest) + 1)]


def test_a_senseless_policy_is_refused() -> None:
    for policy, sizes in ((Chain, (-1,)), (BestFirst, (0, 3))):
        with pytest.raises(InvalidRequest):
            policy(*sizes)


def test_a_dynamic_tree_holds_the_most_probable_nodes() -> None:
    whole = tree()
    grown = BestFirst(nodes=8, depth=3, width=3).grow(whole, Budget(8, 3), Ranker(whole))
    values: dict[tuple[int, ...], float] = {(): 1.0}
    tokens: dict[tuple[int, ...], int] = {(): 1}
    for depth in range(3):
        for path in [path for path in values if len(path) == depth]:
            sharp = 1.0 + tokens[path] % 3
            weights = np.exp(-sharp * np.arange(3))
            for rank in range(3):
                values[(*path, rank)] = values[path] * weights[rank] / weights.sum()
                tokens[(*path, rank)] = 10 * tokens[path] + rank
    expected = sorted((value for path, value in values.items() if path), reverse=True)[:8]
    assert [math.exp(-whole.rank(node)) for node in grown] == pytest.approx(expected)


def test_a_dynamic_tree_leaves_out_what_cannot_be_chosen_and_ranks_no_more_than_it_sends() -> None:
    """A nucleus of one token makes a chain; of equal tokens no more are expanded than fit."""

    def ranked(nodes: Sequence[Mark], k: int, other: float) -> Ranked:
        assert len(nodes) <= 16
        ids = np.arange(k, dtype=np.int32)[None].repeat(len(nodes), 0)
        return Ranked(ids, np.where(ids == 0, 0, other).astype(np.float32))

    whole, widest = tree(), BestFirst(16, 6)
    chain = widest.grow(whole, Budget(16, 6), partial(ranked, other=-1e9))
    assert [whole.position_of(node) for node in chain] == [1, 2, 3, 4, 5, 6]
    assert len(widest.grow(tree(), Budget(16, 6), partial(ranked, other=0.0))) == 16


def test_a_pause_raises_the_price_of_a_token_until_it_is_forgotten() -> None:
    prices, remembered = Prices(), int(TUNING.remembered_tokens)
    assert prices.token == 0.0
    for _ in range(10):
        prices.committed(1, Usage(wall=0.1))
    assert prices.token == pytest.approx(0.1)
    prices.committed(1, Usage(wall=5.0))
    behind = prices.token
    assert 0.1 < behind < 5.0
    for _ in range(remembered):
        prices.committed(1, Usage(wall=0.1))
        assert 0.1 < prices.token < behind
        behind = prices.token
    for tokens in (remembered, 2 * remembered):  # they leave nothing of what came before
        prices.committed(1, Usage(wall=5.0))
        prices.committed(tokens, Usage(wall=0.1 * tokens))
        assert prices.token == pytest.approx(0.1)
