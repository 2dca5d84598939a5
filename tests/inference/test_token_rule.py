"""A rule is a function of the prefix: at every node of a tree it says what it says behind the same
tokens alone. Penalties and biases are those of transformers.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.errors import InvalidRequest
from inference.sampling import SamplingParams
from inference.token_rule import Adjustment, TokenRule, plain_rule
from inference.tree.token_tree import IntArray, TokenTree
from tests.support.tiers import examples

VOCABULARY = 40
SETTINGS = [
    SamplingParams(
        repetition_penalty=1.5,
        presence_penalty=-0.75,
        frequency_penalty=0.5,
        logit_bias=((3, 2.0), (39, -100.0)),
    ),
    SamplingParams(presence_penalty=1.25),
    SamplingParams(),
]


def path_to(tree: TokenTree, node: int) -> list[int]:
    tokens: list[int] = tree.tokens[tree.mask[node]][1:].tolist()
    return tokens


class Hashed:
    """A Matcher by hand: two of three tokens may follow a text, by its hash."""

    words = 2

    def __init__(self) -> None:
        self.text: list[int] = []
        self.consumed = 0

    def may_follow(self, token: int) -> bool:
        return token < VOCABULARY and zlib.crc32(bytes([*self.text, token])) % 3 > 0

    def consume(self, token: int) -> bool:
        self.consumed += 1
        if self.may_follow(token):
            self.text.append(token)
            return True
        return False

    def rollback(self, count: int) -> None:
        del self.text[len(self.text) - count :]

    def fill(self, allowed: IntArray) -> None:
        bits = [self.may_follow(token) for token in range(32 * self.words)]
        allowed[:] = np.packbits(bits, bitorder="little").view(np.int32)

    def forced(self) -> Sequence[int]:
        return [token for token in range(VOCABULARY) if self.may_follow(token)][:1]


def walkable(length: int, seed: int) -> list[int]:
    """Tokens that the hand's matcher takes."""
    matcher, generator = Hashed(), np.random.default_rng(seed)
    while len(matcher.text) < length:
        matcher.consume(int(generator.integers(VOCABULARY)))
    return matcher.text


@st.composite
def trees(draw: st.DrawFn) -> TokenTree:
    """Trees of few tokens, so that paths repeat them."""
    edges: dict[tuple[int, int], None] = {}
    for node in range(draw(st.integers(0, 14))):
        edge = draw(st.integers(0, node)), draw(st.integers(0, 9))
        if edge[0] <= len(edges):
            edges.setdefault(edge)
    parents, tokens = zip((-1, 5), *edges, strict=True)
    return TokenTree(np.array(tokens), np.array(parents))


def said(rule: Adjustment, row: int) -> tuple[list[int], dict[int, tuple[float, float]]]:
    """A node's mask, and its changes that are some."""
    allowed = [] if rule.allowed is None else rule.allowed[row].tolist()
    parts = zip(rule.ids[row].tolist(), rule.factors[row], rule.biases[row], strict=True)
    return allowed, {id_: (f, b) for id_, f, b in parts if (f, b) != (1.0, 0.0)}


@given(trees(), st.sampled_from(SETTINGS), st.integers(0, 8), st.integers(0, 3))
@settings(max_examples=examples(80))
def test_a_node_is_told_what_its_prefix_alone_is_told(
    tree: TokenTree, params: SamplingParams, committed: int, made: int
) -> None:
    made = min(made, committed)
    output = walkable(committed, seed=committed)
    prompt = [1, 2, 2, *output[:made]]
    rule = TokenRule(prompt, replace(params, made=made), matcher := Hashed())
    rule.commit(output[made:])
    nodes = list(reversed(range(len(tree))))
    for found in (rule.adjust(tree, nodes), rule.adjust(tree, nodes)):
        for row, node in enumerate(nodes):
            path = path_to(tree, node)
            alone = TokenRule([1, 2, 2], params, Hashed())
            alone.commit([*output, *path])
            try:
                expected = said(alone.adjust(TokenTree.chain([5]), [0]), 0)
            except InvalidRequest:  # the matcher excludes it
                assert found.allowed is not None
                assert (found.allowed[row] == -1).all()
                assert not rule.forced(path)
                assert rule.allows(path, [0, 39]) == [True, True]
            else:
                assert said(found, row) == expected
                assert rule.allows(path, range(70)) == [
                    bool(expected[0][token >> 5] >> (token & 31) & 1) if token < 64 else False
                    for token in range(70)
                ]
                assert rule.forced(path) == alone.forced([])
    assert matcher.text == output


def test_each_node_is_consumed_once_and_a_text_that_breaks_its_grammar_is_refused() -> None:
    tree = TokenTree.chain([1, *walkable(30, seed=1)])
    TokenRule([1], SamplingParams(), matcher := Hashed()).adjust(tree, range(len(tree)))
    assert matcher.consumed == 30
    excluded = next(token for token in range(VOCABULARY) if not Hashed().may_follow(token))
    with pytest.raises(InvalidRequest, match=rf"token {excluded} at position 2"):
        TokenRule([1, 1, excluded], SamplingParams(made=1), Hashed())


def test_a_text_does_not_end_before_its_least_length() -> None:
    """At each node of a tree, behind what is committed, and where it goes on elsewhere."""
    params = SamplingParams(min_tokens=3, end_ids=(2, 40))
    tree = TokenTree(np.array([7, 8, 9, 2]), np.array([-1, 0, 1, 0]))
    for made in range(4):
        rule = plain_rule([5, *[7] * (made + 1)], replace(params, made=made), 41)
        for node, depth in enumerate([0, 1, 2, 1] if made == 3 else [0, 1, 2]):  # 3 is an end
            (words,) = said(rule.adjust(tree, [node]), 0)[:1]
            excluded = {token for token in range(41) if not words[token >> 5] >> (token & 31) & 1}
            assert excluded == ({2, 40} if made + depth < 3 else set())
        assert rule.allows((7,), [2, 7, 40]) == [made + 1 >= 3, True, made + 1 >= 3]
    with pytest.raises(InvalidRequest, match="token 2"):
        plain_rule([5, 7, 2], replace(params, made=2), 41)
