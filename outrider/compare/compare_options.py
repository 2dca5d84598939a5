"""The flags of compare_architectures.py: its own, and the draft's flags about texts and costs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from inference.command import Parser, add_flag, add_gone, called, nearest
from inference.cost.billing import read_knob
from inference.drafters.tree_policies import BestFirst, Chain, Policy
from inference.errors import InvalidRequest
from outrider.client.drafting import read_policy
from outrider.compare.arms import ARCHITECTURES, BASELINE, GROWING, read_setting
from outrider.compare.intervals import FEWEST
from outrider.options import is_device, parse_as
from outrider.options.groups import TargetOptions
from outrider.options.roles import DraftRole

NAMES = tuple(one.name for one in ARCHITECTURES)
ON_THIS_MACHINE = tuple(one.name for one in ARCHITECTURES if one.on_this_machine)
BY_PRESET = {preset: one.name for one in ARCHITECTURES for preset in one.presets}
"""Architectures by the preset that each measures."""
STEERED = tuple(one.name for one in ARCHITECTURES if one.steered)
UNUSED = (
    "preset", "copy_history", "target_only", "no_beside",
    "gamma", "tree_nodes", "tree_depth", "pace", "baseline", "as_json",
    "profile", "measure_first", "list_models", "max_usd", "min_tps", "max_usd_per_1m",
    "max_joules_per_token", "explain", "target",
)  # fmt: skip
"""Flags of role draft that have no meaning in a comparison."""


class TextsOptions(DraftRole, TargetOptions):
    """How texts are drafted, what they cost, and what a target that is started here loads."""


DEFAULTS = TextsOptions(batch=1, seed=0, max_new_tokens=48)


@dataclass(frozen=True)
class CompareOptions:
    """What is compared, and how. argparse reads the defaults from here. Raises InvalidRequest for
    what cannot be measured.
    """

    draft: TextsOptions = field(default_factory=lambda: DEFAULTS)  # how every text is drafted
    num_runs: int = 2
    cs: tuple[str, ...] = ()  # positions of the knob --cs
    architectures: tuple[str, ...] = ()  # empty: those that can run across a link
    local: bool = False
    chains: tuple[Policy, ...] = (Chain(2), Chain(4), Chain(8))
    trees: tuple[Policy, ...] = (BestFirst(8, 4), BestFirst(16, 6), BestFirst(32, 8))
    rtt: tuple[float, ...] = (0.0, 40.0)
    jitter: float = 0.0
    bandwidth: float | None = None
    target_host: str | None = None  # None: a target is started here
    target_device: str | None = None  # None: that of --device
    draft_device: str | None = None
    emulate: tuple[str, ...] = ()
    out: str | None = None

    def __post_init__(self) -> None:
        if self.num_runs < 1:
            raise InvalidRequest(f"--num_runs {self.num_runs}: at least one is needed")
        if not self.rtt or not all(0 <= trip < 60_000 for trip in self.rtt) or _twice(self.rtt):
            raise InvalidRequest(
                f"--rtt {','.join(f'{trip:g}' for trip in self.rtt)}: different milliseconds from "
                "0 to 60000 are needed"
            )
        unknown = set(self.architectures) - set(NAMES)
        if unknown:
            raise InvalidRequest(
                f"--architectures {','.join(sorted(unknown))}: there are {', '.join(NAMES)}"
                f"{nearest(min(unknown), NAMES)}"
            )
        if self.target_host and (self.emulate or self.draft.artifact or self.target_device):
            raise InvalidRequest(
                "--emulate, --artifact and --target_device are of a target that is started here: "
                "--target_host names one that runs"
            )
        self._check_knob()
        fields = TextsOptions.model_fields
        unused = [name for name in UNUSED if getattr(self.draft, name) != fields[name].default]
        if unused:
            raise InvalidRequest(f"--{unused[0]} does not go with a comparison")
        if self.draft.method is None:
            raise InvalidRequest(
                f"--draft {self.draft.draft}: a comparison needs a model that drafts; its "
                "architectures say who copies"
            )

    def _check_knob(self) -> None:
        weights = [read_knob(knob) for knob in self.cs]
        if _twice(weights) or not all(0 <= weight <= 1 for weight in weights):
            raise InvalidRequest(
                f"--cs {','.join(self.cs)}: different positions are needed, each tps, balanced, "
                "cost or 0 to 100"
            )
        if self.cs and not set(STEERED) & set(self.chosen):
            raise InvalidRequest(
                f"--cs steers {', '.join(STEERED)}: name one of them in --architectures"
            )
        if self.draft.objective and not self.cs:
            raise InvalidRequest("--objective is what --cs weighs speed against: give --cs, too")

    def check_texts(self, prompts: int) -> None:
        """Raise InvalidRequest for fewer texts than tell another architecture from target-only.

        prompts: number of prompts, each of which is run num_runs times
        """
        texts = prompts * self.num_runs
        if BASELINE in self.chosen and len(self.chosen) > 1 and texts < FEWEST:
            raise InvalidRequest(
                f"{texts} texts of each architecture are too few to tell, {FEWEST} are needed: "
                f"give more prompts, or --num_runs {-(-FEWEST // prompts)}"
            )

    @property
    def chosen(self) -> tuple[str, ...]:
        """Architectures to run, in the order of the table."""
        across = (BASELINE, GROWING) if self.cs else set(NAMES) - set(ON_THIS_MACHINE)
        asked = self.architectures or across
        return tuple(
            name for name in NAMES if name in asked or (name in ON_THIS_MACHINE and self.local)
        )

    @property
    def with_local(self) -> bool:
        return any(name in self.chosen for name in ON_THIS_MACHINE)


def _twice(values: Sequence[float]) -> bool:
    return len(set(values)) < len(values)


def _settings(text: str, kind: type[Chain] | type[BestFirst]) -> tuple[Policy, ...]:
    try:
        policies = tuple(read_setting(part) for part in text.split(","))
    except InvalidRequest as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if not all(isinstance(policy, kind) for policy in policies):
        raise argparse.ArgumentTypeError(f"{text!r}: a chain is such as 4, a tree such as 16x6")
    return policies


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


def _words(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _presets(text: str) -> tuple[str, ...]:
    names = _words(text)
    for name in names:
        if name not in BY_PRESET:
            raise argparse.ArgumentTypeError(
                f"{name}: there are {', '.join(BY_PRESET)}{nearest(name, BY_PRESET)}"
            )
    return names


def _of_presets(names: Sequence[str]) -> dict[str, Any]:
    """The fields of CompareOptions that these presets stand for; none without a preset."""
    if not names:
        return {}
    rounds = {
        field: (read_policy(TextsOptions(preset=name)),)
        for field, name in (("chains", "classic_sd"), ("trees", "tree_sd"))
    }
    return {"architectures": tuple(BY_PRESET[name] for name in names), **rounds}


def _drafted_by(names: Sequence[str]) -> list[str]:
    """The flag that says which kind of model drafts for these presets; none without a preset.
    Raises InvalidRequest for two kinds.
    """
    options = [TextsOptions(preset=name) for name in names]
    kinds = sorted({one.method for one in options if one.method and not one.target_only})
    if len(kinds) > 1:
        raise InvalidRequest(
            f"--presets {','.join(names)}: one kind of model drafts in a comparison, got "
            f"{' and '.join(kinds)}"
        )
    return [f"--draft={kind}" for kind in kinds]


def _device(name: str) -> str:
    if not is_device(name):
        raise argparse.ArgumentTypeError(
            f"{name!r} is no device: auto, cpu, cuda, cuda:N, neuron or neuron-legacy"
        )
    return name


_add = partial(add_flag, CompareOptions)

_EPILOG = """and of `main.py --role draft`: --target_model, --draft_model, --draft (the kind of
model), --artifact, --device, --dtype, --threads; --prompt, --chat, --max_new_tokens (48),
--temperature, --top_p, --top_k, --seed (0); --tls_ca, --token_file; --usd_per_hour or
--instance, --region, --no_live, --usd_per_kwh, --usd_per_gb_up, --usd_per_gb_down, --draft_watts,
--target_watts, --objective.

