"""Everything that a comparison needs running: a target (started here unless one is named),
emulated links to it, the draft, the requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from inference.backends import Model
from inference.drafters.model_proposer import ROOM
from inference.engine.engine import Engine
from inference.errors import InvalidRequest
from outrider.comparison.arms import FUSED, Bench
from outrider.comparison.options import CompareOptions
from outrider.completion import Request
from outrider.fused import with_draft
from outrider.generate import connect_target, make_requests, session_length
from outrider.link import Shape, shaped_link
from outrider.models import PREFILL_NODES, Checkpoint, find_checkpoint, load_model
from outrider.options import Options
from outrider.profiles import user_profiles
from outrider.serve import load_served
from outrider.spawn import StartedTarget, started

PROMPTS = (
    "def read_lines(path, encoding='utf-8'):",
    "class Queue:",
    "import os\nimport sys\n\ndef main(argv):",
    "for name in sorted(os.listdir(path)):",
)


@dataclass(frozen=True)
class Rig:
    """What is running. started: None for a target that the user named."""

    options: CompareOptions
    common: Options
    checkpoint: Checkpoint  # of the draft
    draft: Model
    draft_times: dict[int, float]
    requests: list[Request]
    started: StartedTarget | None
    local: Engine | None

    @property
    def said(self) -> deque[str]:
        """The latest lines of the target that was started."""
        return self.started.said if self.started else deque()

    @contextmanager
    def bench(self, round_trip_ms: float) -> Iterator[Bench]:
        """Arms over a link of this quality."""
        shape = Shape(
            delay_ms=round_trip_ms / 2, jitter_ms=self.options.jitter, mbit=self.options.bandwidth
        )
        with ExitStack() as stack:
            address = self.common.target_host
            if shape != Shape():
                address = stack.enter_context(shaped_link(address, shape)).address
            target = stack.enter_context(
                connect_target(replace(self.common, target_host=address), self.checkpoint.tokenizer)
            )
            chains, trees = self.options.chains, self.options.trees
            yield Bench(
                target,
                self.checkpoint.tokenizer,
                self.draft,
                self.draft_times,
                chains,
                trees,
                self.local,
            )


@contextmanager
def rig(options: CompareOptions, profile: str | None) -> Iterator[Rig]:
    """Start what is needed, and stop it. profile: the device whose times the started target
    takes.
    """
    common = _draft_options(options)
    checkpoint, prompts = find_checkpoint(common, "draft"), read_prompts(options)
    with ExitStack() as stack:
        target: StartedTarget | None = None
        if options.target_host is None:
            target = stack.enter_context(_start(options, profile))
            common = replace(common, target_host=target.address)
        with connect_target(common, checkpoint.tokenizer) as connection:
            length, stop_ids = (
                session_length(common, checkpoint, connection),
                connection.description.stop_ids,
            )
        requests = make_requests(common, prompts, checkpoint.tokenizer, length, stop_ids)
        room = max(ROOM, *(one.most_ranked for one in (*options.chains, *options.trees)))
        draft = load_model(
            common,
            checkpoint,
            rows=1,
            sequence_length=length,
            spare=room,
            max_nodes=max(PREFILL_NODES, room),
        )
        times = user_profiles().draft(checkpoint, draft, length)
        local = _local(options, length) if options.with_local else None
        yield Rig(options, common, checkpoint, draft, times, requests, target, local)


def read_prompts(options: CompareOptions) -> list[str]:
    """The lines of --prompt_file, or PROMPTS."""
    if options.prompt_file is None:
        return list(PROMPTS)
    try:
        prompts = [
            line
            for line in Path(options.prompt_file).read_text(encoding="utf-8").splitlines()
            if line.strip()
        ]
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(
            f"--prompt-file {options.prompt_file} cannot be read: {error}"
        ) from error
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


def _start(options: CompareOptions, profile: str | None) -> AbstractContextManager[StartedTarget]:
    """A target; where fused is compared, with a draft beside it."""
    flags = _target_flags(options, profile)
    if FUSED not in options.chosen:
        return started("target", flags)
    return started("fused_target", flags)


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
    """The target's model in this process, with a draft beside it."""
    own = Options(
        role="fused_target",
        target_model=options.target_model,
        draft_model=options.draft_model,
        device=options.draft_device,
        dtype=options.dtype,
        threads=options.threads,
        sequence_length=length,
        batch=1,
    )
    return load_served(own, with_draft).engine
