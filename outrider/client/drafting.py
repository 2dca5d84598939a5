"""Loads the draft of a client, and lends its rows to texts.

By default a draft never waits: it grows a candidate tree while the target keeps decoding. Options
that fix the size of the trees make target and draft work in synchronous rounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

from grpc_comm.client.connection import Connection
from inference.draft_tuning import TUNING
from inference.drafters.draft import Draft
from inference.drafters.round_proposer import BestFirst, Chain, Policy
from inference.grammar import Grammars
from inference.times import Table
from outrider.client.pools import AnyRows, GrowingRows, Pair, learned_file, rounds
from outrider.draft_methods import FoundDraft
from outrider.models.capacity import Capacity
from outrider.models.loading import PREFILL_NODES
from outrider.models.profiles import user_profiles
from outrider.money.goal import Goal
from outrider.options.draft_flags import TreeOptions
from outrider.options.groups import DeviceOptions
from outrider.options.roles import ClientRole

DEFAULT_TREE = BestFirst(nodes=16, depth=6)
"""The default tree of synchronous rounds."""


class Sides(NamedTuple):
    """The local draft and the remote target."""

    found: FoundDraft | None  # None: n-gram copying only
    target: Connection
    rows: int  # concurrent texts
    length: int  # maximum tokens of a text, prompt and output together
    grammars: Grammars  # of the tokenizer of both


def draft_rows(options: ClientRole, sides: Sides, goal: Goal) -> AbstractContextManager[AnyRows]:
    """Load the draft and yield its rows, which draft for one text each."""
    if options.waits and sides.found is not None and sides.found.ranks:
        return _in_rounds(options, sides, sides.found)
    return _growing(options, sides, goal)


@contextmanager
def _in_rounds(options: ClientRole, sides: Sides, found: FoundDraft) -> Iterator[AnyRows]:
    """Rows for synchronous rounds: the target waits for a whole tree of a fixed policy."""
    policy = read_policy(options)
    ranked, found = policy.most_ranked, found.settled(options)
    draft = load_draft(options, found, sides.rows, sides.length, ranked, ranked)
    draft = draft._replace(grammars=sides.grammars)
    pool = rounds(draft, policy, sides.target.description.max_tree_nodes - 1)
    try:
        yield pool
    finally:
        pool.settle()


@contextmanager
def _growing(options: ClientRole, sides: Sides, goal: Goal) -> Iterator[AnyRows]:
    """Rows that never wait. Their statistics of the pair are stored at the end."""
    draft, called = Draft(None), "copy"
    times: Table = {}
    if sides.found is not None:
        found = sides.found.settled(options)
        draft = load_draft(options, found, sides.rows, sides.length, TUNING.room, TUNING.widest)
        times = found.times(user_profiles(options), draft, sides.length)
        called = found.fingerprint()
    learned = learned_file(called, sides.target.description.model_fingerprint)
    pair, draft = Pair(sides.target, times, learned), draft._replace(grammars=sides.grammars)
    pool = GrowingRows(draft, pair, goal, options.copies, sides.rows)
    try:
        yield pool
    finally:
        pool.settle()
        pool.keep()


def load_draft(
    options: DeviceOptions, found: FoundDraft, rows: int, length: int, room: int, widest: int
) -> Draft:
    """Load the draft.

    room: nodes per row beyond its longest text
    widest: maximum of these nodes in one call
    """
    return found.load(options, Capacity(rows, length, room, max(PREFILL_NODES, widest)))


def read_policy(options: TreeOptions) -> Policy:
    """The tree of --gamma, or of --tree_nodes and --tree_depth."""
    if options.gamma is not None:
        return Chain(options.gamma)
    nodes = options.tree_nodes or DEFAULT_TREE.nodes
    depth = options.tree_depth or DEFAULT_TREE.depth
    return BestFirst(nodes, depth)
