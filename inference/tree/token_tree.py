"""The token tree, as a forward pass takes it (two arrays, tokens and parents), and its acceptance.

Node 0 is the root, the last committed token. A parent always comes before its children. The target
chooses a token at every node, and a walk follows these choices down the tree. The output is exact
for any tree, proposer, policy or network, because the target's choice at a node depends only on the
tokens before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from inference.errors import InvalidRequest

IntArray = NDArray[np.int32]
_INT32 = np.iinfo(np.int32)


class TreeNodes(Protocol):
    """Token, parent and depth of each node of a tree, which may still grow."""

    @property
    def tokens(self) -> Sequence[int] | IntArray: ...

    @property
    def parents(self) -> Sequence[int] | IntArray: ...

    @property
    def depths(self) -> Sequence[int] | IntArray: ...


@dataclass(frozen=True, eq=False)
class TokenTree:
    """A tree of tokens. Raises InvalidRequest unless it has exactly one root, node 0.

    Siblings carry distinct tokens, so a token identifies a child.
    """

    tokens: IntArray  # [n] int32 token ids, 0 or more
    parents: IntArray  # [n] int32: parents[0] == -1 and 0 <= parents[i] < i

    def __post_init__(self) -> None:
        tokens, parents = _int32(self.tokens, "tokens"), _int32(self.parents, "parents")
        if tokens.ndim != 1 or tokens.shape != parents.shape or len(tokens) == 0:
            raise InvalidRequest(
                f"a tree needs as many parents as tokens, and a root: got {tokens.shape} tokens, "
                f"{parents.shape} parents"
            )
        if parents[0] != -1:
            raise InvalidRequest(
                f"node 0 is the root and has no parent: got parents[0] = {parents[0]}, need -1"
            )
        late = np.flatnonzero((parents[1:] < 0) | (parents[1:] >= np.arange(1, len(parents))))
        if late.size:
            node = int(late[0]) + 1
            raise InvalidRequest(
                f"parents must precede their children: node {node} has parent {parents[node]}"
            )
        if tokens.min() < 0:
            raise InvalidRequest(f"token ids are 0 or more: got {tokens.min()}")
        object.__setattr__(self, "tokens", tokens)
        object.__setattr__(self, "parents", parents)
        edges = set(zip(parents[1:].tolist(), tokens[1:].tolist(), strict=True))
        if len(edges) != len(tokens) - 1:
            raise InvalidRequest(
                "siblings must be distinct tokens: two children of one node carry the same token"
            )

    @classmethod
    def chain(cls, tokens: ArrayLike) -> TokenTree:
        """Return a tree without branches: a chunk of a prompt, or a chain of candidates."""
        ids = _int32(tokens, "tokens")
        return cls(ids, np.arange(-1, len(ids) - 1, dtype=np.int32))

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def depths(self) -> IntArray:  # [n]
        """Number of edges between the root and each node."""
        depths = [0]
        for parent in self.parents[1:].tolist():
            depths.append(depths[parent] + 1)
        return np.array(depths, dtype=np.int32)

    @cached_property
    def mask(self) -> NDArray[np.bool_]:  # [n, n]
        """The attention mask. mask[i, j]: node j is node i or an ancestor of node i."""
        return _sight(self.parents)

    def prefix(self, nodes: int) -> TokenTree:
        """Return the tree of the first `nodes` nodes, or the whole tree if it has fewer."""
        return self if len(self) <= nodes else TokenTree(self.tokens[:nodes], self.parents[:nodes])


def trees_of(
    tokens: IntArray, parents: IntArray, depths: IntArray, sizes: Sequence[int]
) -> list[TokenTree]:
    """Return a tree for each row, made of the row's first nodes.

    The rows must be valid trees, which is not checked. All masks are computed at once, since
    a forward pass has thousands of nodes.

    tokens, parents, depths: [rows, most]
    sizes: [rows] number of nodes of each tree
    """
    rows, width = parents.shape
    starts = np.arange(rows, dtype=np.int32)[:, None] * width
    above = np.where(parents < 0, -1, parents + starts)
    mask = _sight(above.ravel(), np.repeat(starts[:, 0], width)).reshape(rows, width, width)
    trees = list[TokenTree]()
    for row, size in enumerate(sizes):
        tree = object.__new__(TokenTree)
        tree.__dict__.update(
            tokens=tokens[row, :size],
            parents=parents[row, :size],
            depths=depths[row, :size],
            mask=mask[row, :size, :size],
        )
        trees.append(tree)
    return trees


def sight(tree: TreeNodes, nodes: Sequence[int]) -> NDArray[np.bool_]:  # [n, n]
    """Return the attention mask among the given nodes, each of which must come after its parent.

    mask[i, j]: the j-th given node is the i-th or an ancestor of it. If an ancestor of a node is
    given, the node's parent must be given, too.
    """
    places = {node: index for index, node in enumerate(nodes)}
    above = np.asarray(tree.parents)[list(nodes)].tolist()
    parents = [places.get(parent, -1) for parent in above]
    return _sight(np.array(parents, dtype=np.int32))


def _sight(parents: IntArray, first: IntArray | int = 0) -> NDArray[np.bool_]:  # [n, widest]
    """Return masks of several trees. mask[i, j]: node j of i's tree is i or an ancestor of i.

    parents: [n] negative where a node has no parent
    first: [n] index of the first node of each node's tree
    """
    nodes = np.arange(len(parents))
    columns = nodes - first
    mask = np.zeros((len(parents), int(columns.max(initial=-1)) + 1), dtype=np.bool_)
    mask[nodes, columns] = True
    above = np.where(parents < 0, nodes, parents)  # then grandparents, and so on, doubling
    while True:
        further = above[above]
        mask |= mask[above]
        if np.array_equal(further, above):
            return mask
        above = further


def _int32(values: ArrayLike, name: str) -> IntArray:
    array = np.asarray(values)
    if array.size and array.dtype != np.int32:
        if not np.issubdtype(array.dtype, np.integer):
            raise InvalidRequest(f"{name} must be integers: got {array.dtype}")
        if array.max() > _INT32.max or array.min() < _INT32.min:
            raise InvalidRequest(f"{name} must fit 32 bits: got {array.max()}")
    array = array.astype(np.int32)  # a copy, so that no caller can change it
    array.setflags(write=False)
    return array


class Verdict(NamedTuple):
    """The tokens that one forward pass commits: the accepted path, then the target's own token."""

    path: tuple[int, ...]  # accepted nodes below the root, from the top
    next_token: int  # the target's choice at the last node of the path


