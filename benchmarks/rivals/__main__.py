"""Outrider beside other engines, on one pair of models and one machine.

    python -m benchmarks.rivals --out DIR [--samples 20 | --file FILE] [--rtt 20]
        [--safetensors TARGET_DIR,DRAFT_DIR [--peers openvino]]
        [--gguf TARGET.gguf,DRAFT.gguf --llama_server FILE]

Of every prompt all arms make a greedy text, one after the other in an order that changes, from the
same ids, on the same cores. What came of a prompt is written at once to rivals.jsonl; the same
command resumes. A peer's environment is created if it is missing. docs/measured.md has results.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

from benchmarks.harness import FileName, Flags, Folder, PairNames, run
from benchmarks.rivals import library, llama_server, openvino, ours
from benchmarks.rivals.arm import Arm
from benchmarks.rivals.child import environment, peer, requirements
from benchmarks.rivals.library import library_arms
from benchmarks.rivals.llama_server import llama_servers, llama_version
from benchmarks.rivals.ours import Models, arms_here, arms_over_grpc
from benchmarks.rivals.play import Archive, Question, play
from benchmarks.rivals.report import Group, markdown
from inference.errors import InvalidRequest, Mismatch
from inference.flags.group import Shown
from inference.flags.values import Words
from inference.model.checkpoint import DTYPES
from inference.model.config import read_config
from inference.text import Tokenizer
from outrider.measure.link import Milliseconds
from outrider.measure.sets import Item, read_file, read_sets
from outrider.models.directories import find_tokenizer
from outrider.models.machine import processor
from outrider.options.groups import Precision

OURS_GGUF = ours.PLAIN + ours.GGUF
ACROSS = f"{ours.HYBRID} gRPC"
"""The arm whose target is in a process of its own."""

PEERS = {"openvino": openvino.ARMS}
"""Engines that run in an environment of their own, and their arms."""

NO_AUTODRAFT = (
    "--peers: autodraft cannot play here. autodraft-sd 1.1.1 needs a CUDA device, and says 'Torch "
    "not compiled with CUDA enabled' without one: see docs/measured.md"
)

SAFETENSORS = (*library.HELPS, ours.PLAIN, f"{ours.PLAIN} copies", ours.HYBRID, ACROSS)
GGUF = (*llama_server.ARMS, OURS_GGUF, f"{OURS_GGUF} copies", f"{OURS_GGUF} hybrid")


class Options(Flags):
    safetensors: PairNames | None = None
    """directories of two checkpoints"""
    gguf: PairNames | None = None
    """two GGUF files"""
    llama_server: FileName | None = None
    """llama.cpp's server"""
    peers: Annotated[Words, Shown("NAME,...")] = ()
    """engines that play beside, on the same checkpoints"""
    environments: Folder = Path("build/rivals")
    """for the packages and files of peers"""
    set: Annotated[Words, Shown("NAME,...")] = ("small",)
    """of prompts, as of outrider bench"""
    file: FileName | None = None
    """of prompts, instead of sets"""
    samples: int = 1
    """prompts of each kind"""
    rtt: Milliseconds = 0.0
    """round trip of the emulated link between target and draft, for arms that have one"""
    tokens: int = 64
    """of a text, at most"""
    length: int = 2048
    """of a text, prompt included"""
    threads: int = 2
    """cores, and threads of every arm"""
    dtype: Precision = "bfloat16"
    """of checkpoints"""
    arms: Annotated[Words, Shown("NAME,...")] = ()
    """default: all that there are files for"""
    out: Folder
    """for what is written"""


def plain_of(arm: str) -> str:
    """The name of the arm that drafts nothing with the same engine."""
    plains = (OURS_GGUF, ours.PLAIN, library.PLAIN, llama_server.PLAIN, openvino.PLAIN)
    return next(plain for plain in plains if arm.startswith(plain))


def groups_of(given: Options) -> list[Group]:
    """The arms to play, by kind of files. Raises InvalidRequest for an unknown arm, for one without
    its plain arm, and where there are no files.
    """
    if "autodraft" in given.peers:
        raise InvalidRequest(NO_AUTODRAFT)
    if given.peers and not given.safetensors:
        raise InvalidRequest("--peers: they play on checkpoints, which --safetensors names")
    if others := [name for name in given.peers if name not in PEERS]:
        raise InvalidRequest(f"--peers: no engine {others[0]!r}; there are {', '.join(PEERS)}")
    peers = [arm for name in given.peers for arm in PEERS[name]]
    files = [("Safetensors", ours.HYBRID, (*SAFETENSORS, *peers))] * bool(given.safetensors)
    files += [("GGUF files", GGUF[-1], GGUF)] * bool(given.gguf)
    known = [arm for _, _, arms in files for arm in arms]
    wanted = given.arms or known
    if not known:
        raise InvalidRequest("no models: --safetensors or --gguf names them")
    if unknown := [name for name in wanted if name not in known]:
        raise InvalidRequest(f"--arms: no arm {unknown[0]!r}; there are {', '.join(known)}")
    if alone := [name for name in wanted if plain_of(name) not in wanted]:
        raise InvalidRequest(f"--arms: {alone[0]} is measured against {plain_of(alone[0])}: add it")
    groups = [
        Group(title, hybrid, {arm: plain_of(arm) for arm in arms if arm in wanted})
        for title, hybrid, arms in files
    ]
    return [group for group in groups if group.plains]


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


def first_turn(item: Item) -> list[dict[str, str]]:
    """Messages of a chat up to its first answer."""
    system = [{"role": "system", "content": item.system}] if item.system else []
    return [*system, {"role": "user", "content": item.turns[0]}]


