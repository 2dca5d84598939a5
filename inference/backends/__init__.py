"""A Model for each kind of device. Everything above the `Model` protocol is bookkeeping on the
host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from inference.sampling import SamplingParams

if TYPE_CHECKING:
    from inference.token_rule import Adjustment


class Scoring(NamedTuple):
    """Log-probabilities that are reported at the picked nodes of a segment.

    likeliest: how many tokens are reported beside that one
    of: [p] the token at each node; None: the chosen one
    """

    likeliest: int
    of: NDArray[np.int32] | None = None


class Segment(NamedTuple):
    """One row's share of a forward: n new nodes, where their keys are written, and what they
    see.
    """

    row: int
    tokens: NDArray[np.int32]  # [n]
    slots: NDArray[np.int32]  # [n] where the new keys are written
    positions: NDArray[np.int32]  # [n]
    # [1 or n, S] the slots each node sees (1: all nodes the same), S up to the highest in use
    context: NDArray[np.bool_]
    tree_mask: NDArray[np.bool_]  # [n, n] which new nodes each new node sees, itself included
    pick: NDArray[np.int32]  # [p] the nodes to choose at
    params: SamplingParams
    # What the model reads beside these, of a type that it shares with its sequence alone. Such as
    # the draft's share of a round, or what a draft sees of its target.
    beside: Any = None
    # What the logits at the picked nodes are adjusted by. It is asked once a call, when the logits
    # are on their way: so it computes while a device computes. It may raise, which fails the call.
    rule: Callable[[], Adjustment] | None = None
    scoring: Scoring | None = None


class LogProbs(NamedTuple):
    """Log-probabilities at p nodes, of a token and of the k likeliest ones, best first."""

    values: NDArray[np.float32]  # [p]
    ids: NDArray[np.int32]  # [p, k]
    likeliest: NDArray[np.float32]  # [p, k]


class Chosen(NamedTuple):
    """The token chosen at each picked node of a segment, and what was to be reported there."""

    tokens: NDArray[np.int32]  # [p]
    logprobs: LogProbs | None = None  # where the segment has a scoring


class Ranked(NamedTuple):
    """The draft's likeliest children of m nodes, best first."""

    ids: NDArray[np.int32]  # [m, k]
    scores: NDArray[np.float32]  # [m, k]


class Model(Protocol):
    """A model on a device, with `rows` rows of `capacity` usable KV slots. One call at a time."""

    rows: int
    capacity: int
    max_nodes: int  # new nodes of one row in one call
    masks: bool  # whether a segment may have a rule or a scoring
    branches: bool  # whether trees are worth their time; else each session's likeliest chain is

    def choose(self, segments: Sequence[Segment]) -> list[Chosen]:
        """Write the new nodes' keys and return the token chosen at each picked node.

        The result has one Chosen for each segment. Rows must be distinct.
        """
        ...

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        """Write the new nodes' keys and return the k likeliest tokens at each picked node.

        The result has one Ranked of [p, k] for each segment. Rows must be distinct.
        """
        ...

    def padded(self, rows: int, nodes: int) -> tuple[int, int]:
        """Return the padded (rows, nodes per row) that a call of this size computes."""
        ...

    def copy_row(self, source: int, target: int, slots: int) -> None:
        """Copy keys and values of the first `slots` slots from row `source` to row `target`. Only
        a target's rows are copied.

        Slots of `target` behind these may change, too.
        """
        ...


@runtime_checkable
class RecordingModel(Model, Protocol):
    """A model that records its calls by shape, so that later ones are quick (CUDA graphs)."""

    def plan(self, rows: int, nodes: int) -> int:
        """Plan to record the target's calls of up to so many rows, and nodes of each. Returns how
        many recordings that are.
        """
        ...

    def record_next(self) -> bool:
        """Record a planned call, else one that was made once; False where none is left.

        It takes as long as a few calls, and only writes to junk slots.
        """
        ...


class Masks(NamedTuple):
    """Mask tokens, which a block draft takes for tokens that are not known yet.

    token: id of the mask
    most: masks that stand behind a node at most, each of which names one token more
    """

    token: int
    most: int
