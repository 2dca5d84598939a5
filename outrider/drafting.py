"""Texts with a draft on this machine, verified by a target elsewhere.

`drafting` loads the draft and says how a request is completed with it. By default the draft never
waits: it grows a candidate tree while the target goes on (`_growing`). Where the command line says
what trees are drafted, or `--pace wait`, target and draft make rounds (`_in_rounds`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Event
from typing import TYPE_CHECKING, NamedTuple

from grpc_comm.client.connection import Connection
from inference.cost.accounting import Rates
from inference.drafters.model_proposer import ROOM, WIDEST
from inference.drafters.tree_policies import BestFirst, Chain, Policy, Static
from inference.order import Pace
from outrider.completion import Complete, Completion, Request, Show, complete
from outrider.explain import Explainer
from outrider.live_text import silent
from outrider.models import PREFILL_NODES, Checkpoint, load_model
from outrider.options.groups import DeviceOptions, TreeOptions
from outrider.options.roles import DraftRole
from outrider.pools import GrowingPool, learned_file, rounds
from outrider.profiles import user_profiles
from outrider.wishes import read_aims

if TYPE_CHECKING:
    from inference.backends.eager import EagerModel
    from inference.backends.legacy_neuron import LegacyNeuronModel

DEFAULT_TREE = BestFirst(nodes=16, depth=6)
"""The tree of synchronous rounds where the command line names none."""


class Sides(NamedTuple):
    """The draft's checkpoint here and the target there."""

    checkpoint: Checkpoint
    target: Connection
    rows: int  # texts that are made at once
    length: int  # longest text, prompt and output together


def drafting(
    options: DraftRole, sides: Sides, rates: Rates | None
) -> AbstractContextManager[Complete]:
    """Yields a function that completes requests with a draft on this machine.

    rates: what cost is counted by, where it is known
    """
    return _in_rounds(options, sides) if options.waits else _growing(options, sides, rates)


@contextmanager
def _in_rounds(options: DraftRole, sides: Sides) -> Iterator[Complete]:
    """Complete in synchronous rounds: the target waits for a whole tree of a fixed policy."""
    policy = read_policy(options)
    ranked = policy.most_ranked
    model = load_draft(options, sides.checkpoint, sides.rows, sides.length, ranked, ranked)
    pool = rounds(model, policy, sides.target.description.max_tree_nodes - 1)

    def complete_in_rounds(request: Request, show: Show, cancelled: Event) -> Completion:
        order, session = request.order(Pace.WAIT), sides.target.session()
        tokenizer = sides.checkpoint.tokenizer
        with pool.proposer() as proposer:
            return complete(request, session, [proposer], tokenizer, show, cancelled, order=order)

    yield complete_in_rounds


@contextmanager
def _growing(options: DraftRole, sides: Sides, rates: Rates | None) -> Iterator[Complete]:
    """Complete with a draft that never waits. What it learned about the pair is kept at the end."""
    from inference.model.checkpoint import fingerprint  # a compiled target needs no decoder

    aims, target, checkpoint = read_aims(options, rates), sides.target, sides.checkpoint
    model = load_draft(options, checkpoint, sides.rows, sides.length, ROOM, WIDEST)
    profile = user_profiles(options).draft(checkpoint, model, sides.length)
    learned = learned_file(fingerprint(checkpoint.directory), target.description.model_fingerprint)
    pool = GrowingPool(model, profile, target, aims, learned)

    def complete_growing(request: Request, show: Show, cancelled: Event) -> Completion:
        explainer = Explainer(
            pool.round_trip, aims.terms, aims.wish.objective, named=show is silent
        )
        with pool.proposer() as proposer:
            done = complete(
                request,
                target.session(),
                [proposer],
                checkpoint.tokenizer,
                show,
                cancelled,
                offline=options.offline == "draft",
                tell=explainer.tell if options.explain else None,
            )
        if options.explain:
            explainer.conclude(done)
        return done

    try:
        yield complete_growing
    finally:
        pool.keep()


def load_draft(
    options: DeviceOptions, checkpoint: Checkpoint, rows: int, length: int, room: int, widest: int
) -> EagerModel | LegacyNeuronModel:
    """Load the draft model.

    room: nodes that a row may have ranked beyond its longest text
    widest: most of these nodes in one call
    """
    return load_model(
        options,
        checkpoint,
        rows=rows,
        sequence_length=length,
        spare=room,
        max_nodes=max(PREFILL_NODES, widest),
    )


def read_policy(options: TreeOptions) -> Policy:
    """The tree that --gamma, --tree_rates or --tree_nodes and --tree_depth ask for."""
    if options.gamma is not None:
        return Chain(options.gamma)
    nodes = options.tree_nodes or DEFAULT_TREE.nodes
    depth = options.tree_depth or DEFAULT_TREE.depth
    if options.tree_rates is not None:
        rates = tuple(float(rate) for rate in options.tree_rates.split(","))
        return Static(rates, nodes, depth)
    return BestFirst(nodes, depth)
