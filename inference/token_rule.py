"""How a request adjusts logits: by penalties, biases, and a grammar or minimum length. It depends
only on the committed tokens and the path to a node, so candidates cannot affect the output.
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
"""Tokens on the path from a tree's root (excluded) to a node (included)."""


class Adjustment(NamedTuple):
    """Adjustments of the logits at p picked nodes.

    A row of ids is padded with id 0, factor 1 and bias 0, which have no effect.
    """

    allowed: IntArray | None  # [p, ceil(V / 32)] a bit for each id, lowest first; None: all are
    ids: IntArray  # [p, m] distinct within a row but for the padding
    factors: FloatArray  # [p, m] a positive logit is divided, a negative one multiplied
    biases: FloatArray  # [p, m] added afterwards

    @classmethod
    def none(cls, nodes: int) -> Adjustment:
        """Return an adjustment without effect, for this number of nodes."""
        nothing = np.zeros((nodes, 0), dtype=np.float32)
        return cls(None, nothing.astype(np.int32), nothing, nothing)

    def changes(self, vocabulary: int) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
        """Return node, id, factor and bias of each change, [n] each. Ids beyond the vocabulary,
        which a draft's head may lack, are omitted.
        """
        changed = (self.factors != 1) | (self.biases != 0)
        changed &= self.ids < vocabulary
        nodes = changed.nonzero()[0].astype(np.int32)
        return nodes, self.ids[changed], self.factors[changed], self.biases[changed]


class Matcher(Protocol):
    """The state of a grammar after some tokens.

    Any method may raise InvalidRequest if the grammar exceeds its work limit; then every later call
    raises it, too.
    """

    words: int  # number of 32-bit words in a bit set of ids

    def consume(self, token: int) -> bool:
        """Advance by a token. Return False, without advancing, if the grammar excludes it."""
        ...

    def rollback(self, count: int) -> None:
        """Undo the last `count` tokens."""
        ...

    def fill(self, allowed: IntArray) -> None:  # [words]
        """Set the bits of the ids that may follow, and clear all others."""
        ...

    def forced(self) -> Sequence[int]:
        """Return the tokens that must follow, as far as they are determined."""
        ...


