"""The flags of `outrider compile`, and the checks of their combinations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal, Self

from annotated_types import Ge, Gt, Le
from pydantic import AfterValidator, model_validator

from compile.spec import check_target
from inference.errors import InvalidRequest
from inference.files.artifact import NATIVE
from inference.flags.command_line import CommandOptions, parse_flags
from inference.flags.group import Alias, FlagRule, Group, Metavar, Multiple
from inference.flags.values import Count, Counts, Directory, File, ModelName, Region
from inference.tree.tree_shape import Branches

CHAIN = 4
"""Default number of draft tokens per round."""

_FUSED = "a draft in the target's graphs (outrider fused_target --artifact DIR serves it)"
_SIZES = "sizes of graphs (comma-separated; every combination is built)"
_ON = "temporary EC2 instance"

Sizes = Annotated[Counts, AfterValidator(lambda sizes: tuple(sorted(set(sizes))))]
Store = Annotated[str, Metavar("STORE")]


class JobOptions(Group, title=_ON):
    """The EC2 instance on which to build."""

    region: Region | None = None
    """AWS region (default: that of boto3's configuration, else us-east-1)"""
    spot: bool = False
    """use a spot instance: cheaper, and AWS may end it at any time"""
    lifetime_hours: Annotated[float, Gt(0), Le(24 * 7), Metavar("HOURS")] = 6.0
    """maximum lifetime of the instance"""
    image: Annotated[str, Metavar("PARAMETER")] | None = None
    """public SSM parameter of the machine image (default: by --target or --instance)"""
    wheel: File | None = None
    """Outrider wheel to install on the instance (default: built from this checkout)"""


class InstanceOptions(JobOptions, title=_ON):
    """The machine that builds the artefact: this machine, unless `on` names an instance type."""

    on: Annotated[str, Metavar("TYPE")] | None = None
    """instance type, such as r7i.4xlarge or trn1.32xlarge; with --dry_run only its price and memory
    are printed"""


class FusedOptions(Group, title=_FUSED):
    """The draft model to build into the target's graphs."""

    fused: bool = False
    """also build graphs of a whole round: the draft builds a tree and the target verifies it"""
    draft_model: ModelName | None = None
    """directory or hub name of the draft (default: the embedded draft)"""
    gamma: Annotated[Count, Alias("speculation_length")] | None = None
    """draft a chain of this many tokens each round (default: 4)"""
    draft_tree: Counts | None = None
    """draft a tree with this many children per node at each level, such as 3,2,1"""


class SizeOptions(Group, title=_SIZES):
    """Sizes of the graphs to build."""

    tree_sizes: Sizes | None = None
    """nodes of a tree, root included (default: 1, 4, 16 and --max_tree_nodes)"""
    sampling: Literal["both", "greedy", "sampled"] | None = None
    """build greedy graphs, sampling graphs (which also take temperature 0), or both (default: both;
    sampled for a small vocabulary)"""


class StoreOptions(Group, title="stores"):
    """Stores of artefacts and of compiled graphs."""

    push: Store | None = None
    """upload the artefact, just built or already in --out, to a directory or s3://BUCKET/PREFIX"""
    pull: Store | None = None
    """download an artefact from a store to --out"""
    digest: Annotated[str, Metavar("HEX")] | None = None
    """digest of the artefact to pull, as printed by --push; required, since an artefact is
    executable code"""
    graph_store: Store | None = None
    """Neuron: shared cache of compiled graphs, a directory or s3://BUCKET/PREFIX; graphs are
    executable code, so use a store that you trust"""


class CompileOptions(
    InstanceOptions, StoreOptions, SizeOptions, FusedOptions, CommandOptions, title="target"
):
    """A target to build. Raises InvalidRequest if it cannot be built."""

    RULES: ClassVar = (
        FlagRule("draft_tree", excludes="gamma", why="it says how deep the tree is"),
        FlagRule("draft_model gamma draft_tree", needs="fused"),
        FlagRule("pull", needs="digest", why="the one that --push printed"),
        FlagRule("region spot lifetime_hours image wheel", needs="on"),
    )

    model: ModelName | None = None
    """directory or hub name of the model (default: the embedded target)"""
    target: Literal["cpu", "trn1", "inf2", "trn2", "trn3"] | None = None
    """device to build for"""
    out: Directory | None = None
    """directory for the artefact"""
    batch: Annotated[Count, Alias("rows")] | None = None
    """maximum concurrent sequences (default: 4, 2 or 1, the most that memory has room for)"""
    sequence_length: Annotated[int, Ge(2)] | None = None
    """maximum length of prompt and output together (default: 2048, or the model's limit)"""
    max_tree_nodes: Count = 64
    """maximum nodes of a candidate tree, root included"""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """precision (default: float32 on cpu, else bfloat16)"""
    tensor_parallel: Annotated[Count, Alias("tp_degree")] | None = None
    """NeuronCores that share the target (default: those of the smallest instance)"""
    flag: Annotated[tuple[str, ...], Multiple(), Metavar("NAME[=VALUE]")] = ()
    """compiler flag, can be repeated: --flag=-O2 --flag=max_autotune=1"""
    features: Annotated[str, Metavar("N,..._OR_DIR_OR_NAME")] | None = None
    """layers whose inputs the graphs return, such as 2,16,29; or eagle3 for the three that EAGLE-3
    heads read; or such a head, to use its layers (default: none)"""
    masks: bool = False
    """also build graphs for grammars, penalties and log-probabilities"""
    quick: bool = False
    """build only the graphs required for serving; the same command without --quick adds the rest"""
    dry_run: bool = False
    """print the plan with memory and estimated times, and build nothing"""

    @model_validator(mode="after")
    def _can_be_built(self) -> Self:
        for size in self.tree_sizes or ():
            if size > self.max_tree_nodes:
                raise InvalidRequest(
                    f"--tree_sizes {size}: the maximum is {self.max_tree_nodes} (--max_tree_nodes)"
                )
        if self.masks and self.sampling == "greedy":
            raise InvalidRequest("--masks is for sampled graphs: leave out --sampling greedy")
        check_target(self.device, self.tensor_parallel or 1)
        _ = self.compiler_flags
        if self.fused:
            self._check_fused()
        return self

    def _check_fused(self) -> None:
        if self.draft_model is None and self.model is not None:
            raise InvalidRequest(
                f"--fused needs --draft_model: a draft for {self.model} with the same tokenizer"
            )
        if self.device in NATIVE:
            raise InvalidRequest(
                f"--fused is for cpu, trn1 and inf2: leave it out for {self.device}"
            )

    @property
    def device(self) -> str:
        """The target device; cpu by default."""
        return self.target or "cpu"

    @property
    def precision(self) -> str:
        """The value of --dtype; by default the device's usual precision."""
        return self.dtype or ("float32" if self.device == "cpu" else "bfloat16")

    @property
    def compiler_flags(self) -> Mapping[str, str]:
        """The compiler flags of --flag, by name; the value of a bare NAME is empty."""
        flags = {}
        for word in self.flag:
            name, _, value = word.partition("=")
            if not name:
                raise InvalidRequest(f"--flag {word}: NAME or NAME=VALUE is needed")
            flags[name] = value
        return flags

    @property
    def drafted(self) -> Branches:
        """The draft tree of every round: --draft_tree, or a chain of --gamma tokens."""
        chain = (1,) * (self.gamma or CHAIN)
        return Branches(self.draft_tree or chain)


class CompileCommand(CompileOptions):
    """Compile a target ahead of time: fixed-shape graphs, weights and tokenizer in one directory,
    served by `outrider target --artifact DIR`. An interrupted build resumes.
    """

    COMMON: ClassVar = (
        *("model", "target", "out", "tensor_parallel", "sequence_length", "batch"),
        *(
            "max_tree_nodes",
            "dtype",
            "masks",
            "fused",
            "draft_model",
            "dry_run",
            "quick",
            "push",
            "pull",
        ),
    )

    @model_validator(mode="after")
    def _says_what_to_do(self) -> Self:
        if self.target is None and self.push is None and self.pull is None:
            raise ValueError(
                "--target is needed: cpu, trn1, inf2, trn2 or trn3 (--help shows examples)"
            )
        if self.out is None and not self.dry_run and not self.on:
            raise ValueError("--out is needed: the directory of the artefact")
        return self


EXAMPLES = """examples:
  outrider compile --target cpu --out artefact                     the embedded model
  outrider compile --target cpu --quick --out artefact             its required graphs, in a
                                                                   minute; the line above adds
                                                                   the rest
  outrider compile --model DIR --target trn1 --dry-run             the plan and its memory, without
                                                                   building
  outrider compile --target cpu --fused --gamma 4 --out artefact   target and draft in one graph
  outrider compile --out artefact --push s3://bucket/artefacts     prints the digest to pull
  outrider compile --pull s3://bucket/artefacts --digest HEX --out artefact
  outrider compile --on r7i.4xlarge --model NAME --target trn1 --dry_run
"""


def parse(arguments: Sequence[str] | None = None) -> CompileOptions:
    """Parse and check a command line. On a mistake, print one line and exit with code 2."""
    return parse_flags(CompileCommand, "outrider compile", arguments, EXAMPLES)
