"""Every flag of compare_architectures.py, its default and its meaning, in one flat frozen
record.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from inference.command import add_flag, add_gone
from inference.drafters.tree_policies import BestFirst, Chain, Policy
from inference.errors import InvalidRequest
from outrider.comparison.arms import ARCHITECTURES, FUSED_LOCAL, LOCAL, read_setting
from outrider.options import PRECISIONS, is_device

NAMES = tuple(architecture.name for architecture in ARCHITECTURES)
ON_THIS_MACHINE = (LOCAL, FUSED_LOCAL)


@dataclass(frozen=True)
class CompareOptions:
    """What is compared, and how; argparse reads the defaults from here. Raises InvalidRequest
    for what cannot be measured.
    """

    prompt_file: str | None = None
    num_runs: int = 2
    max_new_tokens: int = 48
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    chat: bool = False
    target_model: str | None = None
    draft_model: str | None = None
    artifact: str | None = None
    target_device: str = "auto"
    draft_device: str = "auto"
    dtype: str | None = None
    threads: int | None = None
    emulate: tuple[str, ...] = ()
    target_host: str | None = None
    tls_ca: str | None = None
    token_file: str | None = None
    architectures: tuple[str, ...] = tuple(name for name in NAMES if name not in ON_THIS_MACHINE)
    local: bool = False
    chains: tuple[Policy, ...] = (Chain(2), Chain(4), Chain(8))
    trees: tuple[Policy, ...] = (BestFirst(8, 4), BestFirst(16, 6), BestFirst(32, 8))
    rtt: tuple[float, ...] = (0.0, 40.0)
    jitter: float = 0.0
    bandwidth: float | None = None
    usd_per_hour: float | None = None
    instance: str | None = None
    region: str = "us-east-1"
    no_live: bool = False
    usd_per_kwh: float | None = None
    out: str | None = None
    debug: bool = False

    def __post_init__(self) -> None:
        if self.num_runs < 1:
            raise InvalidRequest(f"--num_runs {self.num_runs}: at least one is needed")
        if (
            not self.rtt
            or not all(0 <= trip < 60_000 for trip in self.rtt)
            or len(set(self.rtt)) < len(self.rtt)
        ):
            raise InvalidRequest(
                f"--rtt {','.join(f'{trip:g}' for trip in self.rtt)}: different milliseconds from "
                "0 to 60000 are needed"
            )
        unknown = set(self.architectures) - set(NAMES)
        if unknown or not self.architectures:
            raise InvalidRequest(
                f"--architectures {','.join(sorted(unknown))}: there are {', '.join(NAMES)}"
            )
        for name in ("chains", "trees"):
            if not getattr(self, name):
                raise InvalidRequest(f"--{name}: at least one setting is needed")
        if self.target_host and (self.emulate or self.artifact or self.target_device != "auto"):
            raise InvalidRequest(
                "--emulate, --artifact and --target_device are of a target that is started here: "
                "--target_host names one that runs"
            )
        if self.usd_per_hour is not None and (
            self.instance or not 0 < self.usd_per_hour < float("inf")
        ):
            raise InvalidRequest(
                "--usd_per_hour is a price above 0, and takes the place of --instance"
            )

    @property
    def chosen(self) -> tuple[str, ...]:
        """Architectures to run, in the order of the table."""
        return tuple(
            name
            for name in NAMES
            if name in self.architectures or (name in ON_THIS_MACHINE and self.local)
        )

    @property
    def with_local(self) -> bool:
        return any(name in self.chosen for name in ON_THIS_MACHINE)


def _chains(text: str) -> tuple[Policy, ...]:
    return _of_kind(text, Chain, "a chain, such as 4")


def _trees(text: str) -> tuple[Policy, ...]:
    return _of_kind(text, BestFirst, "a tree, such as 16x6")


def _either(text: str) -> tuple[Policy, ...]:
    try:
        return tuple(read_setting(part) for part in text.split(","))
    except InvalidRequest as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _of_kind(text: str, kind: type[Chain] | type[BestFirst], words: str) -> tuple[Policy, ...]:
    policies = _either(text)
    if not all(isinstance(policy, kind) for policy in policies):
        raise argparse.ArgumentTypeError(f"{text!r}: each must be {words}")
    return policies


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


def _words(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _device(name: str) -> str:
    if not is_device(name):
        raise argparse.ArgumentTypeError(
            f"{name!r} is no device: auto, cpu, cuda, cuda:N, neuron or neuron-legacy"
        )
    return name


_add = partial(add_flag, CompareOptions)

_EPILOG = """Without --target_host a target is started on this machine and stopped again; draft and
target then share its cores, so forwards, acceptance and bytes carry over to other machines and
tokens/s do not. Settings: 4 is a chain of 4, 16x6 a tree of 16 nodes and depth 6.

