"""Calls of compiled graphs: checks which graphs fit, builds inputs, and splits outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inference.backends import Chosen, LogProbs, Segment
from inference.backends.batch import BatchShape, pad
from inference.errors import InvalidRequest
from inference.files.artifact import Bucket
from inference.model.cache import KeysValues
from inference.model.choice.graph_choice import Scored, idle_masks
from inference.model.choice.sampler import Sampling
from inference.sampling import SamplingParams
from inference.token_rule import Adjustment
from inference.tree.token_tree import IntArray


def unstacked(keys: Tensor, values: Tensor) -> KeysValues:
    """Split a graph's new keys and values by layer."""
    return KeysValues(keys.unbind(), values.unbind())


def picked(bucket: Bucket, chosen: Tensor, segments: Sequence[Segment]) -> list[Chosen]:
    """Return the chosen tokens of each segment from a graph's output."""
    scored = Scored.parted(chosen) if bucket.masked else None
    table = (scored.chosen if scored else chosen).numpy().astype(np.int32)
    answers = list[Chosen]()
    for row, segment in enumerate(segments):
        at = row, segment.pick if bucket.everywhere else slice(len(segment.pick))
        logprobs = None
        if scored is not None and segment.scoring is not None:
            values, ids, likeliest = (tensor.numpy()[at] for tensor in scored.scores)
            count = segment.scoring.likeliest
            logprobs = LogProbs(values, ids[:, :count], likeliest[:, :count])
        answers.append(Chosen(table[at], logprobs))
    return answers


def cost(bucket: Bucket) -> tuple[int, int, int, bool, int]:
    """Return the sort key for the cost of a graph call: nodes, slots, picks, noise, masks."""
    return bucket.rows * bucket.nodes, bucket.slots, bucket.picks, bucket.sampled, bucket.words


def holds(bucket: Bucket, segments: Sequence[Segment]) -> bool:
    """Return whether a single call of the bucket's graph can compute all segments."""
    return len(segments) <= bucket.rows and all(
        fits(bucket, segment)
        and (segment.params.greedy or np.ptp(segment.positions[segment.pick]) < bucket.levels)
        for segment in segments
    )


def check_sampled(buckets: Iterable[Bucket], segments: Sequence[Segment]) -> None:
    """Raise InvalidRequest if a segment needs sampling, but no graph can sample."""
    greedy = all(segment.params.greedy for segment in segments)
    if not greedy and not any(bucket.sampled for bucket in buckets):
        raise InvalidRequest(
            "this artefact was built for greedy decoding (--sampling greedy): ask for "
            "temperature 0, or build it again"
        )


def inputs_of(bucket: Bucket, segments: Sequence[Segment]) -> dict[str, Tensor]:
    """Return a graph's inputs for these segments by name, padded with idle rows."""
    shape = BatchShape(bucket.rows, bucket.nodes, bucket.picks, 1, bucket.slots)
    batch = pad(segments, shape, bucket.junk)
    inputs = {name: torch.from_numpy(array) for name, array in batch.arrays().items()}
    if bucket.everywhere:
        del inputs["pick"]
    if bucket.sampled:
        idle = [SamplingParams()] * (bucket.rows - len(segments))
        params = [*(segment.params for segment in segments), *idle]
        inputs["after"] = torch.from_numpy(_after(bucket, segments))
        inputs |= Sampling.of(params, torch.device("cpu"))._asdict()
    return inputs | (_masks(bucket, segments) if bucket.masked else {})


def _masks(bucket: Bucket, segments: Sequence[Segment]) -> dict[str, Tensor]:
    """Return the mask inputs of a graph call. Rows without a rule get masks without effect."""
    inputs = idle_masks(bucket)
    for row, segment in enumerate(segments):
        arrays = {name: tensor[row].numpy() for name, tensor in inputs.items()}
        if segment.rule is not None:
            _lay(arrays, segment.pick, segment.rule())
        if segment.scoring is not None and segment.scoring.of is not None:
            arrays["asked"][segment.pick] = segment.scoring.of
    return inputs


