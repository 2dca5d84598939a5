"""What a target is asked to do: sessions, trees and how many at once, as a file says it; and the calls that follow from it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from inference.errors import InvalidRequest


class Shape(NamedTuple):
    """A call, or the graph that serves it: a graph serves every call of its kind that is nowhere larger."""

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
    """what: where the figures are from.  sessions: tokens of prompt and of output, one pair a session.  tree_sizes: nodes of a
    tree, root included -> share of rounds.  concurrent: sessions verified in one call -> share of rounds.  acceptance_length:
    tokens a round, the target's own included.
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
                    f"a load's {name} maps sizes of at least 1 to shares above 0: got {dict(shares)}"
                )
        if self.acceptance_length < 1:
            raise InvalidRequest(
                f"a load's acceptance_length is {self.acceptance_length}: a round makes at least the target's own token"
            )


def read_load(path: Path) -> Load:
    """A load from a JSON file, or measured: from the outrider-profile.json of a run with --profile. Raises InvalidRequest."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(raw, list):
            return _measured(raw, str(path))
        known = {entry.name for entry in fields(Load)}
        if not isinstance(raw, dict) or raw.keys() != known:
            raise InvalidRequest(f"{path}: a load has the fields {', '.join(sorted(known))}")
        return _parse(raw)
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}") from error
    except InvalidRequest:
        raise
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise InvalidRequest(f"{path} is not a load: {error}") from error


def _parse(raw: Mapping[str, Any]) -> Load:
    sessions = tuple((int(prompt), int(output)) for prompt, output in raw["sessions"])
    tree_sizes, concurrent = (
        {int(size): float(share) for size, share in raw[name].items()}
        for name in ("tree_sizes", "concurrent")
    )
    return Load(str(raw["what"]), sessions, tree_sizes, concurrent, float(raw["acceptance_length"]))


def _measured(records: Sequence[Mapping[str, Any]], name: str) -> Load:
    """A load from records of texts: of trees they have each text's mean, of concurrency nothing."""
    done = [record for record in records if record["rounds"] and record["token_ids"]]
    rounds, accepted = (
        sum(record["rounds"] for record in done),
        sum(record["num_accepted_tokens"] for record in done),
    )
    trees: defaultdict[int, float] = defaultdict(float)
    for record in done:
        trees[1 + round(record["num_draft_tokens"] / record["rounds"])] += record["rounds"]
    sessions = tuple((int(record["prompt_tokens"]), len(record["token_ids"])) for record in done)
    return Load(
        f"measured, {len(done)} texts of {name}, one at a time",
        sessions,
        dict(trees),
        {1: 1.0},
        1 + accepted / max(1, rounds),
    )


@dataclass(frozen=True)
class Limits:
    """What the artefact promises to serve. rows: of the cache.  chunk: prompt tokens in one call.  all_rows: every call has all rows."""

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
        """Graphs without which some call could not be served, or the target alone only at a tree's cost."""
        alone, largest = self.least_nodes, max(self.least_nodes, self.tree_nodes)
        prefill_rows = self.rows if self.all_rows else 1
        return (
            Shape(True, prefill_rows, self.chunk, self.capacity),
            Shape(False, self.rows, largest, self.capacity),
            Shape(False, self.rows, alone, self.capacity),
        )


def calls_of(load: Load, limits: Limits) -> Calls:
    """The calls of the mean session; what the limits would refuse is cut off as the server cuts it."""
    calls: defaultdict[Shape, float] = defaultdict(float)
    for prompt, output in load.sessions:
        prompt = min(prompt, limits.sequence_length - 1)
        output = min(output, limits.sequence_length - prompt)
        for shape, count in (*_prefill(prompt, limits), *_rounds(prompt, output, load, limits)):
            calls[shape] += count / len(load.sessions)
    return dict(calls)


def _prefill(prompt: int, limits: Limits) -> Iterator[tuple[Shape, float]]:
    """All of a prompt but its last token, which is the first root, in chunks; one session at a time."""
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
