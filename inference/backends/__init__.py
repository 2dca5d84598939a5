"""Backends: implementations of `Model` for each kind of device, which code on the host calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from inference.sampling import SamplingParams

if TYPE_CHECKING:
    from inference.token_rule import Adjustment


class Scoring(NamedTuple):
    """The log-probabilities to return for the picked nodes of a segment.

    likeliest: number of most likely tokens to return for each node
    of: [p] the token to score at each node; None: the chosen token
    """

    likeliest: int
    of: NDArray[np.int32] | None = None


class Segment(NamedTuple):
    """A row's part of a forward pass: n new nodes, slots for their keys, and attention masks."""

    row: int
    tokens: NDArray[np.int32]  # [n]
    slots: NDArray[np.int32]  # [n] where the new keys are written
    positions: NDArray[np.int32]  # [n]
    # [1 or n, S] slots that each node sees (1: same for all nodes), S up to the highest in use
    context: NDArray[np.bool_]
    tree_mask: NDArray[np.bool_]  # [n, n] new nodes that each new node sees, including itself
    pick: NDArray[np.int32]  # [p] nodes whose next token is chosen
    params: SamplingParams
    # Additional input, whose type only the model and its ModelSequence know: the draft's part of a
    # round, or the part of the target's state that a draft reads.
    beside: Any = None
    # Returns the adjustment of the logits at the picked nodes. Called once, after the device has
    # started, so that both run at the same time. Its errors fail the forward pass.
    rule: Callable[[], Adjustment] | None = None
    scoring: Scoring | None = None

    @property
    def masked(self) -> bool:
        """Whether it has a rule or a scoring, which only some models support."""
        return self.rule is not None or self.scoring is not None


class LogProbs(NamedTuple):
    """Log-probabilities at p nodes: of one token, and of the k most likely tokens, best first."""

    values: NDArray[np.float32]  # [p]
    ids: NDArray[np.int32]  # [p, k]
    likeliest: NDArray[np.float32]  # [p, k]


class Chosen(NamedTuple):
    """The token chosen at each picked node of a segment, and its log-probabilities."""

    tokens: NDArray[np.int32]  # [p]
    logprobs: LogProbs | None = None  # where the segment has a scoring


class Ranked(NamedTuple):
    """The k most likely children of m nodes according to a draft, best first."""

    ids: NDArray[np.int32]  # [m, k]
    scores: NDArray[np.float32]  # [m, k]


class Model(Protocol):
    """A model on a device, with `rows` rows of `capacity` usable KV slots. Not thread-safe."""

    rows: int
    capacity: int
    max_nodes: int  # maximum new nodes of a row in a forward pass
    masks: bool  # whether a segment may have a rule or a scoring
    branches: bool  # whether trees are worth their cost; if not, only chains are verified

    def choose(self, segments: Sequence[Segment]) -> list[Chosen]:
        """Run a forward pass, write the new keys, and choose a token at each picked node.

        Returns a Chosen for each segment. Rows must be distinct.
        """
        ...

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        """Run a forward pass, write the new keys, and return the k most likely tokens at each
        picked node: a Ranked [p, k] for each segment. Rows must be distinct.
        """
        ...

    def padded(self, rows: int, nodes: int) -> tuple[int, int]:
        """Return the (rows, nodes per row) to which the model pads a forward pass of this size."""
        ...

    def copy_row(self, source: int, target: int, slots: int) -> None:
        """Copy the first `slots` slots of row `source` to row `target`, whose other slots may
        change as well. Only rows of targets are copied.
        """
        ...


@runtime_checkable
class RecordingModel(Model, Protocol):
    """A model that records forward passes by shape, to make later ones faster (CUDA graphs)."""

    def plan(self, rows: int, nodes: int) -> None:
        """Plan recordings for forward passes of up to `rows` rows and `nodes` nodes per row."""
        ...

    def record_next(self) -> bool:
        """Record a shape that has occurred once, or a planned shape. Returns False if none is left.

        Takes as long as a few forward passes, and only writes to junk slots.
        """
        ...