Without --target_host a target is started on this machine and stopped again; draft and target then
share its cores, so forwards, acceptance and bytes carry over to other machines and tokens/s do
not. Settings: 4 is a chain of 4, 16x6 a tree of 16 nodes and depth 6.

examples:
  python compare_architectures.py                                       the pair that ships here
  python compare_architectures.py --target_model DIR --draft_model DIR  a real pair
  python compare_architectures.py --rtt 0,20,80 --out DIR \\
    --emulate llama-3.1-8b-trn1.2xlarge-computed,llama-3.1-8b-trn1.2xlarge-measured
  python compare_architectures.py --target_host HOST:PORT --draft_model DIR \\
    --tls_ca ca.pem --token_file token
  python compare_architectures.py --cs 0,25,50,75,100 --usd_per_hour 1.34 \\
    --usd_per_kwh 0.3 --usd_per_gb_up 0 --usd_per_gb_down 0.09 --draft_watts 30"""


def parse(arguments: Sequence[str] | None = None) -> CompareOptions:
    """The options of a command line; prints help or a usage error and exits as argparse does."""
    prog = called("compare", "python compare_architectures.py")
    parser = Parser(
        prog=prog.removeprefix("python "),
        description=(
            "Ways of decoding side by side: same prompts, seeds and limits, interleaved, each\n"
            "against its own target-only run. With --cs, the curve of speed against cost."
        ),
        epilog=_EPILOG.replace("python compare_architectures.py", prog),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _arm_flags(parser.add_argument_group("what is compared"))
    _target_flags(parser.add_argument_group("target and link"))
    add_gone(parser, "fused", "the draft beside the target chooses its own trees")
    known, others = parser.parse_known_args(arguments)
    given = vars(known)
    file = given.pop("prompt_file")
    given["rtt"] = given["rtt"] or ((0.0,) if given["cs"] else CompareOptions.rtt)
    presets = given.pop("presets")
    if presets and given["architectures"]:
        parser.error("--presets names architectures, as --architectures does: give one of them")
    for name in ("architectures", "chains", "trees"):
        if not given[name]:
            del given[name]
    given = _of_presets(presets) | given
    defaults = [f"--{name}={getattr(DEFAULTS, name)}" for name in ("seed", "max_new_tokens")]
    try:
        draft = parse_as(TextsOptions, [*defaults, *_drafted_by(presets), *others], parser)
        return CompareOptions(draft.but(batch=1, prompt_text=file), **given)
    except InvalidRequest as error:
        parser.error(str(error))


def _arm_flags(group: argparse._ArgumentGroup) -> None:
    _add(group, "architectures", f"of: {', '.join(NAMES)}", type=_words, metavar="NAME,...")
    presets = f"architectures by preset, each with its own setting: {', '.join(BY_PRESET)}"
    group.add_argument("--presets", help=presets, type=_presets, metavar="NAME,...", default=())
    local = "also the target in this process, without a network: alone, and with a draft beside it"
    _add(group, "local", local, action="store_true")
    chains = "settings that the sweep tries for chains; one is not swept (default: 2,4,8)"
    _add(
        group, "chains", chains, type=partial(_settings, kind=Chain), metavar="N,...", default=None
    )
    trees = "the same for trees (default: 8x4,16x6,32x8)"
    kind = partial(_settings, kind=BestFirst)
    _add(group, "trees", trees, type=kind, metavar="NxD,...", default=None)
    cs = "the growing draft at these positions of the knob: tps, balanced, cost or 0 to 100"
    _add(group, "cs", cs, type=_words, metavar="KNOB,...")
    runs = "runs of each prompt and architecture, interleaved (default: %(default)s)"
    _add(group, "num_runs", runs, type=int)
    names = ("--prompt_file", "--prompt-file", "--prompt_text", "--prompt-text")
    group.add_argument(
        *names, dest="prompt_file", help="one prompt a line (default: four)", metavar="FILE"
    )
    out = "write report.md, results.json, results.csv and plots there"
    _add(group, "out", out, metavar="DIR")


def _target_flags(group: argparse._ArgumentGroup) -> None:
    _add(group, "target_host", "a running target (default: start one)", metavar="HOST:PORT")
    target = "of a target that is started (default: that of --device)"
    _add(group, "target_device", target, type=_device, metavar="DEVICE")
    draft = "of the draft in this process (default: that of --device)"
    _add(group, "draft_device", draft, type=_device, metavar="DEVICE")
    emulate = "the target's passes take the times of this profile; several: one comparison each"
    _add(group, "emulate", emulate, type=_words, metavar="PROFILE,...")
    rtt = "round trips to emulate, milliseconds beyond the machine's own (default: 0,40; --cs: 0)"
    _add(group, "rtt", rtt, type=_numbers, metavar="MS,...", default=None)
    jitter = "up to so many milliseconds more each way (default: %(default)g)"
    _add(group, "jitter", jitter, type=float, metavar="MS")
    bandwidth = "megabits a second each way (default: no limit)"
    _add(group, "bandwidth", bandwidth, type=float, metavar="MBIT")
