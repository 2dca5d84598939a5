"""The rule for the choice of a text's tokens: penalties, biases, and a grammar or minimum length.

It is a function of the text's prefix: its result at a node of a tree depends only on the committed
tokens and the path to the node, so candidates cannot affect the output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from inference.errors import InvalidRequest
from inference.sampling import SamplingParams
from inference.tree.token_tree import IntArray, TreeNodes

FloatArray = NDArray[np.float32]

TokenPath = Sequence[int]
"""Tokens from below a tree's root down to a node."""


class Adjustment(NamedTuple):
    """Changes of the logits at p picked nodes.

    A row of ids is padded with id 0, factor 1 and bias 0, which change nothing.
    """

    allowed: IntArray | None  # [p, ceil(V / 32)] a bit for each id, lowest first; None: all are
    ids: IntArray  # [p, m] distinct within a row but for the padding
    factors: FloatArray  # [p, m] divide a logit above 0, and multiply one below
    biases: FloatArray  # [p, m] added after that

    @classmethod
    def none(cls, nodes: int) -> Adjustment:
        """Return an adjustment that changes no logits at so many nodes."""
        nothing = np.zeros((nodes, 0), dtype=np.float32)
        return cls(None, nothing.astype(np.int32), nothing, nothing)

    def changes(self, vocabulary: int) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
        """Return node, id, factor and bias of each change, [n] each. An id beyond the vocabulary,
        which a draft's head may lack, has none.
        """
        named = (self.factors != 1) | (self.biases != 0)
        named &= self.ids < vocabulary
        nodes = named.nonzero()[0].astype(np.int32)
        return nodes, self.ids[named], self.factors[named], self.biases[named]


class Matcher(Protocol):
    """The state of a grammar after some tokens.

    Any call may raise InvalidRequest, and then every later call does: the grammar exceeds its
    work limit.
    """

    words: int  # 32-bit words of a set of ids

    def consume(self, token: int) -> bool:
        """Advance by a token; False, without a change, where the grammar excludes it."""
        ...

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens."""
        ...

    def fill(self, allowed: IntArray) -> None:  # [words]
        """Set the bits of the ids that may follow, and clear all others."""
        ...

    def forced(self) -> Sequence[int]:
        """Return the tokens that must follow, as far as they are determined."""
        ...


class LeastLength:
    """A Matcher of texts that do not end before they have `least` tokens.

    end_ids: would end a text
    vocabulary: ids of the tokenizer
    """

    def __init__(self, least: int, end_ids: Sequence[int], vocabulary: int) -> None:
        self.words = -(-vocabulary // 32)
        self._least, self._length = least, 0
        self._end_ids = frozenset(token for token in end_ids if token < vocabulary)

    def consume(self, token: int) -> bool:
        ends = self._length < self._least and token in self._end_ids
        self._length += not ends
        return not ends

    def rollback(self, count: int) -> None:
        self._length -= count

    def fill(self, allowed: IntArray) -> None:  # [words]
        allowed[:] = -1
        if self._length < self._least:
            for token in self._end_ids:
                allowed[token >> 5] &= ~np.uint32(1 << (token & 31)).astype(np.int32)

    def forced(self) -> Sequence[int]:
        return ()


class TokenRule:
    """The rule of a text, up to its last committed token. One thread at a time.

    Committed tokens are processed by the next question, so that commit() can neither fail nor
    take long. A question may raise what the matcher raises.
    """

    def __init__(
        self, prompt: Sequence[int], params: SamplingParams, matcher: Matcher | None
    ) -> None:
        """Raises InvalidRequest where the prompt's last `made` tokens break the grammar."""
        begin = len(prompt) - params.made
        self._changes = _Changes(prompt[:begin], params)
        self._matcher, self._position = matcher, begin
        self._behind = list(prompt[begin:])
        self._catch_up()

    def commit(self, tokens: Sequence[int]) -> None:
        """Advance by committed tokens."""
        self._behind += tokens

    def adjust(self, tree: TreeNodes, nodes: Sequence[int]) -> Adjustment:
        """Return the adjustment of the logits at these nodes of a tree.

        The root, whose parent is -1, is the last committed token. A node that the grammar excludes
        allows everything: the target never reaches it.
        """
        self._catch_up()
        paths = [_path_to(tree, node) for node in nodes]
        return Adjustment(self._allowed(paths), *self._changes.behind(paths))

    def forced(self, path: TokenPath) -> Sequence[int]:
        """Return tokens that the grammar forces after the committed text and this path."""
        self._catch_up()
        if self._matcher is None:
            return ()
        taken = _consumed(self._matcher, path)
        tokens = self._matcher.forced() if taken == len(path) else ()
        self._matcher.rollback(taken)
        return tokens

    def allows(self, path: TokenPath, tokens: Sequence[int]) -> list[bool]:
        """Return for each token whether it may follow the committed text and this path."""
        self._catch_up()
        allowed = self._allowed([path])
        if allowed is None:
            return [True] * len(tokens)
        words, last = allowed[0], 32 * allowed.shape[1]
        return [token < last and bool(words[token >> 5] >> (token & 31) & 1) for token in tokens]

    def _catch_up(self) -> None:
        """Process committed tokens. Raises InvalidRequest, now and ever after, where that breaks
        the grammar.
        """
        tokens, self._behind = self._behind, []
        self._changes.commit(tokens)
        taken = len(tokens) if self._matcher is None else _consumed(self._matcher, tokens)
        self._position += taken
        if taken < len(tokens):
            self._behind = tokens[taken:]
            raise InvalidRequest(
                f"the text breaks its grammar: token {tokens[taken]} at position {self._position}"
            )

    def _allowed(self, paths: Sequence[TokenPath]) -> IntArray | None:  # [paths, words]
        """Return the ids that may follow each path. The paths are walked depth first, so that
        each node is consumed once.
        """
        matcher = self._matcher
        if matcher is None:
            return None
        allowed = np.full((len(paths), matcher.words), -1, dtype=np.int32)
        at = list[int]()
        for index in sorted(range(len(paths)), key=lambda index: tuple(paths[index])):
            path = paths[index]
            shared = _common(at, path)
            matcher.rollback(len(at) - shared)
            del at[shared:]
            at += path[shared : shared + _consumed(matcher, path[shared:])]
            if len(at) == len(path):
                matcher.fill(allowed[index])
        matcher.rollback(len(at))
        return allowed


