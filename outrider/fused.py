"""Roles that keep both models on one host: fused_target (serve them), fused_client (one request, the text streamed back)."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from pathlib import Path

from grpc_comm.server import Target
from inference.artifact import read_manifest
from inference.backends import RoundModel
from inference.backends.fused import fused_part
from inference.drafters.adaptive import MOST_OF_A_TREE
from inference.drafters.classic import ClassicDrafter
from inference.drafters.graph import GraphPool
from inference.drafters.hosted import Host, HostedDrafter
from inference.drafters.model import ModelDrafter
from inference.drafters.pool import DraftPool, Own
from inference.errors import InvalidRequest, Mismatch
from inference.policy import BestFirst, Policy
from inference.verification import probabilities_of
from outrider.completion import Completion, Request, Show, made_there
from outrider.generate import connect_target, make_requests, read_policy, read_prompts, run
from outrider.models import PREFILL_NODES, find_checkpoint, find_tokenizer, load_model
from outrider.options import Options
from outrider.profiles import user_profiles
from outrider.report import silent

CLASSIC = " (classic acceptance: a text of the target's distribution, not its seeded one)"
"""Follows the name of a draft, wherever it is told."""

LARGEST_ASKED = BestFirst(nodes=32, depth=8)
"""The largest tree that requests may ask for, where the host's own is not larger."""


def with_draft(target: Target, options: Options) -> Target:
    """The target with a draft beside it, as many rows of it as the target has, and room for the trees that requests may ask for.

    Raises Mismatch when their tokenizers differ, InvalidRequest for --acceptance classic with a target that gives no probabilities.
    """
    classic = options.acceptance == "classic"
    if classic:
        probabilities_of(target.engine.model)
    if isinstance(target.engine.model, RoundModel):
        return _with_graph(target, target.engine.model, options)
    checkpoint, policy = (
        find_checkpoint(replace(options, artifact=None), "draft"),
        read_policy(options),
    )
    fingerprint = checkpoint.tokenizer.fingerprint()
    if fingerprint != target.description.tokenizer_fingerprint:
        theirs = target.description.tokenizer_fingerprint
        raise Mismatch(
            f"the tokenizers differ: that of the draft {checkpoint.name} is {fingerprint}, that of {target.description.model} is {theirs}"
        )
    largest = max(policy, LARGEST_ASKED, key=lambda one: one.most_ranked)
    rows, room = target.engine.model.rows, max(largest.most_ranked, MOST_OF_A_TREE)
    model = load_model(
        options,
        checkpoint,
        rows=rows,
        sequence_length=target.engine.sequence_length,
        spare=room,
        max_nodes=max(PREFILL_NODES, room),
    )
    times = tuple(
        user_profiles(afresh=options.calibrate)
        .draft(checkpoint, model, target.engine.sequence_length)
        .items()
    )
    own = (
        _adapting(target, dict(times), rows, room)
        if asked_policy(options) is None and not classic
        else None
    )
    drafts = DraftPool(
        model,
        policy,
        room,
        ClassicDrafter if classic else ModelDrafter,
        own=own,
        seeded=not classic,
    )
    name = checkpoint.name + CLASSIC * classic
    description = replace(
        target.description, draft_model=name, draft_nodes=drafts.room, draft_times=times
    )
    return replace(target, drafts=drafts, description=description)


def _adapting(target: Target, draft: dict[int, float], rows: int, room: int) -> Own:
    """Trees as deep and wide as they pay on this host."""
    hosts = [
        Host(draft, dict(target.description.times), target.engine.max_tree_nodes - 1, room)
        for _ in range(rows)
    ]
    return lambda model, row: HostedDrafter(model, hosts[row], row=row)


def _with_graph(target: Target, model: RoundModel, options: Options) -> Target:
    """The target with the draft that is compiled into its graphs, whose trees have the shape that they were built for."""
    manifest = read_manifest(Path(options.artifact or ""))
    if options.draft_model is not None:
        raise InvalidRequest(
            f"--artifact holds a draft, too ({fused_part(manifest).model}): leave out --draft_model"
        )
    if model.shape.nodes > target.engine.max_tree_nodes:
        raise InvalidRequest(
            f"--max_tree_nodes {target.engine.max_tree_nodes}: a round of this artefact has {model.shape.nodes} nodes"
        )
    drafts, policy = GraphPool(model), asked_policy(options)
    if policy is not None:
        drafts.check(policy)
    name = f"{fused_part(manifest).model} (in the target's graph: {model.shape})"
    return replace(
        target,
        drafts=drafts,
        description=replace(target.description, draft_model=name, draft_nodes=drafts.room),
    )


def fused_client(options: Options) -> int:
    """One request a prompt; text and counters come back. No model is loaded here, only the tokenizer."""
    prompts, tokenizer = read_prompts(options), find_tokenizer(options)
    with connect_target(options, tokenizer) as target:
        description = target.description
        requests = make_requests(
            options, prompts, tokenizer, description.sequence_length, description.stop_ids
        )
        fused, policy = bool(description.draft_model), asked_policy(options)
        if policy is not None and not fused:
            raise InvalidRequest(
                f"{description.model} has no draft beside it whose trees could be asked for: leave --gamma and --tree_* out"
            )
        beside = (
            f"with {description.draft_model} beside it"
            if fused
            else "alone: no draft runs beside it"
        )
        print(f"{description.model} {beside}", file=sys.stderr)

        def complete(request: Request, show: Show, cancelled: threading.Event) -> Completion:
            done = made_there(request, target, fused, tokenizer, show, cancelled, policy=policy)
            done.device = f"{description.device}, {beside}" if fused else description.device
            if options.baseline and not cancelled.is_set():
                done.baseline = made_there(request, target, False, tokenizer, silent, cancelled)
                done.speedup = done.baseline.seconds / done.seconds
            return done

        return run(options, requests, complete, workers=min(options.batch, len(requests)))


def asked_policy(options: Options) -> Policy | None:
    """The trees that the command line asks the host's draft for; None: as the host is set."""
    given = (options.gamma, options.tree_nodes, options.tree_depth, options.tree_rates)
    return None if all(value is None for value in given) else read_policy(options)
