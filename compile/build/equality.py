"""Checks that a compiled graph computes what the eager graph computes, and each node by itself.
Otherwise it may not serve a target.

Inputs are drawn at random: full and scattered contexts, random trees, and all ways of sampling in
one batch. Rounding may differ between kernels. Choices may then differ where two tokens' scores are
that close, and at the edge of a nucleus. In a round a draft's near-tie may then be decided
otherwise, which changes the tree and everything after it in that row. So rounds are compared row by
row, and their keys and values where the rows' trees are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from inference.artifact import Bucket, RoundBucket
from inference.backends.compiled import Graph
from inference.engine.graph_rounds import blank_tree
from inference.errors import BadArtifact
from inference.model.arithmetic import HOST
from inference.model.masked_choice import MaskInputs, Scored
from inference.model.noise import noise
from inference.model.round_graph import RoundGraph, round_inputs
from inference.model.sampler import Sampling
from inference.model.verify_graph import VerifyGraph, example_inputs
from inference.model.vocabulary import WHOLE_VOCABULARY
from inference.sampling import SamplingParams

Eager = VerifyGraph | RoundGraph
Inputs = dict[str, Tensor]

ROUNDS = 3


class Tolerance(NamedTuple):
    """The most by which rounding may move a graph's results.

    A node's states are its keys or values of all layers. The median node counts, because a few of
    the random inputs amplify any rounding.
    """

    states: float  # distance of a node's states, as a part of their length
    scores: float  # distance of two choices' scores, as a part of the greatest
    rounds: int  # one in so many rows of rounds may differ


ROUNDING = {
    torch.float32: Tolerance(1e-4, 1e-4, 12),
    torch.float16: Tolerance(3e-2, 1e-2, 2),
    torch.bfloat16: Tolerance(1e-1, 5e-2, 2),
}

SAMPLINGS = (
    SamplingParams(1.0, seed=7),
    SamplingParams(),
    SamplingParams(0.7, top_k=20, seed=2**40 + 1),
    SamplingParams(1.0, top_p=0.9, seed=3),
    SamplingParams(1.0, min_p=0.1, seed=4),
)
_LEAST = -100.0  # log-probability below which numbers are not compared
_OF_TEXT = {"text_ids", "text_changes"}
"""Mask inputs of all nodes of a row."""


@torch.no_grad()
def check_equal(eager: Eager, compiled: Graph, bucket: Bucket, *, sequence_length: int) -> None:
    """Raise BadArtifact unless answers, keys, values and features are those of the eager graph,
    within the tolerance of its precision.
    """
    first = eager.cache().keys[0]
    kind = _Rounds() if isinstance(bucket, RoundBucket) else _Trees()
    allowed = ROUNDING[first.dtype]
    differing = total = 0
    errors: dict[str, list[Tensor]] = {}
    for seed in range(ROUNDS):
        inputs = random_inputs(bucket, eager.decoder.vocabulary, len(first), sequence_length, seed)
        expected, made = eager(**inputs), compiled(**inputs)
        different = kind.different(eager, inputs, _chosen(made), _chosen(expected), allowed)
        differing, total = differing + int(different.sum()), total + different.numel()
        rows = ~different if different.dim() == 1 else slice(None)
        theirs = _states(kind, expected)
        for name, ours in _states(kind, made).items():
            errors.setdefault(name, []).append(distances(ours[:, rows], theirs[name][:, rows]))
    wrong = []
    for name, found in errors.items():
        error = float(torch.cat(found).median())
        if not error <= allowed.states:
            wrong.append(f"its {name} differ by {error:.1e} of their length, not {allowed.states}")
    if differing > kind.most(total, allowed):
        wrong.append(f"{differing} of {total} {kind.answers} differ by more than rounding")
    if wrong:
        raise BadArtifact(f"graph {bucket.name} is not the eager model's: {'; '.join(wrong)}")


def _chosen(outputs: Sequence[Tensor]) -> Tensor:
    """The answers of a graph, without the log-probabilities that those of a masked one have."""
    return Scored.parted(outputs[0]).chosen if outputs[0].dim() == 3 else outputs[0]


def _states(kind: _Trees | _Rounds, outputs: Sequence[Tensor]) -> dict[str, Tensor]:
    """Outputs of a graph behind its choices by name, each [layers, B, T, width]; features and
    log-probabilities as one layer. What is out of reach is not told apart.
    """
    parts = [part if part.dim() == 4 else part[None] for part in outputs[1:]]
    states = dict(zip(kind.states, parts, strict=False))
    if outputs[0].dim() == 3:
        values, _, likeliest = Scored.parted(outputs[0]).scores
        logprobs = torch.cat((values[..., None], likeliest), -1)
        states["log-probabilities"] = logprobs[None].clamp(min=_LEAST)
    return states


def distances(ours: Tensor, theirs: Tensor) -> Tensor:  # [layers, B, T, width] twice -> [B * T]
    """The distance of each node's states, relative to their length."""
    differences = (ours.float() - theirs.float()).square().sum((0, 3)).sqrt()
    return (differences / theirs.float().square().sum((0, 3)).sqrt()).flatten()