class LeastLength:
    """A Matcher that allows no end before the output has `minimum` tokens.

    end_ids: ids that end an output
    vocabulary: number of ids of the tokenizer
    """

    def __init__(self, minimum: int, end_ids: Sequence[int], vocabulary: int) -> None:
        self.words = -(-vocabulary // 32)
        self._minimum, self._length = minimum, 0
        self._end_ids = frozenset(token for token in end_ids if token < vocabulary)

    def consume(self, token: int) -> bool:
        ends = self._length < self._minimum and token in self._end_ids
        self._length += not ends
        return not ends

    def rollback(self, count: int) -> None:
        self._length -= count

    def fill(self, allowed: IntArray) -> None:  # [words]
        allowed[:] = -1
        if self._length < self._minimum:
            for token in self._end_ids:
                allowed[token >> 5] &= ~np.uint32(1 << (token & 31)).astype(np.int32)

    def forced(self) -> Sequence[int]:
        return ()


class TokenRule:
    """The token rule of a request, advanced by committed tokens. Not thread-safe.

    commit() only stores tokens, so it is fast and cannot fail. The next query processes them, and
    may raise the matcher's errors.
    """

    def __init__(
        self, prompt: Sequence[int], params: SamplingParams, matcher: Matcher | None
    ) -> None:
        """Raises InvalidRequest if the prompt's last `made` tokens violate the grammar."""
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
        """Return the tokens that the grammar forces after the committed tokens and this path."""
        self._catch_up()
        if self._matcher is None:
            return ()
        count = _consumed(self._matcher, path)
        tokens = self._matcher.forced() if count == len(path) else ()
        self._matcher.rollback(count)
        return tokens

    def allows(self, path: TokenPath, tokens: Sequence[int]) -> list[bool]:
        """Return for each token whether it may follow the committed tokens and this path."""
        self._catch_up()
        allowed = self._allowed([path])
        if allowed is None:
            return [True] * len(tokens)
        words, last = allowed[0], 32 * allowed.shape[1]
        return [token < last and bool(words[token >> 5] >> (token & 31) & 1) for token in tokens]

    def _catch_up(self) -> None:
        """Process committed tokens. Raises InvalidRequest, now and in all later calls, if they
        violate the grammar.
        """
        tokens, self._behind = self._behind, []
        self._changes.commit(tokens)
        count = len(tokens) if self._matcher is None else _consumed(self._matcher, tokens)
        self._position += count
        if count < len(tokens):
            self._behind = tokens[count:]
            raise InvalidRequest(
                f"the text breaks its grammar: token {tokens[count]} at position {self._position}"
            )

    def _allowed(self, paths: Sequence[TokenPath]) -> IntArray | None:  # [paths, words]
        """Return the ids that may follow each path. Each node is consumed once, depth first."""
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
    """Return the rule of a request without grammar. vocabulary: number of the tokenizer's ids"""
    has_minimum = bool(params.min_tokens and params.end_ids)
    matcher = LeastLength(params.min_tokens, params.end_ids, vocabulary) if has_minimum else None
    return TokenRule(prompt, params, matcher)


class _Changes:
    """Factors and biases of logits, for the ids whose logits they change.

    prompt: tokens that only the repetition penalty applies to
    """

    def __init__(self, prompt: Sequence[int], params: SamplingParams) -> None:
        self._prompt, self._params = frozenset(prompt), params
        self._repetition = params.repetition_penalty
        self._penalised = bool(params.presence_penalty or params.frequency_penalty)
        self._named = dict(params.logit_bias)
        self._counts = Counter[int]()  # how often each token is in the output
        self._places = dict[int, int]()  # id -> its index in the arrays
        self._ids: IntArray = np.zeros(0, dtype=np.int32)
        self._pairs: FloatArray = np.zeros((0, 2), dtype=np.float32)  # factors and biases
        self._set({*self._named, *(self._prompt if self._repetition != 1 else ())})

    def commit(self, tokens: Sequence[int]) -> None:
        if self._repetition != 1 or self._penalised:
            self._counts.update(tokens)
            self._set(set(tokens))

    def behind(self, paths: Sequence[TokenPath]) -> tuple[IntArray, FloatArray, FloatArray]:
        """Return the ids, factors and biases that apply after each path, [paths, m] each."""
        if self._repetition == 1 and not self._penalised:
            paths = [()] * len(paths)
        path_counts = [Counter(path) for path in paths]
        new = [[token for token in counts if token not in self._places] for counts in path_counts]
        extra, base = max(map(len, new), default=0), len(self._ids)
        ids = np.zeros((len(paths), base + extra), dtype=np.int32)
        pairs = np.zeros((*ids.shape, 2), dtype=np.float32)
        pairs[..., 0] = 1.0
        ids[:, :base], pairs[:, :base] = self._ids, self._pairs
        for row, (counts, tokens) in enumerate(zip(path_counts, new, strict=True)):
            ids[row, base : base + len(tokens)] = tokens
            places = {token: base + index for index, token in enumerate(tokens)}
            for token, count in counts.items():
                place = places.get(token, self._places.get(token, 0))
                pairs[row, place] = self._pair(token, self._counts[token] + count)
        return ids, pairs[..., 0], pairs[..., 1]

    def _set(self, tokens: Iterable[int]) -> None:
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
        return self._repetition if count or token in self._prompt else 1.0, bias


def _path_to(tree: TreeNodes, node: int) -> TokenPath:
    path = list[int]()
    while (parent := int(tree.parents[node])) >= 0:
        path.append(int(tree.tokens[node]))
        node = parent
    return path[::-1]


def _consumed(matcher: Matcher, path: TokenPath) -> int:
    """Consume the path up to its first excluded token. Return the number of consumed tokens."""
    return next((i for i, token in enumerate(path) if not matcher.consume(token)), len(path))


def _common(first: TokenPath, second: TokenPath) -> int:
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))
