"""Row independence: what a node gets depends on what it sees and on nothing else in its call, to
the last bit.

Without it speculation is not lossless: a token's logits would change with the guesses beside it
(per-tensor quantization of activations does that). Every backend passes this before it may serve a
target.
"""

from __future__ import annotations

import numpy as np
import torch

from inference.backends import Model, Segment
from inference.model.cache import KeysValues
from inference.sampling import SamplingParams
from inference.tree.token_tree import TokenTree

CONTEXT = 12


def assert_rows_are_independent(
    model: Model, cache: KeysValues | None, nodes: int, vocabulary: int, params: SamplingParams
) -> None:
    """The root and its first child are the same in every call; their siblings, descendants and
    the other row are drawn anew.

    cache: the model's keys and values; None, or on no device, where they cannot be seen
    """
    rng = np.random.default_rng(0)
    prompts = rng.integers(0, vocabulary, (2, CONTEXT))
    for row in (0, 1):
        model.choose([_segment(row, TokenTree.chain(prompts[row].tolist()), 0, SamplingParams())])
    seen = []
    for _ in range(6):
        chosen = model.choose(
            [
                _segment(0, _tree(nodes, vocabulary, rng), CONTEXT, params),
                _other_row(vocabulary, rng),
            ]
        )[0].tokens
        parts = cache.stacked() if cache is not None and not cache.keys[0].is_meta else ()
        kept = [part[:, 0, [CONTEXT, CONTEXT + 1]] for part in parts]
        seen.append((torch.from_numpy(chosen[:2].copy()), *kept))
    for other in seen[1:]:
        for first, second in zip(seen[0], other, strict=True):
            assert torch.equal(first, second), "a node differs with the nodes beside it"


def _tree(nodes: int, vocabulary: int, rng: np.random.Generator) -> TokenTree:
    """A random tree of the three levels below a fixed root and child."""
    parents = [-1, 0, *(int(rng.integers(0, min(node, 4))) for node in range(2, nodes))]
    tokens = [
        vocabulary - 1,
        vocabulary - 2,
        *rng.permutation(vocabulary - 2)[: nodes - 2].tolist(),
    ]
    return TokenTree(np.array(tokens, dtype=np.int32), np.array(parents, dtype=np.int32))


def _other_row(vocabulary: int, rng: np.random.Generator) -> Segment:
    return _segment(
        1, TokenTree.chain(rng.integers(0, vocabulary, 2).tolist()), CONTEXT, SamplingParams()
    )


def _segment(row: int, tree: TokenTree, base: int, params: SamplingParams) -> Segment:
    every = np.arange(len(tree), dtype=np.int32)
    seen = np.ones((1, base), dtype=np.bool_)
    pick = every if base else every[-1:]
    return Segment(
        row,
        tree.tokens,
        base + every,
        (base + tree.depths).astype(np.int32),
        seen,
        tree.mask,
        pick,
        params,
    )
