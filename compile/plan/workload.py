"""Describes what a target is asked to do (sessions, trees and how many at once), and the calls that
follow from it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

from annotated_types import Len
from pydantic import BaseModel, ConfigDict, Field

from compile.spec import prefill_bucket, verify_bucket
from inference.artifact import Bucket
from inference.errors import InvalidRequest
from inference.file_model import Count, Positive, Record, Size, Text, read_record
from inference.json_file import GREATEST, read_json


class CallShape(NamedTuple):
    """The shape of a call, or of a graph. A graph serves every call of its kind that is larger in
    no dimension.
    """

    prefill: bool
    rows: int
    nodes: int
    slots: int  # cache slots that are read

    def serves(self, call: CallShape) -> bool:
        return (
            self.prefill == call.prefill
            and self.rows >= call.rows
            and self.nodes >= call.nodes
            and self.slots >= call.slots
        )

    def bucket(self, junk: int, *, sampled: bool, words: int = 0) -> Bucket:
        """The bucket of a graph of this shape. A prompt's is greedy in any case."""
        if self.prefill:
            return prefill_bucket(self.rows, self.nodes, self.slots, junk)
        return verify_bucket(self.rows, self.nodes, self.slots, junk, sampled=sampled, words=words)


Shares = Annotated[Mapping[Count, Positive], Len(1)]
Calls = Mapping[CallShape, float]
"""The calls of the mean session, and how often each is made."""


@dataclass(frozen=True)
class Load(Record):
    """A load: what is asked of a target. It is read from a file."""

    what: Text  # where the figures are from
    # tokens of prompt and of output
    sessions: Annotated[tuple[tuple[Count, Count], ...], Len(1)]
    tree_sizes: Shares  # nodes of a tree, root included -> share of rounds
    concurrent: Shares  # sessions verified in one call -> share of rounds
    # tokens a round, the target's own included
    acceptance_length: Annotated[float, Field(ge=1, le=GREATEST)]


class _TextRecord(BaseModel):
    """The fields that are read from the record of a text. The record has more."""

    model_config = ConfigDict(allow_inf_nan=False)

    prompt_tokens: Count
    token_ids: list[int]
    forwards: Size
    num_draft_tokens: Size
    num_accepted_tokens: Size


def read_load(path: Path) -> Load:
    """A load from a JSON file, or measured, from the outrider-profile.json of a run with --profile.
    Raises InvalidRequest.
    """
    raw = read_json(path, InvalidRequest)
    if not isinstance(raw.value, list):
        return read_record(raw, Load)
    texts = [read_record(item, _TextRecord) for item in raw.items()]
    made = [text for text in texts if text.forwards and text.token_ids]
    if not made:
        raise InvalidRequest(f"{path}: a load needs a text with at least one token of output")
    return _measured(made, path)


def _measured(texts: list[_TextRecord], path: Path) -> Load:
    """A load from records of texts. A text counts with its mean tree, as if it ran alone."""
    trees: defaultdict[int, float] = defaultdict(float)
    for text in texts:
        trees[1 + round(text.num_draft_tokens / text.forwards)] += text.forwards
    accepted, forwards = (
        sum(getattr(text, name) for text in texts) for name in ("num_accepted_tokens", "forwards")
    )
    return Load(
        f"measured, {len(texts)} texts of {path}, one at a time",
        tuple((text.prompt_tokens, len(text.token_ids)) for text in texts),
        dict(trees),
        {1: 1.0},
        1 + accepted / max(1, forwards),
    )


@dataclass(frozen=True)
class Limits:
    """Limits of what the artefact promises to serve."""

    rows: int  # rows of the cache
    chunk: int  # prompt tokens in one call
    tree_nodes: int
    least_nodes: int
    sequence_length: int

    @property
    def capacity(self) -> int:
        return self.sequence_length + self.tree_nodes

    def required(self) -> tuple[CallShape, CallShape, CallShape]:
        """Shapes without which some call could not be served, or the target alone only at the cost
        of a tree.
        """
        alone, largest = self.least_nodes, max(self.least_nodes, self.tree_nodes)
        return (
            CallShape(True, 1, self.chunk, self.capacity),
            CallShape(False, self.rows, largest, self.capacity),
            CallShape(False, self.rows, alone, self.capacity),
        )


def calls_of(load: Load, limits: Limits) -> Calls:
    """The calls of the mean session. What exceeds the limits is cut off, as the server does."""
    calls: defaultdict[CallShape, float] = defaultdict(float)
    for prompt, output in load.sessions:
        prompt = min(prompt, limits.sequence_length - 1)
        output = min(output, limits.sequence_length - prompt)
        for shape, count in (*_prefill(prompt, limits), *_rounds(prompt, output, load, limits)):
            calls[shape] += count / len(load.sessions)
    return dict(calls)


def _prefill(prompt: int, limits: Limits) -> Iterator[tuple[CallShape, float]]:
    """Calls that feed a prompt in chunks, one session at a time. The last token is left out, since
    it is the first root.
    """
    for start in range(0, prompt - 1, limits.chunk):
        yield CallShape(True, 1, min(limits.chunk, prompt - 1 - start), max(1, start)), 1.0


def _rounds(
    prompt: int, output: int, load: Load, limits: Limits
) -> Iterator[tuple[CallShape, float]]:
    """Calls that verify trees on a growing context. A round that serves several sessions is shared
    among them.
    """
    rounds = -(-output // load.acceptance_length)
    trees, together = sum(load.tree_sizes.values()), sum(load.concurrent.values())
    for index in range(int(rounds)):
        cached = prompt - 1 + int(index * load.acceptance_length)
        for tree, tree_share in load.tree_sizes.items():
            nodes = max(limits.least_nodes, min(tree, limits.tree_nodes))
            slots = min(
                cached + nodes, limits.capacity
            )  # committed keys have holes as wide as a tree among them
            for sessions, share in load.concurrent.items():
                active = min(sessions, limits.rows)
                shape = CallShape(False, active, nodes, slots)
                yield shape, tree_share / trees * share / together / active
