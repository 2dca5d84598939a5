"""Architectures side by side: the same prompts, seeds and limits, interleaved, each against its own target-only run.

An architecture is an Arm; a new one joins by adding a row to `arms`. Nothing is claimed that was not measured in this call.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any

from inference.errors import InvalidRequest, OutriderError
from outrider.completion import Completion, Request
from outrider.options import Options

PROMPTS = (
    "def read_lines(path, encoding='utf-8'):",
    "class Queue:",
    "import os\nimport sys\n\ndef main(argv):",
    "def parse_args(args):",
    "    def __repr__(self):",
    "for name in sorted(os.listdir(path)):",
)
BASELINE = "target-only"


@dataclass(frozen=True)
class Arm:
    """One architecture: its name and how it completes a request."""

    name: str
    complete: Callable[[Request], Completion]


@dataclass(frozen=True)
class Row:
    """What one architecture did, over all prompts and runs. Times in seconds; ratios are against target-only, pair by pair."""

    architecture: str
    texts: int
    tokens: int
    tokens_per_second: float  # median over texts
    ratio: float  # median over pairs; above 1 is faster than target-only
    ratio_low: float  # quartiles
    ratio_high: float
    time_to_first_token: float  # median
    rounds: int
    acceptance_length: float
    acceptance_rate: float
    bytes_up_per_round: float
    bytes_down_per_round: float
    draft_seconds: float
    target_seconds: float
    identical_texts: int
    device: str  # of the target, as it describes itself: an emulated one says so


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison; 0 when it was made."""
    options = _parse(arguments)
    try:
        rows, completions = compare(options)
    except OutriderError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    _print_table(rows)
    if options.out:
        print(f"results: {write_results(Path(options.out), options, rows, completions)}", file=sys.stderr)
    return 0


def compare(options: argparse.Namespace) -> tuple[list[Row], dict[str, list[Completion]]]:
    """Every arm on every prompt, `num_runs` times, in an order that turns from run to run; one warm-up is left out."""
    with _arms(options) as (arms, requests):
        for arm in arms:
            arm.complete(replace(requests[0], max_new_tokens=min(8, requests[0].max_new_tokens)))
        completions: dict[str, list[Completion]] = {arm.name: [] for arm in arms}
        for run in range(options.num_runs):
            for request in requests:
                turn = (run + request.index) % len(arms)
                for arm in [*arms[turn:], *arms[:turn]]:
                    completions[arm.name].append(arm.complete(request))
            print(f"run {run + 1} of {options.num_runs} done", file=sys.stderr)
    return [summarise(name, done, completions[BASELINE]) for name, done in completions.items()], completions


