"""Both models on one host: the draft beside a target (role fused_target), and the client of such a
host (fused_client), where no model is loaded.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from grpc_comm.translate import Description
from inference.artifact import read_manifest
from inference.backends import Model, RoundModel
from inference.backends.fused import fused_part
from inference.drafters.model_proposer import ROOM
from inference.engine.graph_rounds import GraphRounds
from inference.engine.host import Host
from inference.errors import InvalidRequest, Mismatch
from inference.planner.acceptance import read_acceptance
from inference.planner.knowledge import Knowledge
from inference.times import DraftTimes, LinkTimes, TargetTimes
from outrider.completion import Completion, Request, Show, complete
from outrider.generate import add_baseline, connect_target, make_requests, read_prompts, run
from outrider.models import PREFILL_NODES, find_checkpoint, find_tokenizer, load_model
from outrider.options import Options
from outrider.profiles import user_profiles


class Drafts(NamedTuple):
    """What drafts beside a target, and the target's description with it."""

    description: Description
    host: Host | None = None
    graphs: GraphRounds | None = None


def with_draft(options: Options, model: Model, description: Description) -> Drafts:
    """A draft beside this target, with as many rows. In a target whose graphs hold a draft it is
    that one.

    Raises Mismatch when their tokenizers differ.
    """
    if isinstance(model, RoundModel):
        return _in_graph(options, model, description)
    checkpoint = find_checkpoint(replace(options, artifact=None), "draft")
    fingerprint = checkpoint.tokenizer.fingerprint()
    if fingerprint != description.tokenizer_fingerprint:
        raise Mismatch(
            f"the tokenizers differ: that of the draft {checkpoint.name} is {fingerprint}, that of "
            f"{description.model} is {description.tokenizer_fingerprint}"
        )
    length = description.sequence_length
    draft = load_model(
        options,
        checkpoint,
        rows=model.rows,
        sequence_length=length,
        spare=ROOM,
        max_nodes=PREFILL_NODES,
    )
    times = user_profiles(afresh=options.calibrate).draft(checkpoint, draft, length)
    host = Host(draft, partial(_knowledge, times, description), room=ROOM)
    told = replace(description, draft_model=checkpoint.name, draft_times=tuple(times.items()))
    return Drafts(told, host=host)


def _knowledge(times: dict[int, float], description: Description) -> Knowledge:
    """Of a draft that no link parts from its target."""
    target = TargetTimes(dict(description.times))
    return Knowledge(DraftTimes(times), target, LinkTimes(), read_acceptance())


def _in_graph(options: Options, model: RoundModel, description: Description) -> Drafts:
    """The draft that is compiled into the target's graphs; a round has the shape that they were
    built for.
    """
    manifest = read_manifest(Path(options.artifact or ""))
    if options.draft_model is not None:
        raise InvalidRequest(
            f"--artifact holds a draft, too ({fused_part(manifest).model}): leave out --draft_model"
        )
    if model.shape.nodes > description.max_tree_nodes:
        raise InvalidRequest(
            f"--max_tree_nodes {description.max_tree_nodes}: a round of this artefact has "
            f"{model.shape.nodes} nodes"
        )
    name = f"{fused_part(manifest).model} (in the target's graph: {model.shape})"
    return Drafts(replace(description, draft_model=name), graphs=GraphRounds(model))


def fused_client(options: Options) -> int:
    """Text from the target, and from the draft beside it where there is one. No model is loaded
    here, only the tokenizer.
    """
    prompts, tokenizer = read_prompts(options), find_tokenizer(options)
    with connect_target(options, tokenizer) as target:
        description = target.description
        length, stop_ids = description.sequence_length, description.stop_ids
        requests = make_requests(options, prompts, tokenizer, length, stop_ids)
        beside = bool(description.draft_model)
        who = f"with {description.draft_model} beside it" if beside else "alone: no draft beside it"
        print(f"{description.model} {who}", file=sys.stderr)

        def make(request: Request, show: Show, cancelled: threading.Event) -> Completion:
            order = request.order(beside=beside)
            done = complete(request, target.session(), [], tokenizer, show, cancelled, order=order)
            done.device = f"{description.device}, {who}" if beside else description.device
            if options.baseline and done.token_ids and not cancelled.is_set():
                add_baseline(done, request, target, tokenizer, cancelled)
            return done

        return run(options, requests, make, workers=min(options.batch, len(requests)))
