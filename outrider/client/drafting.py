"""Loads the draft of a client, and lends its rows to texts.

By default a draft never waits: it grows a candidate tree while the target goes on. Where the
options say what trees are drafted, or `--pace wait`, target and draft make synchronous rounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import NamedTuple

from grpc_comm.client.connection import Connection
from inference.drafters.copy_source import CopySource, History
from inference.drafters.model_proposer import ROOM, WIDEST
from inference.drafters.tree_policies import BestFirst, Chain, Policy
from outrider.client.pools import AnyRows, GrowingPool, Pair, learned_file, rounds
from outrider.models.loading import PREFILL_NODES, FoundModel, LoadedModel
from outrider.models.precision import settled
from outrider.models.profiles import user_profiles
from outrider.models.sequence_length import Capacity
from outrider.money.goal import Goal
from outrider.options.drafting import HistoryOptions, TreeOptions
from outrider.options.groups import DeviceOptions
from outrider.options.roles import ClientRole

DEFAULT_TREE = BestFirst(nodes=16, depth=6)
"""The tree of synchronous rounds where the command line names none."""


class Sides(NamedTuple):
    """What drafts here, and the target there."""

    found: FoundModel | None  # the draft model; None copies alone
    target: Connection
    rows: int  # texts that are made at once
    length: int  # longest text, prompt and output together


def draft_rows(options: ClientRole, sides: Sides, aims: Goal) -> AbstractContextManager[AnyRows]:
    """Load the draft and yield its rows, which draft for one text each."""
    if options.waits and sides.found is not None:
        return _in_rounds(options, sides, sides.found)
    return _growing(options, sides, aims)


@contextmanager
def _in_rounds(options: ClientRole, sides: Sides, found: FoundModel) -> Iterator[AnyRows]:
    """Rows for synchronous rounds: the target waits for a whole tree of a fixed policy."""
    policy = read_policy(options)
    ranked, found = policy.most_ranked, settled(found, options, drafts=True)
    model = load_draft(options, found, sides.rows, sides.length, ranked, ranked)
    pool = rounds(model, policy, sides.target.description.max_tree_nodes - 1)
    try:
        yield pool
    finally:
        pool.settle()


@contextmanager
def _growing(options: ClientRole, sides: Sides, aims: Goal) -> Iterator[AnyRows]:
    """Rows that never wait. What they learned about the pair is kept at the end."""
    make = _copying if sides.found is None else partial(_drafting, sides.found)
    pool = make(options, sides, aims)
    try:
        yield pool
    finally:
        pool.settle()
        pool.keep()


def _drafting(found: FoundModel, options: ClientRole, sides: Sides, aims: Goal) -> GrowingPool:
    """Rows of a draft model, which copy, too, where the options say so."""
    target, found = sides.target, settled(found, options, drafts=True)
    model = load_draft(options, found, sides.rows, sides.length, ROOM, WIDEST)
    times = user_profiles(options).draft(found, model, sides.length)
    learned = learned_file(found.fingerprint(), target.description.model_fingerprint)
    pair, sources = Pair(target, times, learned), _sources(options, sides.rows)
    return GrowingPool.of_model(model, pair, aims, sources)


def _copying(options: ClientRole, sides: Sides, aims: Goal) -> GrowingPool:
    """Rows that copy alone."""
    target = sides.target
    pair = Pair(target, {}, learned_file("copy", target.description.model_fingerprint))
    return GrowingPool.of_copies(_sources(options, sides.rows), pair, aims)


def _sources(options: ClientRole, rows: int) -> list[CopySource | None]:
    """What each row copies from. Earlier texts are shared only where one user said so."""
    if not options.copies:
        return [None] * rows
    shared = isinstance(options, HistoryOptions) and options.copy_history
    history = History() if shared else None
    return [CopySource(history) for _ in range(rows)]


def load_draft(
    options: DeviceOptions, found: FoundModel, rows: int, length: int, room: int, widest: int
) -> LoadedModel:
    """Load the draft model.

    room: nodes that a row may have ranked beyond its longest text
    widest: most of these nodes in one call
    """
    return found.load(
        options,
        Capacity(rows, length, room, max(PREFILL_NODES, widest)),
    )


def read_policy(options: TreeOptions) -> Policy:
    """The tree that --gamma, or --tree_nodes and --tree_depth ask for."""
    if options.gamma is not None:
        return Chain(options.gamma)
    nodes = options.tree_nodes or DEFAULT_TREE.nodes
    depth = options.tree_depth or DEFAULT_TREE.depth
    return BestFirst(nodes, depth)