def ask(items: Sequence[Item], models: Sequence[str]) -> list[Question]:
    """The prompts as ids of the first model's tokenizer. Raises Mismatch where another model's
    makes other ids of one.
    """
    made = {
        model: [tuple(tokenizer.encode_chat(first_turn(item))) for item in items]
        for model in models
        for tokenizer in [find_tokenizer(model, "target")]
    }
    for item, *each in zip(items, *made.values(), strict=True):
        if len(set(each)) > 1:
            raise Mismatch(f"{', '.join(models)}: not all have the same ids for {item.name}")
    return [
        Question(item.kind, item.name, ids)
        for item, ids in zip(items, made[models[0]], strict=True)
    ]


@contextmanager
def opened(given: Options, groups: Sequence[Group]) -> Iterator[list[Arm]]:
    """Load what the arms need, and close it at the end."""
    wanted = [arm for group in groups for arm in group.plains]
    needed = {plain_of(arm) for arm in wanted if arm != ACROSS}
    arms, threads = list[Arm](), given.threads
    with ExitStack() as stack:
        if given.safetensors:
            target, draft = given.safetensors
            models = Models(target, draft, given.dtype, given.length)
            if openvino.PLAIN in needed:
                ends = read_config(Path(target)).stop_ids | Tokenizer(Path(target)).end_ids
                stops = ",".join(map(str, ends))
                python = environment(given.environments, "openvino")
                told: list[str | Path] = [
                    target,
                    draft,
                    given.dtype,
                    str(threads),
                    stops,
                    given.environments,
                ]
                command = [python, "-m", openvino.__name__, *told]
                chosen = [arm for arm in openvino.ARMS if arm in wanted]
                arms += stack.enter_context(peer("openvino", command, chosen))
            if library.PLAIN in needed:
                dtype = DTYPES[given.dtype]
                arms += stack.enter_context(library_arms(Path(target), Path(draft), dtype, threads))
            if ours.PLAIN in needed:
                arms += stack.enter_context(arms_here(models, threads))
            if ACROSS in wanted:
                arms += stack.enter_context(arms_over_grpc(models, given.rtt))
        if given.gguf:
            target, draft = given.gguf
            if llama_server.PLAIN in needed:
                assert given.llama_server
                servers = stack.enter_context(
                    llama_servers(given.llama_server, target, draft, threads, wanted)
                )
                arms += [Arm(name, 1, server.play) for name, server in servers.items()]
            if OURS_GGUF in needed:
                models = Models(target, draft, None, given.length)
                arms += stack.enter_context(arms_here(models, threads))
        yield [arm for arm in arms if arm.name in wanted]


def weights(given: Options) -> list[Path]:
    """The files of all models."""
    checkpoints = [
        file for one in given.safetensors or () for file in sorted(Path(one).glob("*.safetensors"))
    ]
    return [*checkpoints, *map(Path, given.gguf or ())]


def settings(given: Options, groups: Sequence[Group], cores: list[int]) -> dict[str, Any]:
    """Settings that a comparison must keep from its first prompt to its last."""
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers")}
    if given.gguf:
        versions["llama-cpp-python"] = importlib.metadata.version("llama-cpp-python")
    if given.llama_server:
        versions["llama-server"] = llama_version(given.llama_server)
    return {
        "safetensors": given.safetensors and list(given.safetensors),
        "gguf": given.gguf and list(given.gguf),
        "dtype": given.dtype,
        "tokens": given.tokens,
        "threads": given.threads,
        "rtt_ms": given.rtt,
        "cores": cores,
        "cpu": processor(),
        "python": platform.python_version(),
        "peers": {name: requirements(name) for name in given.peers},
        "versions": versions,
        "arms": {group.title: list(group.plains) for group in groups},
    }


def main(given: Options) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # servers end with their contexts
    groups = groups_of(given)
    played = {arm for group in groups for arm in group.plains}
    if played & set(llama_server.ARMS) and not given.llama_server:
        raise InvalidRequest("--llama_server names the binary for the arms of llama.cpp")
    fixed = settings(given, groups, pin(given.threads))
    archive = Archive(given.out / "rivals.jsonl", fixed)
    items = (
        read_file(given.file, given.samples)
        if given.file
        else read_sets(given.set, given.samples, 0)
    )
    questions = ask(items, [*(given.safetensors or ()), *(given.gguf or ())])
    if all(map(archive.has, questions)):
        tell(given.out, fixed, archive, groups)
        return
    with opened(given, groups) as arms:
        for made in play(arms, questions, given.tokens, archive, weights(given)):
            print(f"{made.kind} {made.name}: load {made.loads[1]:.1f}", file=sys.stderr)
            tell(given.out, fixed, archive, groups)


def tell(out: Path, fixed: dict[str, Any], archive: Archive, groups: Sequence[Group]) -> None:
    """Print and write what there is so far."""
    loads = [load for one in archive.answers for load in one.loads]
    commits = sorted({one.commit for one in archive.answers})
    shown = markdown(archive.answers, groups) + (
        f"\n{len(archive.answers)} prompts, {fixed['tokens']} tokens a text at most, "
        f"{fixed['threads']} threads, round trip {fixed['rtt_ms']:g} ms, "
        f"load {min(loads):.1f} to {max(loads):.1f}, "
        f"commit {', '.join(commits)}\n"
    )
    (out / "rivals.md").write_text(shown, encoding="utf-8")
    print(shown, flush=True)


if __name__ == "__main__":
    run(Options, main)
