"""What a rule may say of logits at the nodes of a tree, at random."""

from __future__ import annotations

import numpy as np

from inference.token_rule import Adjustment


def adjustment(vocabulary: int, rng: np.random.Generator, nodes: int, named: int) -> Adjustment:
    """What a rule may say at a tree's nodes: the changes of the first one are a text's. Other paths
    lack some of them, change some and add some. They are in any order, and padded.
    """
    words = -(-vocabulary // 32)
    text = rng.permutation(vocabulary)[:named]
    told = dict(zip(text.tolist(), rng.uniform(0.5, 2, (named, 2)).tolist(), strict=True))
    rows = [told]
    for _ in range(nodes - 1):
        own, some = dict(list(told.items())[rng.integers(4) :]), rng.permutation(vocabulary)[:3]
        rows.append(
            own | dict(zip(some.tolist(), rng.uniform(0.5, 2, (3, 2)).tolist(), strict=True))
        )
    ids = np.zeros((nodes, named + 4), dtype=np.int32)
    changes = np.tile(np.array([1, 0], dtype=np.float32), (nodes, named + 4, 1))
    for row, pairs in enumerate(rows):
        order = rng.permutation(named + 4)[: len(pairs)]
        ids[row, order] = list(pairs)
        changes[row, order] = np.reshape(list(pairs.values()), (-1, 2))
    bits = rng.random((nodes, 32 * words)) < 0.5
    bits[:, vocabulary:] = False
    allowed = np.packbits(bits, -1, "little").view(np.int32) if rng.random() < 0.8 else None
    return Adjustment(allowed, ids, changes[..., 0].copy(), changes[..., 1].copy())
