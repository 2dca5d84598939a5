"""A Model for each kind of device. Code above the `Model` protocol runs on the host only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from inference.sampling import SamplingParams

if TYPE_CHECKING:
    from inference.token_rule import Adjustment


class Scoring(NamedTuple):
    """The log-probabilities to report at the picked nodes of a segment.

    likeliest: how many of the most likely tokens are reported
    of: [p] the token that is reported at each node; None: the chosen token
    """

    likeliest: int
    of: NDArray[np.int32] | None = None


class Segment(NamedTuple):
    """One row's part of a forward pass: n new nodes, where their keys are written, and what they
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
    # Further input of the model, of a type that only it and its sequence know: the draft's part of
    # a round, or what a draft sees of its target.
    beside: Any = None
    # Returns the adjustment of the logits at the picked nodes. It is called once, after the device
    # has been started, so that it computes meanwhile. An error that it raises fails the call.
    rule: Callable[[], Adjustment] | None = None
    scoring: Scoring | None = None


class LogProbs(NamedTuple):
    """Log-probabilities at p nodes: of a token, and of the k most likely tokens, best first."""

    values: NDArray[np.float32]  # [p]
    ids: NDArray[np.int32]  # [p, k]
    likeliest: NDArray[np.float32]  # [p, k]


class Chosen(NamedTuple):
    """The token chosen at each picked node of a segment, and its log-probabilities."""

    tokens: NDArray[np.int32]  # [p]
    logprobs: LogProbs | None = None  # where the segment has a scoring


class Ranked(NamedTuple):
    """The draft's most likely children of m nodes, best first."""

    ids: NDArray[np.int32]  # [m, k]
    scores: NDArray[np.float32]  # [m, k]


class Model(Protocol):
    """A model on a device, with `rows` rows of `capacity` usable KV slots. One call at a time."""

    rows: int
    capacity: int
    max_nodes: int  # new nodes of one row in one call
    masks: bool  # whether a segment may have a rule or a scoring
    branches: bool  # whether trees are worth their time; else only chains are verified

    def choose(self, segments: Sequence[Segment]) -> list[Chosen]:
        """Write the new nodes' keys and return the token chosen at each picked node.

        The result has one Chosen for each segment. Rows must be distinct.
        """
        ...

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        """Write the new nodes' keys and return the k most likely tokens at each picked node.

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

    def plan(self, rows: int, nodes: int) -> None:
        """Plan to record the target's calls of up to so many rows, and nodes of each."""
        ...

    def record_next(self) -> bool:
        """Record a planned call, else one that was made once; False if none is left.

        It takes as long as a few calls, and only writes to junk slots.
        """
        ...


class Masks(NamedTuple):
    """Mask tokens, which a block draft reads in place of tokens that are not known yet.

    token: id of the mask
    most: maximum masks behind a node, each of which proposes one more token
    below_root: only the root is ranked, with masks below it
    """

    token: int
    most: int
    below_root: bool = False
