"""Roles verify_target and verify_draft: generate with one model alone, in this process, as the
reference for the output of the other roles.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Event

from inference.backends import Model
from inference.engine.engine import Engine
from inference.engine.sessions.local_session import LocalSession
from inference.loop.draft_thread import inline
from inference.text.grammar import Grammars
from outrider.draft_methods import model as draft_model
from outrider.models.artifacts import (
    artifact_length,
    load_artifact,
    open_artifact,
    with_neuron_artifact,
)
from outrider.models.found_model import Capacity, FoundModel
from outrider.models.loading import find_target
from outrider.options.groups import DeviceOptions
from outrider.options.roles import VerifyDraftRole, VerifyTargetRole
from outrider.terminal.generate import run
from outrider.text.completion import Completion, Request, Show, complete
from outrider.text.prompts import TextModel, make_requests, read_prompts


def verify(options: VerifyTargetRole | VerifyDraftRole) -> int:
    """Complete the prompts with one model alone. Returns 0 if all succeeded."""
    prompts = read_prompts(options)
    checkpoint, length, load = (
        _draft_alone(options) if isinstance(options, VerifyDraftRole) else _target_alone(options)
    )
    tokenizer, stop_ids = checkpoint.tokenizer, checkpoint.stop_ids
    text_model = TextModel(checkpoint.name, tokenizer, length, stop_ids)
    requests = make_requests(text_model, options, prompts)
    engine = Engine(
        load(),
        sequence_length=length,
        max_tree_nodes=1,
        vocabulary=tokenizer.vocabulary,
        grammars=Grammars(tokenizer.to_json(), tokenizer.vocabulary, sorted(stop_ids)),
    )

    def make(request: Request, show: Show, cancelled: Event) -> Completion:
        return complete(request, LocalSession(engine), inline(), tokenizer, show, cancelled)

    return run(options, requests, make, workers=1)


Alone = tuple[FoundModel, int, Callable[[], Model]]
"""A model, its maximum length of prompt and output, and a function that loads the model, to be
called once all prompts have been checked to fit.
"""


def _draft_alone(options: VerifyDraftRole) -> Alone:
    checkpoint = draft_model.find(options, None).model
    length = checkpoint.sequence_length(options.sequence_length)
    return checkpoint, length, partial(_load_alone, checkpoint, options, length, 1)


def _target_alone(options: VerifyTargetRole) -> Alone:
    options = with_neuron_artifact(options)
    if options.artifact:
        manifest, artifact = open_artifact(options)
        length = artifact_length(options, manifest)
        return artifact, length, partial(load_artifact, options, manifest)
    checkpoint = find_target(options)
    length = checkpoint.sequence_length(options.sequence_length)
    nodes = options.max_tree_nodes
    return checkpoint, length, partial(_load_alone, checkpoint, options, length, nodes)


def _load_alone(checkpoint: FoundModel, options: DeviceOptions, length: int, nodes: int) -> Model:
    """Load a model with its exact weights, since its output is the reference."""
    exact = checkpoint.settled(options, drafts=False)
    return exact.load(options, Capacity(1, length, 1, nodes))
