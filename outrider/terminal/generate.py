"""Roles that make text: draft (here, verified by a target elsewhere), fused_client (by a target and
the draft beside it), verify_target and verify_draft (one model alone, in this process).

Each role reads the prompts, finds its models, turns prompts into requests, and runs these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from threading import Event

from grpc_comm.client.connection import Connection
from inference.backends import Model
from inference.command import say
from inference.draft_thread import inline, take_short_turns
from inference.engine.engine import Engine
from inference.engine.local_session import LocalSession
from inference.text import Tokenizer
from inference.times import LatencyModel
from outrider.client.client import Client, open_client
from outrider.client.connecting import connect_target, print_models
from outrider.draft_methods import FoundDraft, model
from outrider.models.artifacts import (
    artifact_length,
    load_artifact,
    open_artifact,
    with_neuron_artifact,
)
from outrider.models.loading import FoundModel, find_target, find_tokenizer
from outrider.models.precision import settled
from outrider.models.sequence_length import Capacity
from outrider.options.groups import DeviceOptions, TextOptions
from outrider.options.roles import DraftRole, FusedClientRole, VerifyDraftRole, VerifyTargetRole
from outrider.terminal.explain import Explainer, dear_law
from outrider.terminal.live_text import silent
from outrider.terminal.running import run
from outrider.terminal.summary import account
from outrider.text.completion import Completion, Request, Show, complete
from outrider.text.prompts import make_requests, read_prompts


def make_texts(options: TextOptions) -> int:
    """Run a role that makes text. Returns 0 when all texts were made."""
    if isinstance(options, DraftRole):
        return draft(options)
    if isinstance(options, FusedClientRole):
        return fused_client(options)
    assert isinstance(options, VerifyTargetRole | VerifyDraftRole)
    return verify(options)


def draft(options: DraftRole) -> int:
    """Role draft: draft here, verify at --target_host."""
    if options.list_models:
        print_models(options)
        return 0
    prompts = read_prompts(options)
    take_short_turns()
    with open_client(options) as client:
        stop_ids = client.target.description.stop_ids
        requests = make_requests(options, prompts, client.tokenizer, client.length, stop_ids)
        told = partial(account, purse=client.purse, wish=client.aims.wish)
        rows = min(options.batch, len(requests))

        def make(request: Request, show: Show, cancelled: Event) -> Completion:
            client.load(rows)
            explainer = _explainer(options, client, show)
            tell = explainer.tell if explainer else None
            done = client.complete(request, show, cancelled, tell)
            if explainer is not None:
                explainer.conclude(done)
            if options.baseline:
                add_baseline(done, request, client.target, client.tokenizer, cancelled)
            return done

        code = run(options, requests, make, workers=rows, told=told)
        client.wait()  # an error of the draft fails the command, not its texts
        return code


def _explainer(options: DraftRole, client: Client, show: Show) -> Explainer | None:
    """What explains a text, with --explain and a draft that never waits."""
    if not options.explain or client.round_trip is None:
        return None
    aims, law = client.aims, dear_law(LatencyModel(dict(client.target.description.times)))
    return Explainer(client.round_trip, aims.terms, aims.wish.objective, show is silent, law)


def fused_client(options: FusedClientRole) -> int:
    """Role fused_client: ask the target, and the draft beside it where there is one. Only the
    tokenizer is loaded here, no model.
    """
    if options.list_models:
        print_models(options)
        return 0
    prompts, tokenizer = read_prompts(options), find_tokenizer(options.target_name, "target")
    with connect_target(options, tokenizer) as target:
        description = target.description
        length, stop_ids = description.sequence_length, description.stop_ids
        requests = make_requests(options, prompts, tokenizer, length, stop_ids)
        beside = bool(description.draft_model)
        who = f"with {description.draft_model} beside it" if beside else "alone: no draft beside it"
        say(f"{description.model} {who}")

        def make(request: Request, show: Show, cancelled: Event) -> Completion:
            order = request.order(beside=beside)
            done = complete(
                request, target.session(), inline(), tokenizer, show, cancelled, order=order
            )
            done.device = f"{description.device}, {who}" if beside else description.device
            if options.baseline:
                add_baseline(done, request, target, tokenizer, cancelled)
            return done

        return run(options, requests, make, workers=min(options.batch, len(requests)))


def verify(options: VerifyTargetRole | VerifyDraftRole) -> int:
    """Roles verify_target and verify_draft: one model alone in this process. Texts of the other
    roles are compared with these.
    """
    prompts = read_prompts(options)
    found, length, load = (
        _draft_alone(options) if isinstance(options, VerifyDraftRole) else _target_alone(options)
    )
    tokenizer = found.tokenizer
    requests = make_requests(options, prompts, tokenizer, length, found.stop_ids)
    engine = Engine(
        load(), sequence_length=length, max_tree_nodes=1, vocabulary=tokenizer.vocabulary
    )

    def make(request: Request, show: Show, cancelled: Event) -> Completion:
        return complete(request, LocalSession(engine), inline(), tokenizer, show, cancelled)

    return run(options, requests, make, workers=1)


Alone = tuple[FoundModel, int, Callable[[], Model]]
"""A model, the length of its longest text, and a function that loads the model once all
prompts are known to fit.
"""


def _draft_alone(options: VerifyDraftRole) -> Alone:
    found = model.find(options, None).model
    length = found.sequence_length(options.sequence_length)
    return found, length, partial(_load_alone, found, options, length, 1)


def _target_alone(options: VerifyTargetRole) -> Alone:
    options = with_neuron_artifact(options)
    if options.artifact:
        manifest, checkpoint = open_artifact(options)
        length = artifact_length(options, manifest)
        return checkpoint, length, partial(load_artifact, options, manifest)
    found = find_target(options)
    length = found.sequence_length(options.sequence_length)
    return found, length, partial(_load_alone, found, options, length, options.max_tree_nodes)


def _load_alone(found: FoundModel, options: DeviceOptions, length: int, nodes: int) -> Model:
    """Load a model whose text is its own: it keeps its weights exactly."""
    chosen = settled(found, options, drafts=False)
    return chosen.load(options, Capacity(1, length, 1, nodes))


def session_length(asked: int | None, draft: FoundDraft, target: Connection) -> int:
    """The sequence length, prompt and output together, that draft, target and user allow."""
    return min(draft.sequence_length(asked), target.description.sequence_length)


def add_baseline(
    done: Completion, request: Request, target: Connection, tokenizer: Tokenizer, cancelled: Event
) -> None:
    """Add the target-only text of the same request, as long as this text."""
    if not done.token_ids or cancelled.is_set():
        return
    if not done.whole:
        request = replace(request, max_new_tokens=len(done.token_ids))
    alone = complete(request, target.session(), inline(), tokenizer, silent, cancelled)
    alone.device = target.description.device
    done.baseline, done.speedup = alone, alone.seconds / done.seconds