def summarise(name: str, done: Sequence[Completion], baseline: Sequence[Completion]) -> Row:
    """One architecture's row; `baseline` holds the target-only runs of the same requests in the same order."""
    rounds, drafted = (sum(getattr(run, field) for run in done) for field in ("rounds", "num_draft_tokens"))
    accepted = sum(run.num_accepted_tokens for run in done)
    ratios = [run.tokens_per_second / alone.tokens_per_second for run, alone in zip(done, baseline, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    return Row(
        architecture=name,
        texts=len(done),
        tokens=sum(len(run.token_ids) for run in done),
        tokens_per_second=statistics.median(run.tokens_per_second for run in done),
        ratio=middle,
        ratio_low=low,
        ratio_high=high,
        time_to_first_token=statistics.median(run.time_to_first_token for run in done),
        rounds=rounds,
        acceptance_length=(accepted + rounds) / rounds if rounds else 0.0,
        acceptance_rate=accepted / drafted if drafted else 0.0,
        bytes_up_per_round=sum(run.bytes_up for run in done) / rounds if rounds else 0.0,
        bytes_down_per_round=sum(run.bytes_down for run in done) / rounds if rounds else 0.0,
        draft_seconds=sum(run.draft_seconds for run in done),
        target_seconds=sum(run.target_seconds for run in done),
        identical_texts=sum(run.token_ids == alone.token_ids for run, alone in zip(done, baseline, strict=True)),
        device=done[0].device,
    )


@contextmanager
def _arms(options: argparse.Namespace) -> Iterator[tuple[list[Arm], list[Request]]]:
    """The architectures, ready to run, and the requests; a target is started here unless --target_host names one."""
    from outrider.spawn import target_process

    with ExitStack() as stack:
        address = options.target_host or stack.enter_context(target_process(_target_flags(options)))
        common = Options(
            draft_model=options.draft_model,
            target_host=address,
            prompt="",
            batch=1,
            chat=options.chat,
            max_new_tokens=options.max_new_tokens,
            temperature=options.temperature,
            top_p=options.top_p,
            seed=options.seed,
            tls_ca=options.tls_ca,
            token_file=options.token_file,
        )
        yield _against(stack, common, options)


def _against(stack: ExitStack, common: Options, options: argparse.Namespace) -> tuple[list[Arm], list[Request]]:
    """Arms over one connection and one draft model."""
    from inference.drafters.pool import DraftPool
    from inference.policy import Chain, Policy
    from outrider.completion import speculate, target_only
    from outrider.generate import DEFAULT_TREE, connect_target, load_draft, make_requests, session_length
    from outrider.models import find_checkpoint
    from outrider.report import silent

    checkpoint = find_checkpoint(common, "draft")
    target = stack.enter_context(connect_target(common, checkpoint.tokenizer))
    length = session_length(common, checkpoint, target)
    requests = make_requests(common, _prompts(options), checkpoint.tokenizer, length, target.description.stop_ids)
    policies: dict[str, Policy] = {
        f"distributed chain of {options.gamma}": Chain(options.gamma),
        f"distributed tree of {options.tree_nodes}": replace(DEFAULT_TREE, nodes=options.tree_nodes, depth=options.tree_depth),
    }
    device = target.description.device
    model = load_draft(common, checkpoint, max(policies.values(), key=lambda policy: policy.most_ranked), 1, length)

    def alone(request: Request) -> Completion:
        return replace(target_only(request, target.verifier(), checkpoint.tokenizer, silent, Event()), device=device)

    def distributed(policy: Policy) -> Callable[[Request], Completion]:
        pool = DraftPool(model, policy)

        def complete(request: Request) -> Completion:
            with pool.drafter() as drafter:
                return replace(speculate(request, drafter, target.verifier(), checkpoint.tokenizer, silent, Event()), device=device)

        return complete

    return [Arm(BASELINE, alone), *(Arm(name, distributed(policy)) for name, policy in policies.items())], requests


def _target_flags(options: argparse.Namespace) -> list[str]:
    return ["--target_model", options.target_model] if options.target_model else []


def _prompts(options: argparse.Namespace) -> list[str]:
    if options.prompt_file is None:
        return list(PROMPTS)
    try:
        prompts = [line for line in Path(options.prompt_file).read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"--prompt-file {options.prompt_file} cannot be read: {error}") from error
    if not prompts:
        raise InvalidRequest(f"--prompt-file {options.prompt_file} holds no prompt")
    return prompts


def write_results(directory: Path, options: argparse.Namespace, rows: Sequence[Row], completions: dict[str, list[Completion]]) -> Path:
    """results.json: environment, options, a row an architecture, and every text's record."""
    directory.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {
        "environment": {"python": platform.python_version(), "machine": platform.machine(), "system": platform.platform()},
        "options": vars(options),
        "architectures": [asdict(row) for row in rows],
        "texts": {name: [run.record() for run in done] for name, done in completions.items()},
    }
    path = directory / "results.json"
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return path


def _print_table(rows: Sequence[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    heads = (
        "architecture",
        "tokens/s",
        "ratio (quartiles)",
        "first token ms",
        "rounds",
        "acceptance length",
        "rate",
        "bytes up/down a round",
        "identical",
    )
    table = Table(*heads, caption="target on " + rows[0].device)
    for row in rows:
        table.add_row(
            row.architecture,
            f"{row.tokens_per_second:.1f}",
            f"{row.ratio:.2f} ({row.ratio_low:.2f} to {row.ratio_high:.2f})",
            f"{row.time_to_first_token * 1e3:.1f}",
            str(row.rounds),
            f"{row.acceptance_length:.2f}",
            f"{row.acceptance_rate:.2f}",
            f"{row.bytes_up_per_round:.0f} / {row.bytes_down_per_round:.0f}",
            f"{row.identical_texts} of {row.texts}",
        )
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="compare_architectures.py",
        description="Target-only (streamed by the target) against distributed drafting: same prompts, seeds and limits, interleaved.",
        epilog="Without --target_host a target is started on this machine and stopped again; draft and target then share its cores, "
        "so rounds, acceptance and bytes carry over to other machines and tokens/s do not.",
        allow_abbrev=False,
    )
    flags: list[tuple[str, dict[str, Any]]] = [
        ("prompt_file", {"metavar": "FILE", "help": "one prompt a line (default: six pieces of Python)"}),
        ("num_runs", {"type": int, "default": 3, "help": "default: %(default)s"}),
        ("target_host", {"metavar": "HOST:PORT", "help": "a running target (default: start one)"}),
        ("target_model", {"metavar": "DIR_OR_NAME", "help": "for the target that is started (default: the embedded one)"}),
        ("draft_model", {"metavar": "DIR_OR_NAME", "help": "default: the embedded one"}),
        ("max_new_tokens", {"type": int, "default": 128, "help": "default: %(default)s"}),
        ("temperature", {"type": float, "default": 0.0, "help": "default: %(default)s"}),
        ("top_p", {"type": float, "default": 1.0, "help": "default: %(default)s"}),
        ("seed", {"type": int, "default": 0, "help": "prompt i uses seed + i (default: %(default)s)"}),
        ("gamma", {"type": int, "default": 4, "help": "length of the chain (default: %(default)s)"}),
        ("tree_nodes", {"type": int, "default": 16, "help": "default: %(default)s"}),
        ("tree_depth", {"type": int, "default": 6, "help": "default: %(default)s"}),
        ("chat", {"action": "store_true", "help": "apply the model's chat template"}),
        ("tls_ca", {"metavar": "FILE", "help": "authority of the target's certificate"}),
        ("token_file", {"metavar": "FILE", "help": "bearer token for the target"}),
        ("out", {"metavar": "DIR", "help": "write results.json there"}),
    ]
    for name, settings in flags:
        parser.add_argument(*dict.fromkeys([f"--{name}", f"--{name.replace('_', '-')}"]), dest=name, **settings)
    options = parser.parse_args(arguments)
    if options.num_runs < 1:
        parser.error(f"--num_runs {options.num_runs}: at least one is needed")
    return options
