"""Outrider beside other engines, on one pair of models and one machine.

    python -m benchmarks.rivals --prompts DIR --each 20 --out DIR
        [--safetensors TARGET_DIR DRAFT_DIR]
        [--gguf TARGET.gguf DRAFT.gguf --llama_server FILE]

Of every prompt all arms make a greedy text, one after the other in an order that changes, from the
same ids, on the same cores. What came of a prompt is written at once to rivals.jsonl; the same
command goes on behind it. docs/rivals.md tells of the arms and how threads are shared.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import command, write_json
from benchmarks.pair_metrics import machine
from benchmarks.prompts import Prompt, read_prompts
from benchmarks.rivals import library, llama_server, ours
from benchmarks.rivals.arm import Arm
from benchmarks.rivals.library import library_arms
from benchmarks.rivals.llama_server import llama_servers, llama_version
from benchmarks.rivals.ours import Models, arms_here, arms_over_grpc
from benchmarks.rivals.play import Archive, Question, play
from benchmarks.rivals.report import Group, markdown, record
from inference.command import run_command
from inference.errors import InvalidRequest, Mismatch
from inference.model.checkpoint import DTYPES
from inference.text import Tokenizer
from outrider.models import find_tokenizer

TOKENS = 64
GRPC = f"{ours.HYBRID} gRPC"
"""The arm whose target is in a process of its own."""

SAFETENSORS = (*library.HELPS, ours.PLAIN, f"{ours.PLAIN} copies", ours.HYBRID, GRPC)
OURS_GGUF = tuple(f"{ours.PLAIN}{ours.GGUF} {what}".strip() for what in ("", "copies", "hybrid"))
GGUF = (*llama_server.ARMS, *OURS_GGUF)
"""Names of the arms on each kind of files."""


def plain_of(arm: str) -> str:
    """The name of the arm that drafts nothing with the same engine."""
    plains = (f"{ours.PLAIN}{ours.GGUF}", ours.PLAIN, library.PLAIN, llama_server.PLAIN)
    return next(plain for plain in plains if arm.startswith(plain))


def chosen(given: argparse.Namespace) -> list[Group]:
    """The arms that are played, by their files. Raises InvalidRequest for an unknown name, and for
    an arm without its plain one.
    """
    there = [
        Group("Safetensors", ours.HYBRID, {arm: plain_of(arm) for arm in SAFETENSORS}),
        Group("GGUF files", OURS_GGUF[-1], {arm: plain_of(arm) for arm in GGUF}),
    ]
    groups = [
        group for group, files in zip(there, (given.safetensors, given.gguf), strict=True) if files
    ]
    known = [arm for group in groups for arm in group.plains]
    wanted = given.arms.split(",") if given.arms else known
    if not groups:
        raise InvalidRequest("no models: --safetensors or --gguf names them")
    if unknown := [name for name in wanted if name not in known]:
        raise InvalidRequest(f"--arms: no arm {unknown[0]!r}; there are {', '.join(known)}")
    if alone := [name for name in wanted if plain_of(name) not in wanted]:
        raise InvalidRequest(f"--arms: {alone[0]} is measured against {plain_of(alone[0])}: add it")
    kept = [
        Group(one.title, one.hybrid, {arm: one.plains[arm] for arm in one.plains if arm in wanted})
        for one in groups
    ]
    return [group for group in kept if group.plains]


def pin(threads: int) -> list[int]:
    """Keep this process, and what it starts, on so many cores. Raises InvalidRequest where it may
    not use as many.
    """
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < threads:
        raise InvalidRequest(f"--threads {threads}: this process may use {len(allowed)} cores")
    cores = allowed[:threads]
    os.sched_setaffinity(0, cores)
    return cores


def ask(prompts: Sequence[Prompt], models: Sequence[str]) -> list[Question]:
    """The prompts as ids of the first model's tokenizer. Raises Mismatch where another model's
    makes other ids of one.
    """
    first, *others = (find_tokenizer(model, "target") for model in models)

    def ids(tokenizer: Tokenizer, prompt: Prompt) -> tuple[int, ...]:
        return tuple(tokenizer.encode(prompt.text, chat=True))

    questions = [Question(one.kind, one.name, ids(first, one)) for one in prompts]
    for model, tokenizer in zip(models[1:], others, strict=True):
        for prompt, question in zip(prompts, questions, strict=True):
            if ids(tokenizer, prompt) != question.ids:
                raise Mismatch(f"{model} has other ids than {models[0]} for {prompt.name}")
    return questions


@contextmanager
def opened(
    given: argparse.Namespace,
    groups: Sequence[Group],
    prompts: Sequence[Prompt],
    ids: Sequence[int],
) -> Iterator[list[Arm]]:
    """Load what the arms need, and close it at the end. ids: of the first prompt"""
    wanted = [arm for group in groups for arm in group.plains]
    needed = {plain_of(arm) for arm in wanted if arm != GRPC}
    arms, threads = list[Arm](), given.threads
    with ExitStack() as stack:
        if library.PLAIN in needed:
            target, draft = map(Path, given.safetensors)
            arms += stack.enter_context(library_arms(target, draft, DTYPES[given.dtype], threads))
        if ours.PLAIN in needed:
            models = Models(*given.safetensors, given.dtype)
            arms += stack.enter_context(arms_here(models, threads))
            if GRPC in wanted:
                arms += stack.enter_context(arms_over_grpc(models))
        if llama_server.PLAIN in needed:
            servers = stack.enter_context(
                llama_servers(given.llama_server, *given.gguf, threads, wanted)
            )
            servers[llama_server.PLAIN].check_prompt(prompts[0].text, ids)
            arms += [Arm(name, 1, server.play) for name, server in servers.items()]
        if OURS_GGUF[0] in needed:
            arms += stack.enter_context(arms_here(Models(*given.gguf, None), threads))
        yield [arm for arm in arms if arm.name in wanted]


def settings(
    given: argparse.Namespace, groups: Sequence[Group], cores: list[int]
) -> dict[str, Any]:
    """What a comparison must keep from its first prompt to its last."""
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers")}
    if given.gguf:
        versions["llama-cpp-python"] = importlib.metadata.version("llama-cpp-python")
    if given.llama_server:
        versions["llama-server"] = llama_version(given.llama_server)
    return {
        "safetensors": given.safetensors,
        "gguf": given.gguf,
        "dtype": given.dtype,
        "tokens": given.tokens,
        "threads": given.threads,
        "cores": cores,
        "cpu": machine()["cpu"],
        "python": platform.python_version(),
        "versions": versions,
        "arms": {group.title: list(group.plains) for group in groups},
    }


def _parser() -> argparse.ArgumentParser:
    parser = command(__doc__)
    pair = {"nargs": 2, "metavar": ("TARGET", "DRAFT")}
    parser.add_argument("--safetensors", **pair, help="directories of two checkpoints")
    parser.add_argument("--gguf", **pair, help="two GGUF files")
    parser.add_argument("--llama_server", type=Path, metavar="FILE", help="llama.cpp's server")
    parser.add_argument(
        "--prompts", type=Path, required=True, metavar="DIR", help="see benchmarks/prompts.py"
    )
    parser.add_argument("--each", type=int, default=1, help="prompts of each kind")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of a text, at most")
    parser.add_argument("--threads", type=int, default=2, help="cores, and threads of every arm")
    parser.add_argument(
        "--dtype", choices=sorted(DTYPES), default="bfloat16", help="of checkpoints"
    )
    parser.add_argument("--arms", metavar="NAME,...", help="default: all that there are files for")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="what is written")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    groups = chosen(given)
    if (
        given.gguf
        and not given.llama_server
        and any(arm in llama_server.ARMS for group in groups for arm in group.plains)
    ):
        raise InvalidRequest("--llama_server names the binary for the arms of llama.cpp")
    fixed = settings(given, groups, pin(given.threads))
    archive = Archive(given.out / "rivals.jsonl", fixed)
    prompts = read_prompts(given.prompts, given.each)
    models = [*(given.safetensors or ()), *(given.gguf or ())]
    questions = ask(prompts, models)
    with opened(given, groups, prompts, questions[0].ids) as arms:
        for count, made in enumerate(play(arms, questions, given.tokens, archive), start=1):
            print(f"{count}: {made.kind} {made.name}, load {made.loads[1]:.1f}", file=sys.stderr)
    shown = markdown(archive.answers, groups)
    (given.out / "rivals.md").write_text(shown, encoding="utf-8")
    write_json(given.out / "rivals.json", record(fixed, archive.answers, groups))
    print(shown)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main, debug=False))
