"""What a target is asked to do: sessions, trees and how many at once, as a file says it; and the
calls that follow from it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

from inference.errors import InvalidRequest
from inference.json_file import Json, read_json


class Shape(NamedTuple):
    """A call, or the graph that serves it: a graph serves every call of its kind that is nowhere
    larger.
    """

    prefill: bool
    rows: int
    nodes: int
    slots: int  # cache slots that are read

    def serves(self, call: Shape) -> bool:
        return (
            self.prefill == call.prefill
            and self.rows >= call.rows
            and self.nodes >= call.nodes
            and self.slots >= call.slots
        )


Calls = Mapping[Shape, float]
"""Calls of the mean session -> how often."""


@dataclass(frozen=True)
class Load:
    """what: where the figures are from.  sessions: tokens of prompt and of output, one pair a
    session.  tree_sizes: nodes of a tree, root included -> share of rounds.  concurrent: sessions
    verified in one call -> share of rounds.  acceptance_length: tokens a round, the target's own
    included.
    """

    what: str
    sessions: tuple[tuple[int, int], ...]
    tree_sizes: Mapping[int, float]
    concurrent: Mapping[int, float]
    acceptance_length: float

    def __post_init__(self) -> None:
        if not self.sessions or min(min(session) for session in self.sessions) < 1:
            raise InvalidRequest(
                "a load needs sessions, each of at least one token of prompt and one of output"
            )
        for name in ("tree_sizes", "concurrent"):
            shares = getattr(self, name)
            if not shares or min(shares) < 1 or min(shares.values()) <= 0:
                raise InvalidRequest(
                    f"a load's {name} maps sizes of at least 1 to shares above 0: got "
                    f"{dict(shares)}"
                )
        if self.acceptance_length < 1:
            raise InvalidRequest(
                f"a load's acceptance_length is {self.acceptance_length}: a round makes at least "
                "the target's own token"
            )


def read_load(path: Path) -> Load:
    """A load from a JSON file, or measured: from the outrider-profile.json of a run with
    --profile. Raises InvalidRequest.
    """
    raw = read_json(path, InvalidRequest)
    return _measured(raw, str(path)) if isinstance(raw.value, list) else _parse(raw)


def _parse(raw: Json) -> Load:
    raw.keys([entry.name for entry in fields(Load)])
    tree_sizes, concurrent = (_shares(raw.field(name)) for name in ("tree_sizes", "concurrent"))
    sessions = raw.field("sessions").each(_session)
    what, length = raw.field("what").text(), raw.field("acceptance_length").number()
    return raw.make(Load, what, sessions, tree_sizes, concurrent, length)


def _session(raw: Json) -> tuple[int, int]:
    sizes = raw.each(lambda size: size.integer(1))
    return (
        (sizes[0], sizes[1])
        if len(sizes) == 2
        else raw.refuse("a pair of tokens of prompt and of output")
    )


def _shares(raw: Json) -> dict[int, float]:
    """Size -> share; JSON has no numbers for names."""
    for size in raw.dictionary():
        if not (size.isdecimal() and size.isascii() and len(size) < 10):
            raw.refuse("an object of sizes and their shares")
    return {int(size): share.number() for size, share in raw.fields().items()}


def _measured(records: Json, name: str) -> Load:
    """A load from records of texts: of trees they have each text's mean, of concurrency nothing."""
    done = [
        record
        for record in records.items()
        if record.field("rounds").integer() and record.field("token_ids").items()
    ]

    def counted(field: str) -> list[int]:
        return [record.field(field).integer() for record in done]

    rounds = counted("rounds")
    trees: defaultdict[int, float] = defaultdict(float)
    for drafted, times in zip(counted("num_draft_tokens"), rounds, strict=True):
        trees[1 + round(drafted / times)] += times
    sessions = tuple(
        zip(
            counted("prompt_tokens"),
            (len(record.field("token_ids").value) for record in done),
            strict=True,
        )
    )
    length = 1 + sum(counted("num_accepted_tokens")) / max(1, sum(rounds))
    what = f"measured, {len(done)} texts of {name}, one at a time"
    return records.make(Load, what, sessions, dict(trees), {1: 1.0}, length)


@dataclass(frozen=True)
class Limits:
    """What the artefact promises to serve. rows: of the cache.  chunk: prompt tokens in one
    call.  all_rows: every call has all rows.
    """

    rows: int
    chunk: int
    tree_nodes: int
    least_nodes: int
    sequence_length: int
    all_rows: bool

    @property
    def capacity(self) -> int:
        return self.sequence_length + self.tree_nodes

    def required(self) -> tuple[Shape, Shape, Shape]:
        """Graphs without which some call could not be served, or the target alone only at a
        tree's cost.
        """
        alone, largest = self.least_nodes, max(self.least_nodes, self.tree_nodes)
        prefill_rows = self.rows if self.all_rows else 1
        return (
            Shape(True, prefill_rows, self.chunk, self.capacity),
            Shape(False, self.rows, largest, self.capacity),
            Shape(False, self.rows, alone, self.capacity),
        )


def calls_of(load: Load, limits: Limits) -> Calls:
    """The calls of the mean session; what the limits would refuse is cut off as the server cuts
    it.
    """
    calls: defaultdict[Shape, float] = defaultdict(float)
    for prompt, output in load.sessions:
        prompt = min(prompt, limits.sequence_length - 1)
        output = min(output, limits.sequence_length - prompt)
        for shape, count in (*_prefill(prompt, limits), *_rounds(prompt, output, load, limits)):
            calls[shape] += count / len(load.sessions)
    return dict(calls)


def _prefill(prompt: int, limits: Limits) -> Iterator[tuple[Shape, float]]:
    """All of a prompt but its last token, which is the first root, in chunks; one session at a
    time.
    """
    rows = limits.rows if limits.all_rows else 1
    for start in range(0, prompt - 1, limits.chunk):
        yield Shape(True, rows, min(limits.chunk, prompt - 1 - start), max(1, start)), 1.0


def _rounds(prompt: int, output: int, load: Load, limits: Limits) -> Iterator[tuple[Shape, float]]:
    """Trees on a growing context. A round that serves several sessions is shared among them."""
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
                shape = Shape(False, limits.rows if limits.all_rows else active, nodes, slots)
                yield shape, tree_share / trees * share / together / active
