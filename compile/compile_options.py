"""The flags of `python -m compile`, with their defaults and meanings, and what they mean
together.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from compile.on_instance import OnInstance
from compile.spec import DTYPES, SAMPLINGS, TARGETS, check_fused_dtype, check_positive, check_target
from inference.artifact import NATIVE
from inference.command import USAGE, Parser, add_flags, add_gone, called, option
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
        "default: float32 for cpu, bfloat16 else; fp8 (trn1 and inf2): matrices of 8-bit floats, "
        "the rest bfloat16",
        _TARGET,
        choices=DTYPES,
    )
    tensor_parallel: int | None = option(
        None, "NeuronCores that share it (default: the smallest instance's)", _TARGET, "tp_degree"
    )
    flag: tuple[str, ...] = option(
        (),
        "compiler flag, may be repeated: --flag=-O2, --flag=max_autotune=1",
        _TARGET,
        metavar="NAME[=VALUE]",
    )
    features: str | None = option(
        None,
        "layers whose inputs the graphs return with each token, such as 2,16,29; eagle3: the three "
        "that EAGLE-3 reads; or the EAGLE-3 head that is to read them (default: none)",
        _TARGET,
        metavar="N,..._OR_DIR_OR_NAME",
    )
    workers: int | None = option(
        None,
        "graphs compiled at once (default: what cores and free memory allow)",
        _TARGET,
    )
    quick: bool = option(
        False,
        "build only the few graphs without which nothing can be served; the same command without "
        "--quick adds the others",
        _TARGET,
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
    prompt_chunks: str | None = option(
        None, "prompt tokens in one call (default: 256 for cpu, 512 else)", _SIZES, metavar="N,..."
    )
    tree_sizes: str | None = option(
        None,
        "nodes of trees, roots included (default: 1, 4, 16 and the largest)",
        _SIZES,
        metavar="N,...",
    )
    slots: str | None = option(
        None,
        "cache slots that are read (default: half of them and all, prompts also quarters; "
        "a short cache whole)",
        _SIZES,
        metavar="N,...",
    )
    sampling: str | None = option(
        None,
        "greedy graphs, sampled ones (they take temperature 0 too), or both (default: both; "
        "sampled where the vocabulary is small)",
        _SIZES,
        choices=SAMPLINGS,
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
    graph_store: str | None = option(
        None,
        "Neuron: take compiled graphs from this store and put new ones there (a directory or "
        "s3://BUCKET/PREFIX); name only one that you trust, graphs are executable code",
        _STORE,
        metavar="STORE",
    )
    dry_run: bool = option(False, "print the plan, memory and computed times, and build nothing")
    verbose: bool = option(False, "show what the compilers and libraries say")
    debug: bool = option(False, "show the traceback of an error")
    where: OnInstance = field(default_factory=OnInstance)

    def __post_init__(self) -> None:
        for name in ("rows", "max_tree_nodes", "tensor_parallel", "graphs", "workers"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        for name in ("compile_minutes", "graph_minutes"):
            minutes = getattr(self, name)
            if minutes is not None and not 0 < minutes < float("inf"):
                raise InvalidRequest(f"--{name} {minutes}: more than 0 is needed")
        self._check_sizes()
        self._check_draft()
        self._check_load()
        _ = self.compiler_flags

    def _check_sizes(self) -> None:
        """Check what can be told of the sizes without a model."""
        length = self.sequence_length
        if length is not None and length < 2:
            raise InvalidRequest(f"--sequence_length {length}: at least 2 tokens are needed")
        self.sizes("prompt_chunks")
        self.sizes("slots")
        for size in self.sizes("tree_sizes") or ():
            if size > self.max_tree_nodes:
                raise InvalidRequest(
                    f"--tree_sizes {size}: sizes lie between 1 and {self.max_tree_nodes} "
                    "(--max_tree_nodes)"
                )
        check_target(self.device, self.tensor_parallel or 1, self.dtype)

    def _check_draft(self) -> None:
        """Check the flags of the draft beside the target."""
        if self.fused:
            if self.draft_model is None and self.model is not None:
                raise InvalidRequest(
                    f"--fused needs --draft_model: the draft that is to stand beside {self.model}, "
                    "with the same tokenizer"
                )
            if self.device in NATIVE:
                raise InvalidRequest(
                    f"--fused is for cpu, trn1 and inf2: leave it out for {self.device}"
                )
            check_fused_dtype(self.dtype)
            _ = self.drafted
            return
        for name in ("draft_model", "speculation_length", "draft_tree"):
            if getattr(self, name) is not None:
                raise InvalidRequest(
                    f"--{name} is of the draft beside the target: it goes with --fused"
                )

    def _check_load(self) -> None:
        if self.load is not None and (self.tree_sizes or self.slots):
            raise InvalidRequest("--load chooses the sizes: leave out --tree_sizes and --slots")
        if self.compile_minutes is not None and self.graph_minutes is None:
            raise InvalidRequest(
                "--compile_minutes needs --graph_minutes: what one graph takes, as an earlier "
                "build printed it"
            )

    def check_command(self) -> None:
        """Check that the flags say what is to be done: build, print the plan, push or pull."""
        if self.pull is not None:
            if self.digest is None:
                raise InvalidRequest(
                    "--pull needs --digest, the one that --push printed: an artefact is executable "
                    "code, nothing is taken on trust"
                )
        elif self.target is None and self.push is None:
            raise InvalidRequest(
                "--target is needed: cpu, trn1, inf2, trn2 or trn3 (--help shows examples)"
            )
        if self.out is None and not self.dry_run and not self.where.on:
            raise InvalidRequest("--out is needed: the directory of the artefact")

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
  python -m compile --target cpu --out artefact                    the model that ships here
  python -m compile --target cpu --quick --out artefact            its first graphs, in a minute;
                                                                   the line above adds the rest
  python -m compile --model DIR --target trn1 --dry-run            what would be built, and whether
                                                                   it fits; builds nothing
  python -m compile --model DIR --target trn1 --load load.json --graphs 10 --out artefact
  python -m compile --target cpu --fused --gamma 4 --out artefact  target and draft in one graph
  python -m compile --out artefact --push s3://bucket/artefacts    prints the digest to pull
  python -m compile --pull s3://bucket/artefacts --digest HEX --out artefact
  outrider compile --on r7i.4xlarge --model NAME --target trn1 --dry_run
"""


def parse(arguments: Sequence[str] | None = None) -> CompileOptions:
    """Options from a command line, checked. A mistake gets one line, and exit code 2."""
    parser = Parser(
        prog=called("compile", "python -m compile"),
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_flags(CompileOptions, parser)
    add_flags(OnInstance, parser)
    add_gone(parser, "trace", "one core is built for as several are, with --tensor_parallel 1")
    add_gone(parser, "batch", "it is called --rows")
    add_gone(parser, "prefill_nodes", "it is called --prompt_chunks")
    add_gone(parser, "tree_nodes", "it is called --tree_sizes")
    parsed = vars(parser.parse_args(arguments)).items()
    given = {name: value for name, value in parsed if value is not None}
    given["flag"] = tuple(given.get("flag", ()))
    try:
        where = {one.name: given.pop(one.name, one.default) for one in fields(OnInstance)}
        options = CompileOptions(**given, where=OnInstance(**where))
        options.check_command()
    except InvalidRequest as error:
        parser.exit(USAGE, f"{parser.prog}: error: {error}\n")
    return options
