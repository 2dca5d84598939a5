"""Trees, acceptance and static shapes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.errors import InvalidRequest
from inference.tree.token_tree import TokenTree, Verdict, accept_matches


def tree(tokens: list[int], parents: list[int]) -> TokenTree:
    return TokenTree(np.array(tokens), np.array(parents))


@pytest.mark.parametrize(
    ("tokens", "parents", "words"),
    [
        ([], [], "root"),
        ([1, 2], [-1], "parents"),
        ([1], [0], "parents\\[0\\]"),
        ([1, 2], [-1, 1], "node 1 has parent 1"),
        ([1, 2, 3], [-1, 2, 0], "node 1 has parent 2"),
        ([1, 2], [-1, -1], "node 1 has parent -1"),
        ([1, -2], [-1, 0], "-2"),
        ([1, 2, 2], [-1, 0, 0], "distinct"),
        ([1, 2**31], [-1, 0], "32 bits"),
        ([1, 2.5], [-1, 0], "integers"),
    ],
)
def test_what_is_not_a_tree_is_refused_in_words(
    tokens: list[int], parents: list[int], words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words):
        tree(tokens, parents)


def test_a_tree_cannot_be_changed_after_its_checks() -> None:
    arrays = np.array([1, 2]), np.array([-1, 0])
    drawn = TokenTree(*arrays)
    arrays[1][1] = 7
    assert drawn.parents.tolist() == [-1, 0]
    with pytest.raises(ValueError, match="read-only"):
        drawn.tokens[0] = 5


@given(st.lists(st.integers(0, 4), max_size=12))
def test_the_mask_of_any_tree_is_ancestors_and_self(choices: list[int]) -> None:
    parents = [-1, *(choice % (index + 1) for index, choice in enumerate(choices))]
    drawn = tree(list(range(len(parents))), parents)
    for node in range(len(parents)):
        ancestors, walk = {node}, node
        while (walk := parents[walk]) >= 0:
            ancestors.add(walk)
        assert set(np.flatnonzero(drawn.mask[node])) == ancestors
        assert drawn.depths[node] == len(ancestors) - 1


def test_each_of_many_trees_is_walked_as_if_alone_and_within_one_branch() -> None:
    """Token 7 of the last tree stands below 5 and below 6: only one is the accepted node's."""
    trees = [tree([0], [-1]), tree([0, 5, 6, 7], [-1, 0, 1, 2]), tree([0, 5, 6], [-1, 0, 0])]
    trees.append(tree([0, 5, 6, 7, 7], [-1, 0, 0, 1, 2]))
    chosen = [[5], [5, 6, 7, 8], [6, 6, 5], [6, 7, 7, 1, 2]]
    assert accept_matches(trees, [np.array(tokens) for tokens in chosen]) == [
        Verdict((), 5),
        Verdict((1, 2, 3), 8),
        Verdict((2,), 5),
        Verdict((2, 4), 2),
    ]


@given(st.lists(st.sets(st.integers(0, 59), max_size=3), min_size=1, max_size=4))
def test_walks_end_at_the_first_node_that_the_target_leaves(left: list[set[int]]) -> None:
    """Below that node the target's choices are nodes of the chain again."""
    drawn, chosen, expected = TokenTree.chain(range(100, 160)), [], []
    for nodes in left:
        chosen.append(np.array([7 if node in nodes else 101 + node for node in range(60)]))
        node = 0
        while node < 59 and chosen[-1][node] == drawn.tokens[node + 1]:
            node += 1
        expected.append(Verdict(tuple(range(1, node + 1)), int(chosen[-1][node])))
    assert accept_matches([drawn] * len(left), chosen) == expected
