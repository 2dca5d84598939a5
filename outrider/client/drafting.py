"""Loads the draft of a client, and lends its rows to requests.

By default, the draft never waits: it grows a candidate tree while the target keeps decoding.
Options that fix the size of the trees make target and draft work in synchronous rounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

from grpc_comm.client.connection import Connection
from inference.drafters.growing_proposer import Draft
from inference.drafters.round_proposer import BestFirst, Chain, Policy
from inference.loop.draft_tuning import TUNING
from inference.text.grammar import Grammars
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


class DraftSetup(NamedTuple):
    """The local draft and the remote target."""

    model: FoundDraft | None  # None: n-gram copying only
    target: Connection
    rows: int  # concurrent requests
    length: int  # maximum tokens of a request, prompt and output together
    grammars: Grammars  # for the tokenizer that draft and target share


def draft_rows(
    options: ClientRole, setup: DraftSetup, goal: Goal
) -> AbstractContextManager[AnyRows]:
    """Load the draft and yield its rows. Each row drafts for one request at a time."""
    if options.waits and setup.model is not None:
        return _in_rounds(options, setup, setup.model)
    return _growing(options, setup, goal)


@contextmanager
def _in_rounds(options: ClientRole, setup: DraftSetup, model: FoundDraft) -> Iterator[AnyRows]:
    """Yield rows for synchronous rounds: the target waits for a whole tree of a fixed policy."""
    policy = read_policy(options)
    ranked = policy.max_ranked
    draft = _load(options, model.settled(options), setup, ranked, ranked)
    pool = rounds(draft, policy, setup.target.description.max_tree_nodes - 1)
    try:
        yield pool
    finally:
        pool.settle()


@contextmanager
def _growing(options: ClientRole, setup: DraftSetup, goal: Goal) -> Iterator[AnyRows]:
    """Yield rows that never wait. What they learn about draft and target is stored at the end."""
    draft, identity = Draft(None, grammars=setup.grammars), "copy"
    times: Table = {}
    if setup.model is not None:
        model = setup.model.settled(options)
        draft = _load(options, model, setup, TUNING.room, TUNING.widest)
        times = model.times(user_profiles(options), draft, setup.length)
        identity = model.model.fingerprint()
    learned = learned_file(identity, setup.target.description.model_fingerprint)
    pair = Pair(setup.target, times, learned)
    pool = GrowingRows(draft, pair, goal, options.copies, setup.rows)
    try:
        yield pool
    finally:
        pool.settle()
        pool.keep()


def _load(
    options: DeviceOptions, model: FoundDraft, setup: DraftSetup, room: int, widest: int
) -> Draft:
    """Load the draft.

    room: nodes per row in addition to its longest sequence
    widest: maximum number of these nodes in one forward pass
    """
    capacity = Capacity(setup.rows, setup.length, room, max(PREFILL_NODES, widest))
    return model.load(options, capacity)._replace(grammars=setup.grammars)


def read_policy(options: TreeOptions) -> Policy:
    """Return the tree policy given by --gamma, or by --tree_nodes and --tree_depth."""
    if options.gamma is not None:
        return Chain(options.gamma)
    nodes = options.tree_nodes or DEFAULT_TREE.nodes
    depth = options.tree_depth or DEFAULT_TREE.depth
    return BestFirst(nodes, depth)
