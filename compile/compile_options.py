"""The flags of `outrider compile`, and what they mean together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal, Self

from annotated_types import Ge, Gt, Le
from pydantic import AfterValidator, model_validator

from compile.spec import check_target
from inference.artifact import NATIVE
from inference.command import called
from inference.errors import InvalidRequest
from inference.flags.command_line import CommandOptions, parse_flags
from inference.flags.group import Also, FlagRule, Group, Repeated, Shown
from inference.flags.values import Count, Counts, Directory, File, ModelName, Region
from inference.tree_shape import Branches

CHAIN = 4
"""Drafted tokens of a round, unless told otherwise."""

_FUSED = "a draft in the target's graphs (outrider fused_target --artifact DIR serves it)"
_SIZES = "graphs of given sizes (numbers separated by commas; every combination is built)"
_ON = "built on an instance of EC2, which is removed afterwards (outrider compile --on TYPE)"

Sizes = Annotated[Counts, AfterValidator(lambda sizes: tuple(sorted(set(sizes))))]
Store = Annotated[str, Shown("STORE")]


class InstanceOptions(Group, title=_ON):
    """The machine that builds the artefact: this one, unless `on` names an instance type."""

    on: Annotated[str, Shown("TYPE")] | None = None
    """instance type, such as r7i.4xlarge or trn1.32xlarge; with --dry_run its price and memory are
    printed, and nothing is started"""
    region: Region | None = None
    """AWS region (default: that of boto3's configuration, else us-east-1)"""
    spot: bool = False
    """cheaper, and AWS may end it at any time"""
    most_hours: Annotated[float, Gt(0), Le(24 * 7), Shown("HOURS")] = 6.0
    """the instance ends itself after so long, whatever it does"""
    image: Annotated[str, Shown("PARAMETER")] | None = None
    """public SSM parameter of the machine image (default: by --target)"""
    wheel: File | None = None
    """Outrider for the instance (default: built from this checkout)"""


class FusedOptions(Group, title=_FUSED):
    """The draft whose rounds are built, too."""

    fused: bool = False
    """also build rounds: one graph in which a draft grows a tree, the target verifies it and
    accepts"""
    draft_model: ModelName | None = None
    """model directory or hub name of the draft (default: the draft that ships here)"""
    speculation_length: Annotated[Count, Also("gamma")] | None = None
    """the tree is a chain of this many drafted tokens (default: 4)"""
    draft_tree: Counts | None = None
    """the tree has so many children a node, level by level, such as 3,2,1"""


class SizeOptions(Group, title=_SIZES):
    """Sizes of graphs that are named."""

    prompt_chunks: Sizes | None = None
    """prompt tokens in one call (default: 256 for cpu, 512 else)"""
    tree_sizes: Sizes | None = None
    """nodes of trees, roots included (default: 1, 4, 16 and the largest)"""
    slots: Sizes | None = None
    """cache slots that are read (default: half of them and all, prompts also quarters; a short
    cache whole)"""
    sampling: Literal["both", "greedy", "sampled"] | None = None
    """greedy graphs, sampled ones (they take temperature 0 too), or both (default: both; sampled
    where the vocabulary is small)"""


class StoreOptions(Group, title="stores"):
    """Stores of artefacts and of compiled graphs."""

    push: Store | None = None
    """put the artefact (built now, or lying in --out) into a store: a directory or
    s3://BUCKET/PREFIX"""
    pull: Store | None = None
    """take an artefact from a store into --out"""
    digest: Annotated[str, Shown("HEX")] | None = None
    """of the artefact to pull; an artefact is executable code, nothing else is accepted"""
    graph_store: Store | None = None
    """Neuron: take compiled graphs from this store and put new ones there (a directory or
    s3://BUCKET/PREFIX); name only one that you trust, graphs are executable code"""


class CompileOptions(StoreOptions, SizeOptions, FusedOptions, CommandOptions, title="target"):
    """A target that is to be built. Raises InvalidRequest for what cannot be built."""

    RULES: ClassVar = (
        FlagRule("draft_tree", excludes="speculation_length", why="it says how deep the tree is"),
        FlagRule("draft_model speculation_length draft_tree", needs="fused"),
        FlagRule("pull", needs="digest", why="the one that --push printed"),
        FlagRule("region spot most_hours image wheel", needs="on"),
    )

    model: ModelName | None = None
    """model directory or hub name (default: the target that ships here)"""
    target: Literal["cpu", "trn1", "inf2", "trn2", "trn3"] | None = None
    """device that the graphs are for"""
    out: Directory | None = None
    """directory of the artefact"""
    rows: Count | None = None
    """sequences held at once (default: as many of 4, 2 or 1 as fit beside weights and graphs)"""
    sequence_length: Annotated[int, Ge(2)] | None = None
    """prompt and output together (default: the smaller of 2048 and the model's limit)"""
    max_tree_nodes: Count = 64
    """largest tree taken, its root included"""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """default: float32 for cpu, bfloat16 else"""
    tensor_parallel: Annotated[Count, Also("tp_degree")] | None = None
    """NeuronCores that share it (default: the smallest instance's)"""
    flag: Annotated[tuple[str, ...], Repeated(), Shown("NAME[=VALUE]")] = ()
    """compiler flag, may be repeated: --flag=-O2, --flag=max_autotune=1"""
    features: Annotated[str, Shown("N,..._OR_DIR_OR_NAME")] | None = None
    """layers whose inputs the graphs return with each token, such as 2,16,29; eagle3: the three
    that EAGLE-3 reads; or the EAGLE-3 head that is to read them (default: none)"""
    masks: bool = False
    """also graphs that take masks and biases: for grammars, penalties and log-probabilities"""
    workers: Count | None = None
    """graphs compiled at once (default: what cores and free memory allow)"""
    quick: bool = False
    """build only the few graphs without which nothing can be served; the same command without
    --quick adds the others"""
    dry_run: bool = False
    """print the plan, memory and computed times, and build nothing"""
    verbose: bool = False
    """show what the compilers and libraries say"""
    where: InstanceOptions = InstanceOptions()

    @model_validator(mode="after")
    def _can_be_built(self) -> Self:
        """Check what can be told without a model."""
        for size in self.tree_sizes or ():
            if size > self.max_tree_nodes:
                raise InvalidRequest(
                    f"--tree_sizes {size}: sizes lie between 1 and {self.max_tree_nodes} "
                    "(--max_tree_nodes)"
                )
        if self.masks and self.sampling == "greedy":
            raise InvalidRequest("--masks is for sampled graphs: leave out --sampling greedy")
        check_target(self.device, self.tensor_parallel or 1)
        _ = self.compiler_flags
        if self.fused:
            self._check_fused()
        return self

    def _check_fused(self) -> None:
        """Check the flags of the draft beside the target."""
        if self.draft_model is None and self.model is not None:
            raise InvalidRequest(
                f"--fused needs --draft_model: the draft that is to stand beside {self.model}, "
                "with the same tokenizer"
            )
        if self.device in NATIVE:
            raise InvalidRequest(
                f"--fused is for cpu, trn1 and inf2: leave it out for {self.device}"
            )

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
        chain = (1,) * (self.speculation_length or CHAIN)
        return Branches(self.draft_tree or chain)


class CompileCommand(CompileOptions):
    """Build a target ahead of time: graphs of fixed shapes, weights and tokenizer in one directory,
    which `outrider target --artifact DIR` serves. A build that was broken off goes on where it
    stopped.
    """

    COMMON: ClassVar = (
        *("model", "target", "out", "tensor_parallel", "sequence_length", "rows", "max_tree_nodes"),
        *("dtype", "masks", "fused", "draft_model", "dry_run", "quick", "push", "pull"),
    )

    @model_validator(mode="after")
    def _says_what_to_do(self) -> Self:
        """Build, print the plan, push or pull."""
        if self.target is None and self.push is None and self.pull is None:
            raise ValueError(
                "--target is needed: cpu, trn1, inf2, trn2 or trn3 (--help shows examples)"
            )
        if self.out is None and not self.dry_run and not self.where.on:
            raise ValueError("--out is needed: the directory of the artefact")
        return self


EXAMPLES = """examples:
  outrider compile --target cpu --out artefact                     the model that ships here
  outrider compile --target cpu --quick --out artefact             its first graphs, in a minute;
                                                                   the line above adds the rest
  outrider compile --model DIR --target trn1 --dry-run             what would be built, and whether
                                                                   it fits; builds nothing
  outrider compile --target cpu --fused --gamma 4 --out artefact   target and draft in one graph
  outrider compile --out artefact --push s3://bucket/artefacts     prints the digest to pull
  outrider compile --pull s3://bucket/artefacts --digest HEX --out artefact
  outrider compile --on r7i.4xlarge --model NAME --target trn1 --dry_run
"""


def parse(arguments: Sequence[str] | None = None) -> CompileOptions:
    """Options from a command line, checked. A mistake gets one line, and exit code 2."""
    command = called("compile", "python -m compile")
    return parse_flags(CompileCommand, command, arguments, EXAMPLES)
