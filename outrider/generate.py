"""Roles that make text: draft (here, verified elsewhere), verify_target and verify_draft (one model alone, in this process)."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from grpc_comm.client import CONNECT_SECONDS, Connection, connect, list_models
from grpc_comm.remote import Patience
from grpc_comm.transport import Address
from inference.backends import Model
from inference.cost import Rates
from inference.drafters.pool import DraftPool
from inference.engine import Engine
from inference.errors import InvalidRequest, OutriderError
from inference.local import LocalVerifier
from inference.policy import BestFirst, Chain, Policy, Static
from inference.sampling import SEED_BITS, SamplingParams, random_seed
from inference.text import Tokenizer
from outrider.artifacts import artifact_length, load_artifact, open_artifact, with_neuron_artifact
from outrider.completion import (
    Completion,
    Request,
    Show,
    new_completion,
    speculate,
    speculate_offline,
    target_only,
)
from outrider.models import PREFILL_NODES, Checkpoint, find_checkpoint, load_model, security_of
from outrider.options import Options
from outrider.purse import Purse, open_purse
from outrider.report import LiveText, account, silent, summary, write_profile
from outrider.wishes import read_prices, read_wish

if TYPE_CHECKING:
    from inference.backends.eager import EagerModel
    from inference.backends.legacy_neuron import LegacyNeuronModel

DEFAULT_TREE = BestFirst(nodes=16, depth=6)
Complete = Callable[[Request, Show, threading.Event], Completion]


def draft(options: Options) -> int:
    """Draft here, verify at --target_host."""
    if options.list_models:
        print(*list_models(_addresses(options), security=security_of(options)), sep="\n")
        return 0
    prompts, checkpoint = read_prompts(options), find_checkpoint(options, "draft")
    with connect_target(options, checkpoint.tokenizer) as target:
        length = session_length(options, checkpoint, target)
        stated = read_prices(options, target.description.usd_per_hour)
        purse, rates = open_purse(options, stated), stated.rates if stated is not None else None
        told = partial(account, purse=purse, wish=read_wish(options, rates))
        requests = make_requests(
            options, prompts, checkpoint.tokenizer, length, target.description.stop_ids
        )
        rows = min(options.batch, len(requests))
        with _drafting(options, checkpoint, target, rows, length, rates) as make:

            def complete(request: Request, show: Show, cancelled: threading.Event) -> Completion:
                done = _paid(request, purse, make, show, cancelled)
                done.device = target.description.device
                if options.baseline and done.token_ids and not cancelled.is_set():
                    same = (
                        request
                        if done.whole
                        else replace(request, max_new_tokens=len(done.token_ids))
                    )
                    done.baseline = target_only(
                        same, target.verifier(), checkpoint.tokenizer, silent, cancelled
                    )
                    done.baseline.device = target.description.device
                    done.speedup = done.baseline.seconds / done.seconds
                return done

            return run(options, requests, complete, workers=rows, told=told)


def _paid(
    request: Request, purse: Purse, make: Complete, show: Show, cancelled: threading.Event
) -> Completion:
    """The text, paid from this purse; none begins once that is empty."""
    if purse.empty:
        return replace(new_completion(request), finish_reason="spent", usd=0.0)
    with purse.text() as tab:
        return make(replace(request, tab=tab), show, cancelled)


@contextmanager
def _drafting(
    options: Options,
    checkpoint: Checkpoint,
    target: Connection,
    rows: int,
    length: int,
    rates: Rates | None,
) -> Iterator[Complete]:
    """How a text is drafted: with trees as the command line fixes them, else adapting."""
    if options.fixed_tree or options.offline == "draft":
        policy = read_policy(options)
        pool = DraftPool(load_draft(options, checkpoint, policy, rows, length), policy)
        make = speculate_offline if options.offline == "draft" else speculate

        def complete(request: Request, show: Show, cancelled: threading.Event) -> Completion:
            with pool.drafter() as drafter:
                return make(
                    request, drafter, target.verifier(), checkpoint.tokenizer, show, cancelled
                )

        yield complete
    else:
        from outrider.adaptive import adapting

        with adapting(options, checkpoint, target, rows, length, rates) as complete_adapting:
            yield complete_adapting


def verify(options: Options) -> int:
    """One model alone in this process: what the other roles' text is compared with."""
    prompts = read_prompts(options)
    checkpoint, length, load = _alone(options)
    requests = make_requests(
        options, prompts, checkpoint.tokenizer, length, checkpoint.config.stop_ids
    )
    engine = Engine(
        load(), sequence_length=length, max_tree_nodes=1, vocabulary=checkpoint.tokenizer.vocabulary
    )

    def complete(request: Request, show: Show, cancelled: threading.Event) -> Completion:
        return target_only(request, LocalVerifier(engine), checkpoint.tokenizer, show, cancelled)

    return run(options, requests, complete, workers=1)