def accept_matches(trees: Sequence[TokenTree], chosen: Sequence[IntArray]) -> list[Verdict]:
    """Return the verdict on each tree: walk down from the root while the chosen token is a child.
    All walks are computed at once, since a forward pass has many sessions.

    chosen: [trees] the target's choice at each node of the tree, [n].
    """
    tokens, choices = np.concatenate([tree.tokens for tree in trees]), np.concatenate(chosen)
    sizes = np.array([len(tree.tokens) for tree in trees])
    roots = sizes.cumsum() - sizes  # [trees] indices in the arrays of all nodes
    above = np.concatenate([tree.parents for tree in trees]) + roots.repeat(sizes)
    above[roots] = roots
    met = tokens == choices[above]  # the target chose the node, if its walk reached the parent
    met[roots] = True
    while True:  # `above` looks twice as far up in each iteration
        met &= met[above]
        further = above[above]
        if np.array_equal(further, above):
            break
        above = further
    nodes = met.nonzero()[0]  # one walk after another, each in order: children follow parents
    begins = np.searchsorted(nodes, roots)
    ends = np.append(begins[1:], len(nodes))
    walked = (nodes - roots.repeat(ends - begins)).tolist()
    last = choices[nodes[ends - 1]].tolist()
    bounds = zip(begins.tolist(), ends.tolist(), last, strict=True)
    return [Verdict(tuple(walked[begin + 1 : end]), token) for begin, end, token in bounds]