examples:
  python compare_architectures.py                                       the pair that ships here, in
                                                                        under three minutes
  python compare_architectures.py --target_model DIR --draft_model DIR  a real pair
  python compare_architectures.py --rtt 0,20,80 --out DIR \\
    --emulate llama-3.1-8b-trn1.2xlarge-roofline,llama-3.1-8b-trn1.2xlarge-measured
  python compare_architectures.py --target_host HOST:PORT --draft_model DIR \\
    --tls_ca ca.pem --token_file token"""


def parse(arguments: Sequence[str] | None = None) -> CompareOptions:
    """The options of a command line; prints help or a usage error and exits as argparse does."""
    parser = argparse.ArgumentParser(
        prog="compare_architectures.py",
        description=(
            "Architectures side by side: same prompts, seeds and limits, interleaved, "
            "each against its own target-only run."
        ),
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _text_flags(parser.add_argument_group("texts"))
    _model_flags(parser.add_argument_group("models and devices"))
    _arm_flags(parser.add_argument_group("architectures and links"))
    _price_flags(parser.add_argument_group("prices and results"))
    add_gone(parser, "fused", "the draft beside the target chooses its own trees")
    given = vars(parser.parse_args(arguments))
    try:
        return CompareOptions(**given)
    except InvalidRequest as error:
        parser.error(str(error))


def _text_flags(group: argparse._ArgumentGroup) -> None:
    _add(group, "prompt_file", "one prompt a line (default: four pieces of Python)", metavar="FILE")
    _add(
        group,
        "num_runs",
        "runs of each prompt and architecture, interleaved (default: %(default)s)",
        type=int,
    )
    _add(group, "max_new_tokens", "default: %(default)s", type=int)
    _add(group, "temperature", "default: %(default)s", type=float)
    _add(group, "top_p", "default: %(default)s", type=float)
    _add(group, "seed", "prompt i uses seed + i (default: %(default)s)", type=int)
    _add(group, "chat", "apply the model's chat template", action="store_true")


def _model_flags(group: argparse._ArgumentGroup) -> None:
    _add(group, "target_model", "default: the embedded one", metavar="DIR_OR_NAME")
    _add(group, "draft_model", "default: the embedded one", metavar="DIR_OR_NAME")
    _add(group, "artifact", "the compiled target to start", metavar="DIR")
    _add(
        group,
        "target_device",
        "of a target that is started (default: %(default)s)",
        type=_device,
        metavar="DEVICE",
    )
    _add(
        group,
        "draft_device",
        "of the draft in this process (default: %(default)s)",
        type=_device,
        metavar="DEVICE",
    )
    _add(
        group,
        "dtype",
        "default: float32 for the embedded pair, else the checkpoint's",
        choices=PRECISIONS,
    )
    _add(group, "threads", "CPU threads of each process", type=int)
    _add(
        group,
        "emulate",
        "the target's passes take the times of this profile; several: one comparison each",
        type=_words,
        metavar="PROFILE,...",
    )
    _add(
        group,
        "target_host",
        "a running target, best a fused one (default: start one here)",
        metavar="HOST:PORT",
    )
    _add(group, "tls_ca", "authority of its certificate", metavar="FILE")
    _add(group, "token_file", "bearer token for it", metavar="FILE")


def _arm_flags(group: argparse._ArgumentGroup) -> None:
    _add(group, "architectures", f"some of: {', '.join(NAMES)}", type=_words, metavar="NAME,...")
    _add(
        group,
        "local",
        "also the target in this process, without a network: alone, and with a draft beside it",
        action="store_true",
    )
    _add(
        group,
        "chains",
        "settings that the sweep tries for chains; one is not swept (default: 2,4,8)",
        type=_chains,
        metavar="N,...",
    )
    _add(
        group,
        "trees",
        "the same for trees (default: 8x4,16x6,32x8)",
        type=_trees,
        metavar="NxD,...",
    )
    _add(
        group,
        "rtt",
        "round trips to emulate, milliseconds beyond the machine's own (default: 0,40)",
        type=_numbers,
        metavar="MS,...",
    )
    _add(
        group,
        "jitter",
        "up to so many milliseconds more each way (default: %(default)g)",
        type=float,
        metavar="MS",
    )
    _add(
        group,
        "bandwidth",
        "megabits a second each way (default: no limit)",
        type=float,
        metavar="MBIT",
    )


def _price_flags(group: argparse._ArgumentGroup) -> None:
    _add(group, "usd_per_hour", "price of the target's machine", type=float, metavar="USD")
    _add(group, "instance", "the same by EC2 type, such as trn1.2xlarge", metavar="TYPE")
    _add(group, "region", "of --instance (default: %(default)s)")
    _add(group, "no_live", "price from the bundled snapshot: ask nobody", action="store_true")
    _add(group, "usd_per_kwh", "price of this machine's electricity", type=float, metavar="USD")
    _add(group, "out", "write report.md, results.json, results.csv and plots there", metavar="DIR")
    _add(group, "debug", "show tracebacks", action="store_true")
