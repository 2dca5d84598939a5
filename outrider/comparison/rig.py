"""Everything that a comparison needs running: a target (started here unless one is named), emulated links to it, the draft, the requests."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from inference.backends import Model
from inference.engine import Engine
from inference.errors import InvalidRequest
from inference.policy import Policy
from outrider.comparison.arms import ARCHITECTURES, FUSED, Bench, arms_of, setting_flags
from outrider.comparison.options import CompareOptions
from outrider.comparison.sweep import Trial, sweep
from outrider.completion import Request
from outrider.generate import connect_target, load_draft, make_requests, session_length
from outrider.link import Shape, shaped_link
from outrider.models import PREFILL_NODES, Checkpoint, find_checkpoint, load_model
from outrider.options import Options
from outrider.spawn import StartedTarget, started

PROMPTS = (
    "def read_lines(path, encoding='utf-8'):",
    "class Queue:",
    "import os\nimport sys\n\ndef main(argv):",
    "for name in sorted(os.listdir(path)):",
)


@dataclass(frozen=True)
class Rig:
    """What is running. started: None for a target that the user named.  beside: the trials of settings for the draft at the target."""

    options: CompareOptions
    common: Options
    checkpoint: Checkpoint  # of the draft
    draft: Model
    requests: list[Request]
    started: StartedTarget | None
    beside: list[Trial]
    local: Engine | None

    @property
    def said(self) -> deque[str]:
        """The latest lines of the target that was started."""
        return self.started.said if self.started else deque()

    @contextmanager
    def bench(self, round_trip_ms: float) -> Iterator[Bench]:
        """Arms over a link of this quality."""
        shape = Shape(delay_ms=round_trip_ms / 2, jitter_ms=self.options.jitter, mbit=self.options.bandwidth)
        with ExitStack() as stack:
            address = self.common.target_host
            if shape != Shape():
                address = stack.enter_context(shaped_link(address, shape)).address
            target = stack.enter_context(connect_target(replace(self.common, target_host=address), self.checkpoint.tokenizer))
            chosen = next((trial.arm.policy for trial in self.beside if trial.chosen), None)
            beside = chosen or (self.options.fused[0] if self.started else None)
            yield Bench(target, self.checkpoint.tokenizer, self.draft, self.options.chains, self.options.trees, beside, self.local)


@contextmanager
def rig(options: CompareOptions, profile: str | None) -> Iterator[Rig]:
    """Start what is needed, and stop it. profile: the device whose times the started target takes."""
    common = _draft_options(options)
    checkpoint, prompts = find_checkpoint(common, "draft"), read_prompts(options)
    with ExitStack() as stack:
        target: StartedTarget | None = None
        beside: list[Trial] = []
        if options.target_host is None:
            target, beside = _start(stack, options, profile, checkpoint, prompts)
            common = replace(common, target_host=target.address)
        with connect_target(common, checkpoint.tokenizer) as connection:
            length, stop_ids = session_length(common, checkpoint, connection), connection.description.stop_ids
        requests = make_requests(common, prompts, checkpoint.tokenizer, length, stop_ids)
        widest = max((*options.chains, *options.trees), key=lambda policy: policy.most_ranked)
        draft = load_draft(common, checkpoint, widest, 1, length)
        local = _local(options, length) if options.with_local else None
        yield Rig(options, common, checkpoint, draft, requests, target, beside, local)


def read_prompts(options: CompareOptions) -> list[str]:
    """The lines of --prompt_file, or PROMPTS."""
    if options.prompt_file is None:
        return list(PROMPTS)
    try:
        prompts = [line for line in Path(options.prompt_file).read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"--prompt-file {options.prompt_file} cannot be read: {error}") from error
    if not prompts:
        raise InvalidRequest(f"--prompt-file {options.prompt_file} holds no prompt")
    return prompts


def _draft_options(options: CompareOptions) -> Options:
    """Those of the draft in this process and of its requests."""
    return Options(
        draft_model=options.draft_model,
        device=options.draft_device,
        dtype=options.dtype,
        threads=options.threads,
        target_host=options.target_host or "",
        batch=1,
        chat=options.chat,
        max_new_tokens=options.max_new_tokens,
        temperature=options.temperature,
        top_p=options.top_p,
        seed=options.seed,
        tls_ca=options.tls_ca,
        token_file=options.token_file,
    )


def _start(
    stack: ExitStack, options: CompareOptions, profile: str | None, checkpoint: Checkpoint, prompts: Sequence[str]
) -> tuple[StartedTarget, list[Trial]]:
    """A target; where fused is compared, with a draft beside it in the best setting, for which each is tried in a target of its own."""
    flags = _target_flags(options, profile)
    if FUSED not in options.chosen:
        return stack.enter_context(started("target", flags)), []
    best, trials = options.fused[0], []
    if len(options.fused) > 1:
        trials = [_try_beside(options, flags, policy, checkpoint, prompts) for policy in options.fused]
        winner = min(trials, key=lambda trial: trial.seconds_per_token)
        winner.chosen, best = True, winner.arm.policy or best
    return stack.enter_context(started("fused_target", [*flags, *setting_flags(best)])), trials


def _try_beside(options: CompareOptions, flags: Sequence[str], policy: Policy, checkpoint: Checkpoint, prompts: Sequence[str]) -> Trial:
    """A few texts of a target that is started with this setting."""
    fused = next(architecture for architecture in ARCHITECTURES if architecture.name == FUSED)
    common = _draft_options(options)
    with ExitStack() as stack:
        address = stack.enter_context(started("fused_target", [*flags, *setting_flags(policy)])).address
        connection = stack.enter_context(connect_target(replace(common, target_host=address), checkpoint.tokenizer))
        description = connection.description
        requests = make_requests(common, prompts, checkpoint.tokenizer, description.sequence_length, description.stop_ids)
        bench = Bench(connection, checkpoint.tokenizer, None, (), (), policy, None)
        trial = sweep([arms_of(fused, bench)], requests, 0.0)[0]
    trial.chosen = False
    print(f"fused with {trial.arm.setting}: {trial.seconds_per_token * 1e3:.1f} ms a token", file=sys.stderr)
    return trial


def _target_flags(options: CompareOptions, profile: str | None) -> list[str]:
    flags = ["--device", options.target_device, "--batch", "1"]
    named = {
        "target_model": options.target_model,
        "draft_model": options.draft_model,
        "artifact": options.artifact,
        "dtype": options.dtype,
        "threads": options.threads,
        "emulate": profile,
    }
    for name, value in named.items():
        flags += [] if value is None else [f"--{name}", str(value)]
    return flags


def _local(options: CompareOptions, length: int) -> Engine:
    """The target's model in this process, for itself."""
    own = Options(target_model=options.target_model, device=options.draft_device, dtype=options.dtype, threads=options.threads)
    checkpoint = find_checkpoint(own, "target")
    model = load_model(own, checkpoint, rows=1, sequence_length=length, spare=1, max_nodes=PREFILL_NODES)
    return Engine(model, sequence_length=length, max_tree_nodes=1, vocabulary=checkpoint.tokenizer.vocabulary)
