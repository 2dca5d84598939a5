"""Flags of `python -m compile`, their defaults and their meaning, in one flat frozen record."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from compile.spec import DTYPES, TARGETS
from inference.command import add_flag, add_gone


@dataclass(frozen=True)
class Options:
    """What the user asked for; argparse reads the defaults from here."""

    model: str | None = None
    target: str | None = None
    out: str | None = None
    rows: int = 4
    sequence_length: int | None = None
    max_tree_nodes: int = 64
    dtype: str | None = None
    tensor_parallel: int = 1
    flag: tuple[str, ...] = ()
    fused: bool = False
    draft_model: str | None = None
    speculation_length: int | None = None
    draft_tree: str | None = None
    prefill_nodes: str | None = None
    tree_nodes: str | None = None
    slots: str | None = None
    sampling: str = "both"
    load: str | None = None
    graphs: int = 14
    compile_minutes: float | None = None
    graph_minutes: float | None = None
    dry_run: bool = False
    push: str | None = None
    pull: str | None = None
    digest: str | None = None
    debug: bool = False


_add = partial(add_flag, Options)

_DESCRIPTION = """Build a target ahead of time: graphs of fixed shapes, weights and tokenizer in one
directory, which `main.py --role target --artifact DIR` serves. A build that was broken off goes on
where it stopped."""

_EXAMPLES = """examples:
  python -m compile --target cpu --out artefact                    the model that ships here, for
                                                                   this machine
  python -m compile --model DIR --target trn1 --dry-run            what would be built, and whether
                                                                   it fits; builds nothing
  python -m compile --model DIR --target trn1 --load load.json --graphs 10 --out artefact
  python -m compile --target cpu --fused --gamma 4 --out artefact  target and draft in one graph a
                                                                   round
  python -m compile --out artefact --push s3://bucket/artefacts    prints the digest that --pull
                                                                   needs
  python -m compile --pull s3://bucket/artefacts --digest HEX --out artefact
"""


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Options from a command line; argparse answers --help and usage errors."""
    parser = argparse.ArgumentParser(
        prog="python -m compile",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _target_flags(parser.add_argument_group("target"))
    _fused_flags(
        parser.add_argument_group(
            "a draft in the target's graphs (--role fused_target --artifact DIR serves it)"
        )
    )
    _graph_flags(
        parser.add_argument_group(
            "graphs of given sizes (numbers separated by commas; every combination is built)"
        )
    )
    _plan_flags(parser.add_argument_group("graphs planned for a load"))
    _store_flags(parser.add_argument_group("stores"))
    _add(
        parser,
        "dry_run",
        "print the plan, memory and roofline times, and build nothing",
        action="store_true",
    )
    add_gone(parser, "trace", "one core is built for as several are, with --tensor_parallel 1")
    _add(parser, "debug", "show the traceback of an error", action="store_true")
    given = {
        name: value
        for name, value in vars(parser.parse_args(arguments)).items()
        if value is not None
    }
    return Options(**given | {"flag": tuple(given.get("flag", ()))})


def _target_flags(group: argparse._ArgumentGroup) -> None:
    _add(
        group,
        "model",
        "model directory or hub name (default: the target that ships here)",
        metavar="DIR_OR_NAME",
    )
    _add(group, "target", "device that the graphs are for", choices=TARGETS)
    _add(group, "out", "directory of the artefact", metavar="DIR")
    _add(group, "rows", "sequences held at once (default: %(default)s)", type=int)
    _add(
        group,
        "sequence_length",
        "prompt and output together (default: the smaller of 2048 and the model's limit)",
        type=int,
    )
    _add(
        group,
        "max_tree_nodes",
        "largest tree taken, its root included (default: %(default)s)",
        type=int,
    )
    _add(
        group,
        "dtype",
        "default: float32 for cpu, bfloat16 else; int8 (cpu only, by OpenVINO): 8-bit matrices, "
        "the rest float32",
        choices=DTYPES,
    )
    _add(
        group,
        "tensor_parallel",
        "NeuronCores that share the model (default: %(default)s)",
        type=int,
    )
    _add(
        group,
        "flag",
        "compiler flag, may be repeated: --flag=-O2, --flag=max_autotune=1",
        action="append",
        default=None,
        metavar="NAME[=VALUE]",
    )


def _fused_flags(group: argparse._ArgumentGroup) -> None:
    _add(
        group,
        "fused",
        "also build rounds: one graph in which a draft grows a tree, the target verifies it and "
        "accepts",
        action="store_true",
    )
    _add(
        group,
        "draft_model",
        "model directory or hub name of the draft (default: the draft that ships here)",
        metavar="DIR_OR_NAME",
    )
    _add(
        group,
        "speculation_length",
        "the tree is a chain of this many drafted tokens (default: 4)",
        alias="gamma",
        type=int,
    )
    _add(
        group,
        "draft_tree",
        "the tree has so many children a node, level by level, such as 3,2,1",
        metavar="N,...",
    )


def _graph_flags(group: argparse._ArgumentGroup) -> None:
    _add(group, "prefill_nodes", "prompt tokens in one call (default: 256)", metavar="N,...")
    _add(
        group,
        "tree_nodes",
        "tree sizes, roots included (default: the target alone, 16, the largest)",
        metavar="N,...",
    )
    _add(group, "slots", "cache slots that are read (default: half of them, all)", metavar="N,...")
    _add(
        group,
        "sampling",
        "greedy graphs, sampled ones (they take temperature 0 too), or both (default: %(default)s)",
    )


def _plan_flags(group: argparse._ArgumentGroup) -> None:
    _add(
        group,
        "load",
        "what is to be served (as in benchmarks/loads), or the outrider-profile.json of a run: the "
        "sizes that cost it least are chosen",
        metavar="FILE",
    )
    _add(group, "graphs", "most graphs to build (default: %(default)s)", type=int)
    _add(
        group, "compile_minutes", "most time to spend on building, with --graph_minutes", type=float
    )
    _add(group, "graph_minutes", "what one graph takes, as an earlier build printed it", type=float)


def _store_flags(group: argparse._ArgumentGroup) -> None:
    _add(
        group,
        "push",
        "put the artefact (built now, or lying in --out) into a store: a directory or "
        "s3://BUCKET/PREFIX",
        metavar="STORE",
    )
    _add(group, "pull", "take an artefact from a store into --out", metavar="STORE")
    _add(
        group,
        "digest",
        "of the artefact to pull; an artefact is executable code, nothing else is accepted",
        metavar="HEX",
    )