def _alone(options: Options) -> tuple[Checkpoint, int, Callable[[], Model]]:
    """The model of role verify_*: what it is, its sequence length, and how to load it once the prompts are known to fit."""
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
    """The target at --target_host and --port; token ids mean the same on both sides, or nothing is sent.

    A model that is named may have to be loaded there first: that is waited for as long as --patience says.
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


def load_draft(
    options: Options, checkpoint: Checkpoint, policy: Policy, rows: int, length: int
) -> EagerModel | LegacyNeuronModel:
    """The draft model, with room for the trees that the policy grows."""
    ranked = policy.most_ranked
    return load_model(
        options,
        checkpoint,
        rows=rows,
        sequence_length=length,
        spare=ranked,
        max_nodes=max(PREFILL_NODES, ranked),
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


def read_policy(options: Options) -> Policy:
    """The tree that --gamma, --tree_rates or --tree_nodes and --tree_depth ask for."""
    nodes, depth = (
        options.tree_nodes or DEFAULT_TREE.nodes,
        options.tree_depth or DEFAULT_TREE.depth,
    )
    if options.gamma is not None:
        if options.tree_nodes or options.tree_depth or options.tree_rates:
            raise InvalidRequest(
                "--gamma drafts a chain: it does not go with --tree_nodes, --tree_depth or --tree_rates"
            )
        return Chain(options.gamma)
    if options.tree_rates is not None:
        try:
            return Static(
                tuple(float(rate) for rate in options.tree_rates.split(",")), nodes, depth
            )
        except ValueError as error:
            raise InvalidRequest(f"--tree_rates {options.tree_rates}: {error}") from error
    return BestFirst(nodes, depth)


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
                f"prompt {index} has {len(ids)} tokens: the sequence length is {length}, prompt and output together"
            )
        room = min(options.max_new_tokens, length - len(ids))
        requests.append(
            Request(index, prompt, ids, replace(base, seed=seed + index), room, stop_ids)
        )
    if any(request.max_new_tokens < options.max_new_tokens for request in requests):
        print(
            f"note: output is limited by the sequence length of {length}, prompt and output together",
            file=sys.stderr,
        )
    if not base.greedy:
        print(f"seed {seed}", file=sys.stderr)
    return requests


@dataclass
class _Failure:
    request: Request
    error: OutriderError

    def record(self) -> dict[str, object]:
        return {
            "index": self.request.index,
            "prompt": self.request.prompt,
            "error": str(self.error),
        }


def run(
    options: Options,
    requests: Sequence[Request],
    complete: Complete,
    *,
    workers: int,
    told: Callable[[Sequence[Completion]], str] = lambda finished: "",
) -> int:
    """Complete all requests, `workers` at once, and report in input order; 1 when one of them failed. told: what else is to be reported."""
    cancelled = threading.Event()
    show = LiveText() if len(requests) == 1 and not options.json else silent
    start, finished, failures = time.perf_counter(), [], 0
    with ThreadPoolExecutor(workers) as pool:
        futures = [
            pool.submit(_attempt, complete, request, show, cancelled) for request in requests
        ]
        try:
            for future in futures:
                outcome = future.result()
                failures += isinstance(outcome, _Failure)
                _print(options, outcome, streamed=show is not silent)
                if isinstance(outcome, Completion):
                    finished.append(outcome)
        except KeyboardInterrupt:
            cancelled.set()
            pool.shutdown(cancel_futures=True)
            finished = [
                done
                for done in (future.result() for future in futures if not future.cancelled())
                if isinstance(done, Completion)
            ]
            print("\ninterrupted", file=sys.stderr)
    if finished:
        lines = [summary(finished, time.perf_counter() - start), told(finished)]
        print("\n".join(line for line in lines if line), file=sys.stderr)
    if options.profile is not None:
        print(
            "profile: "
            + ", ".join(str(path) for path in write_profile(Path(options.profile), finished)),
            file=sys.stderr,
        )
    return 130 if cancelled.is_set() else int(failures > 0)


def _attempt(
    complete: Complete, request: Request, show: Show, cancelled: threading.Event
) -> Completion | _Failure:
    try:
        return complete(request, show, cancelled)
    except OutriderError as error:
        return _Failure(request, error)


def _print(options: Options, outcome: Completion | _Failure, *, streamed: bool) -> None:
    if options.json:
        print(json.dumps(outcome.record()), flush=True)
    elif isinstance(outcome, Completion):
        if not streamed:
            print(
                f"--- prompt {outcome.index} (seed {outcome.seed}), {len(outcome.token_ids)} tokens",
                file=sys.stderr,
            )
            sys.stdout.write(outcome.text)
        print(flush=True)
        if outcome.finish_reason == "unverified":
            print(
                f"the target did not come back; the draft alone went on, unverified:\n{outcome.unverified_text}",
                file=sys.stderr,
            )
    if isinstance(outcome, _Failure):
        print(f"error: prompt {outcome.request.index}: {outcome.error}", file=sys.stderr)