def plain_rule(prompt: Sequence[int], params: SamplingParams, vocabulary: int) -> TokenRule:
    """Return the rule of a text without a grammar. vocabulary: ids of the tokenizer"""
    least = bool(params.min_tokens and params.end_ids)
    matcher = LeastLength(params.min_tokens, params.end_ids, vocabulary) if least else None
    return TokenRule(prompt, params, matcher)


class _Changes:
    """Factors and biases of logits, of the ids for which they are not 1 and 0.

    prompt: tokens that are repeated by an output, and are none of it
    """

    def __init__(self, prompt: Sequence[int], params: SamplingParams) -> None:
        self._given, self._params = frozenset(prompt), params
        self._repetition = params.repetition_penalty
        self._penalised = bool(params.presence_penalty or params.frequency_penalty)
        self._named = dict(params.logit_bias)
        self._counts = Counter[int]()  # of the output's tokens
        self._places = dict[int, int]()  # id -> its index in the arrays
        self._ids: IntArray = np.zeros(0, dtype=np.int32)
        self._pairs: FloatArray = np.zeros((0, 2), dtype=np.float32)  # factors and biases
        self._set({*self._named, *(self._given if self._repetition != 1 else ())})

    def commit(self, tokens: Sequence[int]) -> None:
        if self._repetition != 1 or self._penalised:
            self._counts.update(tokens)
            self._set(set(tokens))

    def behind(self, paths: Sequence[TokenPath]) -> tuple[IntArray, FloatArray, FloatArray]:
        """Return ids, factors and biases after each path, [paths, m] each."""
        if self._repetition == 1 and not self._penalised:
            paths = [()] * len(paths)
        own = [Counter(path) for path in paths]
        new = [[token for token in counts if token not in self._places] for counts in own]
        most, known = max(map(len, new), default=0), len(self._ids)
        ids = np.zeros((len(paths), known + most), dtype=np.int32)
        pairs = np.zeros((*ids.shape, 2), dtype=np.float32)
        pairs[..., 0] = 1.0
        ids[:, :known], pairs[:, :known] = self._ids, self._pairs
        for row, (counts, tokens) in enumerate(zip(own, new, strict=True)):
            ids[row, known : known + len(tokens)] = tokens
            places = {token: known + index for index, token in enumerate(tokens)}
            for token, count in counts.items():
                place = places.get(token, self._places.get(token, 0))
                pairs[row, place] = self._pair(token, self._counts[token] + count)
        return ids, pairs[..., 0], pairs[..., 1]

    def _set(self, tokens: Iterable[int]) -> None:
        """Set the pairs of these tokens as they are now."""
        new = [token for token in tokens if token not in self._places]
        self._places |= {token: len(self._ids) + index for index, token in enumerate(new)}
        self._ids = np.append(self._ids, np.array(new, dtype=np.int32))
        self._pairs = np.append(self._pairs, np.zeros((len(new), 2), dtype=np.float32), axis=0)
        for token in tokens:
            self._pairs[self._places[token]] = self._pair(token, self._counts[token])

    def _pair(self, token: int, count: int) -> tuple[float, float]:
        """Return factor and bias of a token that is in the output `count` times."""
        bias = self._named.get(token, 0.0) - self._params.frequency_penalty * count
        if count:
            bias -= self._params.presence_penalty
        return self._repetition if count or token in self._given else 1.0, bias


def _path_to(tree: TreeNodes, node: int) -> TokenPath:
    path = list[int]()
    while (parent := int(tree.parents[node])) >= 0:
        path.append(int(tree.tokens[node]))
        node = parent
    return path[::-1]


def _consumed(matcher: Matcher, path: TokenPath) -> int:
    """Consume the path up to the first token that is excluded; return how many tokens those are."""
    return next((i for i, token in enumerate(path) if not matcher.consume(token)), len(path))


def _common(one: TokenPath, other: TokenPath) -> int:
    """Return the length of the common beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))
