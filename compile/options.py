"""The flags of `python -m compile`, with their defaults and meanings, and what they mean
together.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compile.spec import DTYPES, TARGETS
from inference.command import add_flags, add_gone, option
from inference.errors import InvalidRequest
from inference.tree_shape import Branches

CHAIN = 4
"""Drafted tokens of a round, unless told otherwise."""

_TARGET = "target"
_FUSED = "a draft in the target's graphs (--role fused_target --artifact DIR serves it)"
_SIZES = "graphs of given sizes (numbers separated by commas; every combination is built)"
_PLAN = "graphs planned for a load"
_STORE = "stores"


@dataclass(frozen=True)
class CompileOptions:
    """The flags, as the user wrote them."""

    model: str | None = option(
        None,
        "model directory or hub name (default: the target that ships here)",
        _TARGET,
        metavar="DIR_OR_NAME",
    )
    target: str | None = option(None, "device that the graphs are for", _TARGET, choices=TARGETS)
    out: str | None = option(None, "directory of the artefact", _TARGET, metavar="DIR")
    rows: int | None = option(
        None,
        "sequences held at once (default: as many of 4, 2 or 1 as fit beside weights and graphs)",
        _TARGET,
    )
    sequence_length: int | None = option(
        None,
        "prompt and output together (default: the smaller of 2048 and the model's limit)",
        _TARGET,
    )
    max_tree_nodes: int = option(
        64, "largest tree taken, its root included (default: %(default)s)", _TARGET
    )
    dtype: str | None = option(
        None,
        "default: float32 for cpu, bfloat16 else; int8 (cpu only, by OpenVINO): 8-bit matrices, "
        "the rest float32",
        _TARGET,
        choices=DTYPES,
    )
    tensor_parallel: int = option(
        1, "NeuronCores that share the model (default: %(default)s)", _TARGET
    )
    flag: tuple[str, ...] = option(
        (),
        "compiler flag, may be repeated: --flag=-O2, --flag=max_autotune=1",
        _TARGET,
        metavar="NAME[=VALUE]",
    )
    fused: bool = option(
        False,
        "also build rounds: one graph in which a draft grows a tree, the target verifies it and "
        "accepts",
        _FUSED,
    )
    draft_model: str | None = option(
        None,
        "model directory or hub name of the draft (default: the draft that ships here)",
        _FUSED,
        metavar="DIR_OR_NAME",
    )
    speculation_length: int | None = option(
        None,
        f"the tree is a chain of this many drafted tokens (default: {CHAIN})",
        _FUSED,
        "gamma",
    )
    draft_tree: str | None = option(
        None,
        "the tree has so many children a node, level by level, such as 3,2,1",
        _FUSED,
        metavar="N,...",
    )
    prefill_nodes: str | None = option(
        None, "prompt tokens in one call (default: 256)", _SIZES, metavar="N,..."
    )
    tree_nodes: str | None = option(
        None,
        "tree sizes, roots included (default: the target alone, 16, the largest)",
        _SIZES,
        metavar="N,...",
    )
    slots: str | None = option(
        None, "cache slots that are read (default: half of them, all)", _SIZES, metavar="N,..."
    )
    sampling: str = option(
        "both",
        "greedy graphs, sampled ones (they take temperature 0 too), or both (default: %(default)s)",
        _SIZES,
    )
    load: str | None = option(
        None,
        "what is to be served (as in benchmarks/loads), or the outrider-profile.json of a run: the "
        "sizes that cost it least are chosen, by scipy (outrider[compile])",
        _PLAN,
        metavar="FILE",
    )
    graphs: int = option(20, "most graphs to build (default: %(default)s)", _PLAN)
    compile_minutes: float | None = option(
        None, "most time to spend on building, with --graph_minutes", _PLAN
    )
    graph_minutes: float | None = option(
        None, "what one graph takes, as an earlier build printed it", _PLAN
    )
    push: str | None = option(
        None,
        "put the artefact (built now, or lying in --out) into a store: a directory or "
        "s3://BUCKET/PREFIX",
        _STORE,
        metavar="STORE",
    )
    pull: str | None = option(
        None, "take an artefact from a store into --out", _STORE, metavar="STORE"
    )
    digest: str | None = option(
        None,
        "of the artefact to pull; an artefact is executable code, nothing else is accepted",
        _STORE,
        metavar="HEX",
    )
    dry_run: bool = option(False, "print the plan, memory and roofline times, and build nothing")
    debug: bool = option(False, "show the traceback of an error")

    @property
    def device(self) -> str:
        """The target; cpu where none was named."""
        return self.target or "cpu"

    @property
    def precision(self) -> str:
        """The dtype; chosen by the device where none was named."""
        return self.dtype or ("float32" if self.device == "cpu" else "bfloat16")

    @property
    def compiler_flags(self) -> Mapping[str, str]:
        """The flags for the compiler: from NAME or NAME=VALUE to a mapping."""
        flags = {}
        for given in self.flag:
            name, _, value = given.partition("=")
            if not name:
                raise InvalidRequest(f"--flag {given}: NAME or NAME=VALUE is needed")
            flags[name] = value
        return flags

    @property
    def drafted(self) -> Branches:
        """The tree of every round: --draft_tree, or a chain of --speculation_length."""
        if self.draft_tree is None:
            length = CHAIN if self.speculation_length is None else self.speculation_length
            if length < 1:
                raise InvalidRequest(
                    f"--speculation_length {length}: a round drafts one token at least"
                )
            return Branches.chain(length)
        if self.speculation_length is not None:
            raise InvalidRequest(
                "--draft_tree says how deep the tree is: leave out --speculation_length"
            )
        try:
            return Branches(tuple(int(part) for part in self.draft_tree.split(",")))
        except ValueError as error:
            raise InvalidRequest(
                f"--draft_tree {self.draft_tree}: children of a node on each level are needed, "
                "such as 3,2,1"
            ) from error

    def sizes(self, name: str) -> tuple[int, ...] | None:
        """The numbers of a flag that lists them; None where it was not given."""
        text: str | None = getattr(self, name)
        if text is None:
            return None
        try:
            numbers = tuple(sorted({int(part) for part in text.split(",")}))
        except ValueError as error:
            raise InvalidRequest(
                f"--{name} {text}: whole numbers separated by commas are needed"
            ) from error
        if numbers[0] < 1:
            raise InvalidRequest(f"--{name} {text}: sizes of at least 1 are needed")
        return numbers


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


def parse(arguments: Sequence[str] | None = None) -> CompileOptions:
    """Options from a command line. argparse answers --help and usage errors."""
    parser = argparse.ArgumentParser(
        prog="python -m compile",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_flags(CompileOptions, parser)
    add_gone(parser, "trace", "one core is built for as several are, with --tensor_parallel 1")
    given = vars(parser.parse_args(arguments))
    return CompileOptions(
        **{name: value for name, value in given.items() if value is not None}
        | {"flag": tuple(given["flag"] or ())}
    )