@torch.no_grad()
def check_independent(eager: Eager, graph: Graph, bucket: Bucket, *, sequence_length: int) -> None:
    """Raise BadArtifact if any bit of a result depends on nodes that it does not see or on other
    rows.
    """
    rows = len(eager.cache().keys[0])
    kind = _Rounds() if isinstance(bucket, RoundBucket) else _Trees()
    inputs, other = (
        random_inputs(bucket, eager.decoder.vocabulary, rows, sequence_length, seed)
        for seed in (0, 1)
    )
    for change in kind.changes(inputs, other):
        outputs = graph(**inputs), graph(**inputs | change.inputs)
        one, two = ({kind.answers: made[0][None]} | _states(kind, made) for made in outputs)
        for name in one.keys() & change.unchanged.keys():
            seen = change.unchanged[name]
            if not torch.equal(one[name][seen], two[name][seen]):
                raise BadArtifact(
                    f"graph {bucket.name}: {change.whose} {name} change with {change.beside}, "
                    "which would not be lossless"
                )


class _Change(NamedTuple):
    """Inputs that are changed, and the part of each output that they must leave as it is.

    Outputs are indexed as [layers, B, T, width]; answers as [1, B, ...].
    """

    whose: str
    beside: str
    inputs: Inputs
    unchanged: Mapping[str, tuple[slice | int, ...]]


class _Trees:
    """The comparison of graphs that choose at nodes: node by node."""

    answers, states = "choices", ("keys", "values", "features")  # the last may be left out

    def different(
        self, eager: Eager, inputs: Inputs, made: Tensor, expected: Tensor, allowed: Tolerance
    ) -> Tensor:
        """Whether each choice differs by more than rounding; [B, P] bool."""
        return (made != expected) & (_gap(eager, inputs, made, expected) > allowed.scores)

    def most(self, total: int, allowed: Tolerance) -> int:
        """The most of `total` answers that may differ."""
        return 1 + total // 50

    def changes(self, inputs: Inputs, other: Inputs) -> Iterator[_Change]:
        """Put the root above another tree and beside other rows; each row chooses at its root."""
        for name, value in (("pick", 0), ("after", inputs["positions"][:, 0] + 1)):
            if name in inputs:
                inputs[name][:, 0] = value
        other["tokens"][0, 0] = inputs["tokens"][0, 0]
        other["positions"][0] += inputs["positions"][0, 0] - other["positions"][0, 0]
        other["tree_mask"][0, 0] = inputs["tree_mask"][0, 0]
        of_row = ("context_mask", "rows", "pick", "after", *Sampling._fields, *_OF_TEXT)
        for name in inputs.keys() & of_row:
            other[name][0] = inputs[name][0]
        for name in inputs.keys() & ({*MaskInputs._fields} - _OF_TEXT):
            other[name][0, 0] = inputs[name][0, 0]
        root = dict.fromkeys((self.answers, *self.states), (slice(None), 0, 0))
        yield _Change("the root's", "the tokens beside it", other, root)


