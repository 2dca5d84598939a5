"""The candidate tree: what is kept of what proposers say, and the order of its worth."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from inference.engine.calibration import HIGHEST, proposers_of
from inference.engine.selection import Selection, best_of, lines_of
from inference.proposer import NOBODY, Nodes
from inference.tree.candidates import (
    MIN_CHANCE,
    REMEMBERED_NUMBERS,
    SUREST,
    CandidateTree,
    Claims,
    Dropped,
    ProposalStream,
)
from inference.tree.token_tree import TokenTree
from tests.support.exact import chain
from tests.support.scripted import BASE, Candidate, nodes_of
from tests.support.tiers import examples

ROOT = 2  # position of the last of PROMPT
PROMPT = [5, 6, 7]


def believed(proposer: int, depth: int, claimed: float) -> float:
    """Every claim, as it is."""
    return claimed


def planted(most: int = 1024) -> CandidateTree:
    """A tree below PROMPT that listens to the streams 1 and 2."""
    tree = CandidateTree(list(PROMPT), most)
    tree.join(), tree.join()
    return tree


def commit(tree: CandidateTree, tokens: Sequence[int]) -> list[Claims]:
    """Commit tokens in the tree and in its text."""
    claims = tree.commit(tokens)
    tree.text += tokens
    return claims


def say(
    tree: CandidateTree,
    *nodes: tuple[int, int, int, float],
    base: int = ROOT,
    stream: int = 1,
    proposer: int = 0,
) -> int:
    """Append (number, parent, token, chance), each as a message; returns how many became, or met,
    a candidate.
    """
    messages = [nodes_of(base, [node], proposer) for node in nodes]
    return len(nodes) - sum(
        tree.append(tree.streams[stream - 1], said, believed).late for said in messages
    )


def best(tree: CandidateTree, most: int = 9999, depth: int = 99) -> Selection:
    return best_of([tree], [most], [depth])


def pass_of(tree: CandidateTree, most: int = 9999, depth: int = 99) -> TokenTree:
    """The tree of a forward pass that begins."""
    return best(tree, most, depth).begin_pass(most)[0][0]


def paths(tree: CandidateTree) -> dict[tuple[int, ...], float]:
    """Tokens below the root to each candidate, and its value, the most valuable first."""
    selection, found = best(tree), list[tuple[int, ...]]()
    nodes = selection.begin_pass(9999)[0][0]
    for token, parent in zip(nodes.tokens.tolist(), nodes.parents.tolist(), strict=True):
        found.append((*found[parent], token) if parent >= 0 else ())
    values = selection.values[0].tolist()
    return dict(zip(found[1:], values[1:], strict=True))


def clamped(chance: float) -> float:
    """A chance as the tree takes it: a sure edge costs something."""
    return min(max(chance, MIN_CHANCE), SUREST)


def exactly(values: Any) -> Any:
    """Equal to these products of clamped chances but for the rounding of 64-bit ranks."""
    return pytest.approx(values, rel=1e-9, abs=1e-300)


def test_a_number_is_known_to_its_stream_alone_and_not_for_ever() -> None:
    tree = planted()
    say(tree, (0, BASE, 10, 0.5))
    assert say(tree, (1, 0, 11, 0.5), stream=2) == 0
    tree.leave(tree.streams[0])
    tree.join()
    assert say(tree, (1, 0, 11, 0.5), stream=2) == 0
    assert tree.live == 1  # what hangs there stays when its stream leaves
    tree = planted()
    say(tree, (0, BASE, 10, 0.5), (1, BASE, 11, 0.5))
    say(tree, (REMEMBERED_NUMBERS, BASE, 12, 0.5))  # takes the place of 0
    assert say(tree, (REMEMBERED_NUMBERS + 1, 0, 13, 0.5)) == 0
    assert say(tree, (REMEMBERED_NUMBERS + 2, REMEMBERED_NUMBERS, 13, 0.5)) == 1


def test_beyond_the_cap_the_least_valuable_are_shed_and_counted() -> None:
    tree = planted(most=8)
    nodes = Nodes(ROOT, 0, [0] * 9, range(10, 19), [0.9 - number / 20 for number in range(9)])
    assert tree.append(tree.streams[0], nodes, believed) == Dropped(late=0, shed=3)
    assert list(paths(tree)) == [(10,), (11,), (12,), (13,), (14,), (15,)]
    assert tree.live == 6
    assert say(tree, (9, 8, 30, 0.5)) == 0  # 8 was shed
    commit(tree, [10, 99])
    late = Nodes(ROOT, 20, [0, 1, 13], [10, 11, 12], [0.5] * 3)
    assert tree.append(tree.streams[0], late, believed) == Dropped(late=3, shed=0)
    assert tree.append(ProposalStream(), late, believed) == Dropped(late=3, shed=0)


def test_what_a_forward_holds_stays_as_it_was_and_is_not_shed() -> None:
    tree = planted(most=8)
    say(tree, *((number, BASE, 10 + number, 0.01) for number in range(4)))
    taken = pass_of(tree)
    fresh = Nodes(ROOT, 4, [0] * 5, range(14, 19), [0.9] * 5)  # 9 in all: no 2 may be shed
    assert tree.append(tree.streams[0], fresh, believed) == Dropped(late=0, shed=0)
    assert taken.tokens.tolist() == [7, 10, 11, 12, 13]
    say(tree, *((number, BASE, 10 + number, 0.9) for number in range(9, 12)))
    assert {(10,), (11,), (12,), (13,)} < set(paths(tree))
    commit(tree, [13])
    say(tree, *((number, 3, 10 + number, 0.9) for number in range(20, 29)))
    assert tree.live == 6


@st.composite
def growths(draw: st.DrawFn) -> tuple[Nodes, list[float]]:
    """Nodes of a random tree of distinct siblings, and the value of each."""
    candidates, values = list[Candidate](), list[float]()
    for number in range(draw(st.integers(0, 24))):
        parent = draw(st.integers(-1, number - 1))
        chance = draw(st.sampled_from([0.0, 2.0**-16, 0.25, 0.5, 0.9, 1.0]))
        candidates.append(Candidate(number, parent, 100 + number, chance))
        values.append(clamped(chance) * (values[parent] if parent >= 0 else 1.0))
    return nodes_of(ROOT, candidates), values


@given(growths(), st.integers(1, 30), st.integers(0, 4))
def test_the_best_are_those_of_a_sort_within_a_depth_and_every_beginning_is_a_tree(
    growth: tuple[Nodes, list[float]], most: int, depth: int
) -> None:
    nodes, values = growth
    tree = planted()
    tree.append(tree.streams[0], nodes, believed)
    selection = best(tree, most)
    taken = selection.begin_pass(most)[0][0]
    assert len(taken) == min(most, 1 + len(values))
    found = selection.values[0][1 : len(taken)].tolist()
    assert found == exactly(sorted(values, reverse=True)[: most - 1])
    assert TokenTree(taken.tokens, taken.parents).mask.tolist() == taken.mask.tolist()
    assert np.array_equal(taken.depths, taken.mask.sum(axis=1) - 1)
    every, shallow = pass_of(tree), pass_of(tree, depth=depth)
    assert sorted(shallow.tokens) == sorted(every.tokens[every.depths <= depth])


@given(
    st.lists(st.tuples(growths(), st.integers(1, 30), st.integers(0, 4)), min_size=1, max_size=4)
)
def test_many_sessions_are_each_answered_as_if_alone(
    asked: list[tuple[tuple[Nodes, list[float]], int, int]],
) -> None:
    trees = [planted() for _ in asked]
    for tree, ((nodes, _), _, _) in zip(trees, asked, strict=True):
        tree.append(tree.streams[0], nodes, lambda proposer, depth, claimed: min(claimed, HIGHEST))
    most, depths = [one[1] for one in asked], [one[2] for one in asked]
    together = best_of(trees, most, depths)
    alone = [best(*one) for one in zip(trees, most, depths, strict=True)]
    for row, own in enumerate(alone):
        values = together.values[row]
        assert values[: own.longest].tolist() == own.values[0].tolist()
        assert not values[own.longest :].any()
    for width in (1, 3, 30):
        for (cut, _), own in zip(together.begin_pass(width), alone, strict=True):
            assert_same(cut, own.begin_pass(width)[0][0])


def test_what_an_earlier_forward_held_changes_no_later_one() -> None:
    """Places of its nodes are taken by others, whose parents have other indices now."""
    small, large = planted(), planted()
    star = Nodes(ROOT, 0, [0] * 20, range(100, 120), [0.5] * 20)
    small.append(small.streams[0], star, believed)
    large.append(large.streams[0], star, believed)
    assert len(pass_of(small)) == 21
    commit(small, [119])
    small.append(small.streams[0], chain(ROOT + 1, [200] * 20, 0.5, first=20), believed)
    (lone, _), (wide, _) = best_of([small, large], [1, 3], [9, 9]).begin_pass(3)
    assert_same(lone, pass_of(small, 1))
    assert_same(wide, pass_of(large, 3))


def assert_same(tree: TokenTree, other: TokenTree) -> None:
    for name in ("tokens", "parents", "depths", "mask"):
        np.testing.assert_array_equal(getattr(tree, name), getattr(other, name))


CHANCES = st.sampled_from([0.0, 0.25, 0.5, 1.0])
NAMED = st.tuples(st.integers(0, 6), st.integers(-1, 6), st.integers(0, 2), CHANCES)
SAID = st.lists(NAMED.filter(lambda said: said[0] != said[1]), max_size=6)
EVENTS = st.one_of(
    st.tuples(st.just("say"), st.integers(1, 2), st.integers(ROOT - 1, ROOT + 4), SAID),
    st.tuples(st.just("advance"), st.lists(st.integers(0, 2), min_size=1, max_size=3)),
    st.tuples(st.just("forward")),
)


@settings(max_examples=examples(200))
@example([("advance", [0, 0, 0]), ("say", 1, 5, [(0, -1, 0, 1.0), (1, 0, 0, 1.0)])])
@example(
    [  # the first of three nodes below each other is raised
        ("say", 1, ROOT, [(0, -1, 0, 0.25), (1, 0, 1, 0.5), (2, 1, 2, 0.5)]),
        ("say", 2, ROOT, [(0, -1, 0, 1.0)]),
    ]
)
@given(st.lists(EVENTS, max_size=25))
def test_the_tree_holds_what_may_still_come_true(events: list[tuple[Any, ...]]) -> None:
    """Beside a second way to keep it: the whole text of every number, and what was claimed of it.
    Numbers come late, twice, or never. A late node may name a committed token or another one, hang
    on what was committed or pruned, or on a number that stands for a committed token now.
    """
    tree = planted()
    tokens, texts = list(PROMPT), dict[tuple[int, int], tuple[int, ...]]()
    chances = dict[tuple[int, ...], float]()
    for event in events:
        if event[0] == "advance":
            commit(tree, event[1])
            tokens += event[1]
            continue
        if event[0] == "forward":
            pass_of(tree, 4)
            continue
        _, stream, base, said = event
        say(tree, *said, base=base, stream=stream)
        for number, parent, token, chance in said:
            below = tuple(tokens[: base + 1]) if base < len(tokens) else None
            above = below if parent == BASE else texts.get((stream, parent))
            texts.pop((stream, number), None)
            if above is not None:
                text = texts[stream, number] = (*above, token)
                chances[text] = max(chances.get(text, 0.0), clamped(chance))
    root = len(tokens)
    alive = {text for text in chances if len(text) > root and text[:root] == tuple(tokens)}
    expected = {
        text[root:]: math.prod(chances[text[: end + 1]] for end in range(root, len(text)))
        for text in alive
    }
    assert paths(tree) == exactly(expected)
    assert tree.live == len(alive)
    assert (tree.token(tree.root), tree.position) == (tokens[-1], len(tokens) - 1)


def lines_run(call: Callable[[], object]) -> int:
    """Lines of Python that a call takes."""
    lines = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return lines


def test_work_is_that_of_what_is_pruned_or_looked_at_however_much_is_kept() -> None:
    small, large = planted(), planted()
    for tree, kept in ((small, 10), (large, 900)):
        say(tree, (0, BASE, 10, 0.9), (1, BASE, 11, 0.1))
        say(tree, *((2 + number, 0, 20 + number, 0.5) for number in range(kept)))
    assert lines_run(lambda: commit(large, [10])) == lines_run(lambda: commit(small, [10]))
    assert (small.live, large.live) == (10, 900)
    assert lines_run(lambda: pass_of(large, 8)) < 30 + lines_run(lambda: pass_of(small, 8))


def test_a_walk_says_who_named_what_and_what_came_of_their_claims() -> None:
    tree = planted()
    say(tree, (0, BASE, 10, 0.5), (1, 0, 11, 0.5), (2, BASE, 20, 0.4), (3, 2, 21, 0.3))
    say(tree, (0, BASE, 10, 0.6), stream=2, proposer=1)
    assert pass_of(tree).tokens.tolist() == [7, 10, 20, 11, 21]
    say(tree, (4, 0, 12, 0.5))  # no forward has computed it
    claimed = commit(tree, [10, 12])
    assert proposers_of([10, 12], claimed) == [1, NOBODY]
    assert claimed == [{0: {10: 0.5, 20: 0.4}, 1: {10: 0.6}}, {0: {11: 0.5, 12: 0.5}}]


def test_without_branches_only_the_likeliest_line_is_computed() -> None:
    tree = planted()
    say(tree, (0, BASE, 8, 0.3), (1, BASE, 9, 0.6), (2, 1, 4, 0.2), (3, 1, 5, 0.7), (4, 0, 3, 0.9))
    [(line, _)] = lines_of([tree], [10], [5]).begin_pass(10)
    assert line.tokens.tolist() == [7, 9, 5]
    assert lines_of([tree], [10], [1]).begin_pass(10)[0][0].tokens.tolist() == [7, 9]
