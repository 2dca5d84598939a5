"""Roles that make text: draft (here, verified elsewhere), verify_target and verify_draft (one
model alone, in this process).
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from grpc_comm.client.connection import CONNECT_SECONDS, Connection, connect, list_models
from grpc_comm.client.remote_session import Patience
from grpc_comm.transport import Address
from inference.backends import Model
from inference.command import printable
from inference.engine.engine import Engine
from inference.engine.local_session import LocalSession
from inference.errors import InvalidRequest, OutriderError
from inference.sampling import SEED_BITS, SamplingParams, random_seed
from inference.text import Tokenizer
from outrider.artifacts import artifact_length, load_artifact, open_artifact, with_neuron_artifact
from outrider.completion import Broken, Completion, Request, Show, complete, new_completion
from outrider.models import Checkpoint, find_checkpoint, load_model, security_of
from outrider.options import Options
from outrider.purse import Purse, open_purse
from outrider.report import LiveText, account, silent, summary, write_profile
from outrider.wishes import read_prices, read_wish

Complete = Callable[[Request, Show, threading.Event], Completion]


def draft(options: Options) -> int:
    """Draft here, verify at --target_host."""
    from outrider.drafting import drafting

    if options.list_models:
        print(*list_models(_addresses(options), security=security_of(options)), sep="\n")
        return 0
    prompts, checkpoint = read_prompts(options), find_checkpoint(options, "draft")
    tokenizer = checkpoint.tokenizer
    with connect_target(options, tokenizer) as target:
        length = session_length(options, checkpoint, target)
        stated = read_prices(options, target.description.usd_per_hour)
        purse, rates = open_purse(options, stated), stated.rates if stated is not None else None
        told = partial(account, purse=purse, wish=read_wish(options, rates))
        requests = make_requests(options, prompts, tokenizer, length, target.description.stop_ids)
        rows = min(options.batch, len(requests))
        with drafting(options, checkpoint, target, rows, length, rates) as make:

            def make_paid(request: Request, show: Show, cancelled: threading.Event) -> Completion:
                done = _paid(request, purse, make, show, cancelled)
                done.device = target.description.device
                if options.baseline and done.token_ids and not cancelled.is_set():
                    add_baseline(done, request, target, tokenizer, cancelled)
                return done

            return run(options, requests, make_paid, workers=rows, told=told)


def add_baseline(
    done: Completion,
    request: Request,
    target: Connection,
    tokenizer: Tokenizer,
    cancelled: threading.Event,
) -> None:
    """The target's own text of the same request, as far as this one was made."""
    if not done.whole:
        request = replace(request, max_new_tokens=len(done.token_ids))
    alone = complete(request, target.session(), [], tokenizer, silent, cancelled)
    alone.device = target.description.device
    done.baseline, done.speedup = alone, alone.seconds / done.seconds


def _paid(
    request: Request, purse: Purse, make: Complete, show: Show, cancelled: threading.Event
) -> Completion:
    """The text, paid from this purse; none begins once that is empty."""
    if purse.empty:
        return replace(new_completion(request), finish_reason="spent", usd=0.0)
    with purse.text() as tab:
        return make(replace(request, tab=tab), show, cancelled)


def verify(options: Options) -> int:
    """One model alone in this process: what the other roles' text is compared with."""
    prompts = read_prompts(options)
    checkpoint, length, load = _alone(options)
    tokenizer = checkpoint.tokenizer
    requests = make_requests(options, prompts, tokenizer, length, checkpoint.config.stop_ids)
    engine = Engine(
        load(), sequence_length=length, max_tree_nodes=1, vocabulary=tokenizer.vocabulary
    )

    def make(request: Request, show: Show, cancelled: threading.Event) -> Completion:
        return complete(request, LocalSession(engine), [], tokenizer, show, cancelled)

    return run(options, requests, make, workers=1)


def _alone(options: Options) -> tuple[Checkpoint, int, Callable[[], Model]]:
    """The model of role verify_*: what it is, its sequence length, and how to load it once the
    prompts are known to fit.
    """
    if options.role == "verify_target":
        options = with_neuron_artifact(options)
    if options.artifact and options.role == "verify_target":
        manifest, checkpoint = open_artifact(options)
        return (
            checkpoint,
            artifact_length(options, manifest),
            lambda: load_artifact(options, manifest),
        )
    checkpoint = find_checkpoint(options, options.role.removeprefix("verify_"))
    length = checkpoint.sequence_length(options.sequence_length)
    return (
        checkpoint,
        length,
        lambda: load_model(
            options,
            checkpoint,
            rows=1,
            sequence_length=length,
            spare=1,
            max_nodes=options.max_tree_nodes,
        ),
    )


@contextmanager
def connect_target(options: Options, tokenizer: Tokenizer) -> Iterator[Connection]:
    """The target at --target_host and --port; token ids mean the same on both sides, or nothing is
    sent.

    A model that is named may have to be loaded there first: that is waited for as long as
    --patience says.
    """
    patience = Patience(options.patience, lambda line: print(line, file=sys.stderr, flush=True))
    fingerprint = tokenizer.fingerprint()
    name, seconds = (
        options.model_name or "",
        max(CONNECT_SECONDS, options.patience) if options.model_name else CONNECT_SECONDS,
    )
    security = security_of(options)
    with connect(
        _addresses(options),
        security=security,
        tokenizer_fingerprint=fingerprint,
        model=name,
        timeout=seconds,
        patience=patience,
    ) as target:
        yield target