def _lay(masks: Mapping[str, NDArray[Any]], pick: IntArray, rule: Adjustment) -> None:
    """Write a rule's adjustment at the picked nodes into a row's mask inputs.

    The changes at the first picked node apply to the whole row. Other nodes list only their
    differences: tokens of their path, and ids that are changed for the row but not at the node.
    """
    if rule.allowed is not None:
        masks["allowed"][pick] = 0
        masks["allowed"][pick, : rule.allowed.shape[1]] = rule.allowed
    changes = np.stack((rule.factors, rule.biases), -1)  # [p, m, 2]
    changed = (changes != (1, 0)).any(-1)  # [p, m]; False for padding
    ids, count = rule.ids[0, changed[0]], int(changed[0].sum())
    masks["text_ids"][:count], masks["text_changes"][:count] = ids, changes[0, changed[0]]
    by_id = np.zeros((32 * masks["allowed"].shape[1], 2), dtype=np.float32)  # [ids, 2]
    by_id[ids] = changes[0, changed[0]]
    differ = changed & (by_id[rule.ids] != changes).any(-1)
    lacks = (changed & (by_id[rule.ids, 0] > 0)).sum(-1) < count
    for node in np.flatnonzero(differ.any(-1) | lacks):
        lacking = np.setdiff1d(ids, rule.ids[node, changed[node]])
        node_ids = np.append(rule.ids[node, differ[node]], lacking)
        what = np.append(changes[node, differ[node]], [(1, 0)] * len(lacking))
        masks["node_ids"][pick[node], : len(node_ids)] = node_ids
        masks["node_changes"][pick[node], : len(node_ids)] = what.reshape(-1, 2)


def picking(segment: Segment, places: IntArray) -> Segment:
    """Return the segment with a subset of its picks. places: indices among the picks"""
    rule, scoring = segment.rule, segment.scoring
    if rule is not None:
        allowed, ids, factors, biases = rule()
        allowed = None if allowed is None else allowed[places]
        subset = Adjustment(allowed, ids[places], factors[places], biases[places])
        segment = segment._replace(rule=lambda: subset)
    if scoring is not None and scoring.of is not None:
        segment = segment._replace(scoring=scoring._replace(of=scoring.of[places]))
    return segment._replace(pick=segment.pick[places])


def joined(answers: Sequence[Chosen], places: Sequence[IntArray]) -> Chosen:
    """Join the results for subsets of a segment's picks. places: as passed to picking()"""
    order = np.argsort(np.concatenate(places))
    scored = [answer.logprobs for answer in answers if answer.logprobs is not None]
    logprobs = [np.concatenate(arrays)[order] for arrays in zip(*scored, strict=True)]
    tokens = np.concatenate([answer.tokens for answer in answers])[order]
    return Chosen(tokens, LogProbs(*logprobs) if scored else None)


def _after(bucket: Bucket, segments: Sequence[Segment]) -> IntArray:  # [B, P]
    """Return the positions of the tokens to choose; for nodes without a pick or without noise, the
    lowest of their row, since graphs compute noise only for a few positions from there on.
    """
    after = np.zeros((bucket.rows, bucket.picks), dtype=np.int32)
    for row, segment in enumerate(segments):
        positions = segment.positions[segment.pick] + 1
        after[row] = positions.min()
        if segment.params.greedy:
            continue
        after[row, segment.pick if bucket.everywhere else slice(len(positions))] = positions
    return after


def fits(bucket: Bucket, segment: Segment) -> bool:
    """Return whether the graph fits the segment, regardless of the tree's depth."""
    room = (
        len(segment.tokens) <= bucket.nodes
        and len(segment.pick) <= bucket.picks
        and segment.context.shape[1] <= bucket.slots
    )
    able = bucket.masked if segment.masked else bucket.sampled or segment.params.greedy
    return room and segment.context.shape[0] == 1 and able
