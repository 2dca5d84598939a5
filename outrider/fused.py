"""Roles that keep both models on one host: fused_target (serve them), fused_client (one request, the text streamed back)."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace

from grpc_comm.server import Target
from inference.drafters.pool import DraftPool
from inference.errors import Mismatch
from outrider.completion import Completion, Request, Show, made_there
from outrider.generate import connect_target, load_draft, make_requests, read_policy, read_prompts, run
from outrider.models import find_checkpoint, find_tokenizer
from outrider.options import Options
from outrider.report import silent


def with_draft(target: Target, options: Options) -> Target:
    """The target with a draft beside it, as many rows of it as the target has; raises Mismatch when their tokenizers differ."""
    checkpoint, policy = find_checkpoint(replace(options, artifact=None), "draft"), read_policy(options)
    fingerprint = checkpoint.tokenizer.fingerprint()
    if fingerprint != target.description.tokenizer_fingerprint:
        theirs = target.description.tokenizer_fingerprint
        raise Mismatch(f"the tokenizers differ: that of the draft {checkpoint.name} is {fingerprint}, that of {target.description.model} is {theirs}")
    model = load_draft(options, checkpoint, policy, target.engine.model.rows, target.engine.sequence_length)
    description = replace(target.description, draft_model=checkpoint.name)
    return replace(target, drafts=DraftPool(model, policy), description=description)


def fused_client(options: Options) -> int:
    """One request a prompt; text and counters come back. No model is loaded here, only the tokenizer."""
    prompts, tokenizer = read_prompts(options), find_tokenizer(options)
    with connect_target(options, tokenizer) as target:
        description = target.description
        requests = make_requests(options, prompts, tokenizer, description.sequence_length, description.stop_ids)
        fused = bool(description.draft_model)
        beside = f"with {description.draft_model} beside it" if fused else "alone: no draft runs beside it"
        print(f"{description.model} {beside}", file=sys.stderr)

        def complete(request: Request, show: Show, cancelled: threading.Event) -> Completion:
            done = made_there(request, target, fused, tokenizer, show, cancelled)
            done.device = description.device
            if options.baseline and not cancelled.is_set():
                done.baseline = made_there(request, target, False, tokenizer, silent, cancelled)
                done.speedup = done.baseline.seconds / done.seconds
            return done

        return run(options, requests, complete, workers=min(options.batch, len(requests)))