def _addresses(options: Options) -> str:
    return ",".join(_address(host.strip(), options.port) for host in options.target_host.split(","))


def _address(host: str, port: int) -> str:
    named = host.startswith("[") or host.count(":") == 1  # HOST:PORT or [IPv6]:PORT
    return host if named else str(Address(host, port))


def session_length(options: Options, checkpoint: Checkpoint, target: Connection) -> int:
    """Prompt and output together: what the draft, the target and the user allow."""
    return min(
        checkpoint.sequence_length(options.sequence_length), target.description.sequence_length
    )


def read_prompts(options: Options) -> list[str]:
    """--prompt, or the lines of --prompt_text."""
    if (options.prompt is None) == (options.prompt_text is None):
        raise InvalidRequest("give one of --prompt TEXT and --prompt_text FILE")
    if options.prompt is not None:
        prompts = [options.prompt]
    else:
        try:
            prompts = Path(options.prompt_text or "").read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidRequest(
                f"--prompt_text {options.prompt_text} cannot be read: {error}"
            ) from error
        prompts = [prompt for prompt in prompts if prompt.strip()]
    if not prompts or not prompts[0]:
        raise InvalidRequest("the prompt is empty: at least one character is needed")
    return prompts


def make_requests(
    options: Options,
    prompts: Sequence[str],
    tokenizer: Tokenizer,
    length: int,
    stop_ids: frozenset[int],
) -> list[Request]:
    """Prompts as ids, each with its own seed; raises InvalidRequest for one that does not fit."""
    if options.max_new_tokens < 1:
        raise InvalidRequest(f"--max_new_tokens {options.max_new_tokens}: at least one is needed")
    if options.batch < 1:
        raise InvalidRequest(f"--batch {options.batch}: at least one is needed")
    seed = min(random_seed(), 2**SEED_BITS - len(prompts)) if options.seed is None else options.seed
    base = SamplingParams(options.temperature, options.top_k, options.top_p, seed).on_the_wire()
    requests = []
    for index, prompt in enumerate(prompts):
        ids = tokenizer.encode(prompt, chat=options.chat)
        if len(ids) >= length:
            raise InvalidRequest(
                f"prompt {index} has {len(ids)} tokens: the sequence length is {length}, prompt "
                "and output together"
            )
        room = min(options.max_new_tokens, length - len(ids))
        requests.append(
            Request(index, prompt, ids, replace(base, seed=seed + index), room, stop_ids)
        )
    if any(request.max_new_tokens < options.max_new_tokens for request in requests):
        print(
            f"note: output is limited by the sequence length of {length}, prompt and output "
            "together",
            file=sys.stderr,
        )
    if not base.greedy:
        print(f"seed {seed}", file=sys.stderr)
    return requests


def run(
    options: Options,
    requests: Sequence[Request],
    make: Complete,
    *,
    workers: int,
    told: Callable[[Sequence[Completion]], str] = lambda finished: "",
) -> int:
    """Complete all requests, `workers` at once, and report in input order; 1 when one of them
    failed. told: what else is to be reported.
    """
    cancelled = threading.Event()
    show = LiveText() if len(requests) == 1 and not options.json else silent
    start, finished = time.perf_counter(), list[Completion]()
    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(_attempt, make, request, show, cancelled) for request in requests]
        try:
            for future in futures:
                finished.append(future.result())
                _print(options, finished[-1], streamed=show is not silent)
        except KeyboardInterrupt:
            cancelled.set()
            pool.shutdown(cancel_futures=True)
            finished = [future.result() for future in futures if not future.cancelled()]
            print("\ninterrupted", file=sys.stderr)
    failed, finished = _part(finished)
    if finished:
        lines = [summary(finished, time.perf_counter() - start), told(finished)]
        print("\n".join(line for line in lines if line), file=sys.stderr)
    if options.profile is not None:
        paths = write_profile(Path(options.profile), finished)
        print("profile: " + ", ".join(str(path) for path in paths), file=sys.stderr)
    return 130 if cancelled.is_set() else int(bool(failed))


def _attempt(
    make: Complete, request: Request, show: Show, cancelled: threading.Event
) -> Completion:
    """The text; where an error ended it, what was verified until then."""
    try:
        return make(request, show, cancelled)
    except Broken as error:
        return error.done
    except OutriderError as error:
        return replace(new_completion(request), finish_reason="error", error=str(error))


def _part(done: Sequence[Completion]) -> tuple[list[Completion], list[Completion]]:
    """Failed texts, and the others."""
    return [one for one in done if one.error], [one for one in done if not one.error]


def _print(options: Options, done: Completion, *, streamed: bool) -> None:
    if options.json:
        print(json.dumps(done.record()), flush=True)
    elif not done.error or done.text:
        if not streamed:
            print(
                f"--- prompt {done.index} (seed {done.seed}), {len(done.token_ids)} tokens",
                file=sys.stderr,
            )
            sys.stdout.write(done.text)
        print(flush=True)
        if done.finish_reason == "unverified":
            print(
                "the target did not come back; the draft alone went on, "
                f"unverified:\n{done.unverified_text}",
                file=sys.stderr,
            )
    if done.error:
        print(f"error: prompt {done.index}: {printable(done.error)}", file=sys.stderr)