class _Rounds:
    """The comparison of rounds: row by row, as trees and verdicts in one."""

    answers, states = "rounds", ("keys", "values", "draft_keys", "draft_values")

    def different(
        self, eager: Eager, inputs: Inputs, made: Tensor, expected: Tensor, allowed: Tolerance
    ) -> Tensor:
        """Whether each row's tree or verdict differs; [B] bool."""
        return (made != expected).any(-1)

    def most(self, total: int, allowed: Tolerance) -> int:
        return max(1, total // allowed.rounds)

    def changes(self, inputs: Inputs, other: Inputs) -> Iterator[_Change]:
        mixed = {name: torch.cat((part[:1], other[name][1:])) for name, part in inputs.items()}
        mixed |= {name: inputs[name] for name in ("rows", "draft_rows")}
        row = dict.fromkeys((self.answers, *self.states), (slice(None), 0))
        yield _Change("a row's", "the rows beside it", mixed, row)
        redrafted = {"draft_context_mask": 1 - inputs["draft_context_mask"]}
        root = dict.fromkeys(self.states[:2], (slice(None), slice(None), 0))
        yield _Change("the root's", "what is drafted below it", redrafted, root)


def random_inputs(
    bucket: Bucket, vocabulary: int, cache_rows: int, sequence_length: int, seed: int
) -> Inputs:
    """Inputs of the bucket's shapes: random trees, or in rounds random entries, above a random
    context. Every row is sampled in another way.
    """
    rng = np.random.default_rng(seed)
    if isinstance(bucket, RoundBucket):
        inputs = round_inputs(bucket)
        drawn = _draw_round(bucket, vocabulary, sequence_length, rng, seed)
        drawn["draft_rows"] = rng.permutation(cache_rows)[: bucket.rows]
    else:
        inputs = example_inputs(bucket)
        drawn = _draw_trees(bucket, vocabulary, sequence_length, rng)
    drawn["rows"] = rng.permutation(cache_rows)[: bucket.rows]
    inputs |= {
        name: torch.from_numpy(np.ascontiguousarray(array, dtype=np.int32))
        for name, array in drawn.items()
    }
    if bucket.sampled:
        params = [SAMPLINGS[(row + seed) % len(SAMPLINGS)] for row in range(bucket.rows)]
        inputs |= Sampling.of(params, torch.device("cpu"))._asdict()
    return inputs | (_draw_masks(inputs, vocabulary, rng) if bucket.masked else {})


def _draw_masks(inputs: Inputs, vocabulary: int, rng: np.random.Generator) -> Inputs:
    """Masks that allow many ids or few, and changes of ids: of a row, and others at each node."""
    rows, picks, words = inputs["allowed"].shape
    bits = rng.random((rows, picks, 32 * words)) < rng.random((rows, picks, 1))
    bits[..., 0], bits[..., vocabulary:] = True, False
    drawn = {"allowed": torch.from_numpy(np.packbits(bits, -1, "little").view(np.int32))}
    drawn["asked"] = torch.from_numpy(rng.integers(-1, vocabulary, (rows, picks), dtype=np.int32))
    for name in ("text", "node"):
        ids, changes = inputs[f"{name}_ids"], inputs[f"{name}_changes"]
        shuffled = rng.permuted(np.tile(np.arange(vocabulary), (*ids.shape[:-1], 1)), axis=-1)
        count = min(ids.shape[-1], vocabulary // 2)
        ids[..., :count] = torch.from_numpy(shuffled[..., :count])
        numbers = rng.uniform(0.5, 2.0, (*ids.shape[:-1], count, 2))
        changes[..., :count, :] = torch.from_numpy(numbers)
    return drawn


def _draw_trees(
    bucket: Bucket, vocabulary: int, sequence_length: int, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    depths, masks = zip(*(_random_tree(bucket, rng) for _ in range(bucket.rows)), strict=True)
    base = rng.integers(0, max(1, sequence_length - bucket.nodes), (bucket.rows, 1))
    drawn = {
        "tokens": rng.integers(0, vocabulary, (bucket.rows, bucket.nodes)),
        "positions": np.minimum(base + np.stack(depths), sequence_length - 1),
        "context_mask": rng.random((bucket.rows, 1, bucket.slots)) < rng.random(),
        "tree_mask": np.stack(masks),
    }
    pick = np.arange(bucket.nodes)[-bucket.picks :]
    if not bucket.everywhere:
        drawn["pick"] = np.tile(pick, (bucket.rows, 1))
    if bucket.sampled:
        drawn["after"] = drawn["positions"][:, pick] + 1
    return drawn


def _random_tree(bucket: Bucket, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Depths [T] and mask [T, T] of a random tree; for prefill, of a prompt's chain. Depths stay
    within what the graph makes noise for.
    """
    depths, mask = np.zeros(bucket.nodes, dtype=np.int32), np.eye(bucket.nodes, dtype=np.bool_)
    levels = bucket.levels if bucket.sampled else bucket.nodes
    for node in range(1, bucket.nodes):
        parent = node - 1 if bucket.picks == 1 else int(rng.integers(0, node))
        if depths[parent] + 1 < levels:
            depths[node], mask[node] = depths[parent] + 1, mask[node] | mask[parent]
    return depths, mask


def _draw_round(
    bucket: RoundBucket,
    vocabulary: int,
    sequence_length: int,
    rng: np.random.Generator,
    first: int,
) -> dict[str, np.ndarray]:
    """Inputs of a round in which every second row has a pending token.

    first: whether row 0 has one, where this is odd
    """
    shape, rows, tree = bucket.shape, bucket.rows, blank_tree(bucket.shape)
    inner, pending = shape.inner, (np.arange(rows) + first) % 2
    below = np.zeros((rows, 1 + inner, 1 + inner), dtype=np.int32)
    below[:, 0, 0] = 1
    below[:, 1:, 1:] = tree.mask[:inner, :inner]
    below[:, 1:, 0] = pending[:, None]
    base = rng.integers(1, max(2, sequence_length - shape.depth - 1), (rows, 1))
    entry = np.concatenate([(base - 1) * pending[:, None], base + tree.depths[None, :inner]], 1)
    return {
        "positions": np.minimum(base + tree.depths[None], sequence_length - 1),
        "context_mask": rng.random((rows, 1, bucket.slots)) < rng.random(),
        "tree_mask": np.tile(tree.mask, (rows, 1, 1)),
        "draft_tokens": rng.integers(0, vocabulary, (rows, 2)),
        "draft_positions": np.minimum(entry, sequence_length - 1),
        "draft_context_mask": rng.random((rows, 1, bucket.slots)) < rng.random(),
        "draft_tree_mask": below,
    }


def _gap(eager: Eager, inputs: Inputs, ours: Tensor, theirs: Tensor) -> Tensor:  # [B, P]
    """The distance of two choices by the eager graph's own scores, relative to the greatest."""
    names = ("tokens", "rows", "positions", "context_mask", "tree_mask")
    given = (*(inputs[name] for name in names), inputs.get("pick"))
    scores = eager.decoder.logits(eager.decoder(*given, eager.cache()).states)
    greatest = scores.abs().amax(-1)
    if "seed" in inputs:
        sampling = Sampling(*(inputs[name] for name in Sampling._fields))
        ids = eager.decoder.token_ids()
        greatest = sampling.scaled(scores).abs().amax(-1)
        if "allowed" in inputs:
            masks = MaskInputs(*(inputs[name] for name in MaskInputs._fields))
            scores = masks.adjusted(scores, ids, WHOLE_VOCABULARY, HOST)
        scores = sampling.scaled(scores)
        drawn = noise(sampling.seed[:, None, None], inputs["after"][:, :, None], ids)
        scores = scores + sampling.weigh(drawn)
    chosen = torch.stack((ours, theirs), -1).to(torch.int64).clamp(0, scores.shape[-1] - 1)
    both = torch.gather(scores, -1, chosen)
    return (both[..., 0] - both[..., 1]).abs() / greatest
