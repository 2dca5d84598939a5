"""Every flag of the command line, its default and its meaning, in one flat frozen record."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from grpc_comm.transport import read_port
from inference.command import add_flag, add_gone
from inference.cost.accounting import OBJECTIVES
from inference.errors import InvalidRequest

SERVING, ASKING = ("target", "fused_target"), ("draft", "fused_client")
ROLES = (
    "target",
    "draft",
    "fused_target",
    "fused_client",
    "verify_target",
    "verify_draft",
    "make-cert",
    "make-key",
)
DEVICES = ("auto", "cpu", "cuda", "neuron", "neuron-legacy")
TREES = ("gamma", "tree_nodes", "tree_depth", "tree_rates")
PACES = ("go_on", "wait")
GONE = {
    "architecture": (
        "the target goes on by itself and takes whatever the draft proposes, so there is nothing "
        "to choose; --role fused_client asks for the draft beside the target"
    ),
    "no_bets": (
        "the draft never waits for an answer, so it bets on none; --pace wait lets the target wait"
    ),
    "acceptance": "every text is the target's own seeded one, as --acceptance match made it",
}
"""Flags of earlier versions, and what replaced them."""

PRICINGS = ("on-demand", "spot", "capacity-block")
PRECISIONS = ("float32", "bfloat16", "float16")
LOG_FORMS = ("text", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True)
class Options:
    """What the user asked for; argparse reads the defaults from here."""

    role: str = "draft"
    model: str | None = None
    draft_model: str | None = None
    target_model: str | None = None
    artifact: str | None = None
    models: str | None = None
    model_name: str | None = None
    list_models: bool = False
    device: str = "auto"
    dtype: str | None = None
    threads: int | None = None
    tensor_parallel: int = 2
    batch: int = 4
    sequence_length: int | None = None
    max_tree_nodes: int = 64
    emulate: str | None = None
    host: str = "127.0.0.1"
    port: int = 50051
    target_host: str = "127.0.0.1"
    prompt: str | None = None
    prompt_text: str | None = None
    chat: bool = False
    max_new_tokens: int = 128
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    gamma: int | None = None
    tree_nodes: int | None = None
    tree_depth: int | None = None
    tree_rates: str | None = None
    pace: str | None = None
    cs: str = "tps"
    objective: str | None = None
    min_tps: float | None = None
    max_usd_per_1m: float | None = None
    max_joules_per_token: float | None = None
    max_usd: float | None = None
    explain: bool = False
    instance: str | None = None
    region: str = "us-east-1"
    pricing: str = "on-demand"
    no_live: bool = False
    target_share: float = 1.0
    usd_per_kwh: float | None = None
    usd_per_gb_up: float | None = None
    usd_per_gb_down: float | None = None
    draft_watts: float | None = None
    target_watts: float | None = None
    baseline: bool = False
    calibrate: bool = False
    json: bool = False
    profile: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_ca: str | None = None
    tls: bool = False
    token_file: str | None = None
    keys_file: str | None = None
    name: str | None = None
    insecure: bool = False
    waiting: int = 64
    lease: float = 15.0
    grace: float = 5.0
    share_prefixes: bool = False
    reflection: bool = False
    patience: float = 30.0
    offline: str = "wait"
    out: str = "certificates"
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    log: str = "text"
    log_level: str = "warning"
    watch: bool = False
    usd_per_hour: float | None = None
    debug: bool = False

    @property
    def fixed_tree(self) -> bool:
        """The command line says what trees are drafted."""
        return any(getattr(self, name) is not None for name in TREES)

    @property
    def waits(self) -> bool:
        """The target makes a forward only when a whole tree is drafted."""
        return self.fixed_tree or self.pace == "wait"


_add = partial(add_flag, Options)

_DESCRIPTION = """Outrider: a small draft model runs ahead on this machine, a large target model
elsewhere checks its guesses, and the text is exactly the target's own. Without model flags the pair
that ships with the repository is used."""

_EXAMPLES = """examples:
  python main.py --role target                                        serve the embedded target on
                                                                      127.0.0.1:50051
  python main.py --role draft --prompt "def main():" --baseline       draft here, verify there,
                                                                      compare with target-only
  python main.py --role target --model DIR --host 0.0.0.0 \\
    --tls_cert cert.pem --tls_key key.pem --token_file token
  python main.py --role draft --model DIR --target_host HOST \\
    --tls_ca ca.pem --token_file token --prompt_text prompts.txt
  python main.py --role fused_target                                  target and draft on one host;
                                                                      text comes back as it is made
  python main.py --role fused_client --prompt "def main():"           ask such a host
  python main.py --role verify_target --prompt "def main():"          the target alone, in this
                                                                      process
  python main.py --role make-cert --host HOST --out certificates      a self-signed pair for --tls_*
  python main.py --role make-key --name alice --keys_file keys.json   a key for a client; its token
                                                                      is printed once"""


def parse(arguments: Sequence[str] | None = None) -> Options:
    """The options of a command line; prints help or a usage error and exits as argparse does."""
    parser = argparse.ArgumentParser(
        prog="main.py",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add(parser, "role", "what this process is", choices=ROLES, required=True)
    _model_flags(parser.add_argument_group("models and devices"))
    _text_flags(parser.add_argument_group("text (draft, verify_target, verify_draft)"))
    _tree_flags(
        parser.add_argument_group(
            "drafting (draft): the target goes on by itself and takes what the draft proposes, "
            "unless it is told to wait for whole trees"
        )
    )
    _wish_flags(parser.add_argument_group("prices and limits (draft)"))
    _network_flags(parser.add_argument_group("network"))
    _observing_flags(parser.add_argument_group("observing (target)"))
    _add(parser, "debug", "show tracebacks", action="store_true")
    for name, why in GONE.items():
        add_gone(parser, name, why)
    options = Options(**vars(parser.parse_args(arguments)))
    if options.emulate and options.role not in SERVING:
        parser.error(
            "--emulate is for --role target: a draft reports the device of the target that it is "
            f"given (got --role {options.role})"
        )
    _check_listing(parser, options)
    _check_observing(parser, options)
    _check_wishes(parser, options)
    return options


def is_device(name: str) -> bool:
    """Whether it can be a --device: one of DEVICES, or cuda:N."""
    return name in DEVICES or re.fullmatch(r"cuda:\d{1,3}", name) is not None


def _device(name: str) -> str:
    if not is_device(name):
        raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(DEVICES)}, cuda:N")
    return name


def _port(text: str) -> int:
    try:
        return read_port(text)
    except InvalidRequest as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _model_flags(group: argparse._ArgumentGroup) -> None:
    _add(
        group,
        "model",
        "model directory or hub name (default: the embedded model of the role)",
        metavar="DIR_OR_NAME",
    )
    _add(group, "draft_model", "the same for roles draft and verify_draft", metavar="DIR_OR_NAME")
    _add(
        group, "target_model", "the same for roles target and verify_target", metavar="DIR_OR_NAME"
    )
    _add(
        group,
        "artifact",
        "target, fused_target, verify_target: serve this compiled target (python -m compile) "
        "instead of a model",
        metavar="DIR",
    )
    listed = (
        "target: also serve the models listed in this JSON file, each loaded when a client "
        "first names it (outrider/listed.py)"
    )
    _add(group, "models", listed, metavar="FILE")
    _add(
        group,
        "model_name",
        "draft: use this one of the models that the target lists (default: its first)",
        metavar="NAME",
    )
    _add(
        group,
        "list_models",
        "draft: print the names of the models that the target lists, and end",
        action="store_true",
    )
    device = (
        f"{', '.join(DEVICES)} or cuda:N; auto takes CUDA where there is one (default: %(default)s)"
    )
    _add(group, "device", device, type=_device, metavar="DEVICE")
    _add(
        group,
        "dtype",
        "default: float32 for the embedded pair, else the checkpoint's",
        choices=PRECISIONS,
    )
    _add(
        group,
        "threads",
        "CPU threads (default: one for small models, else torch's choice)",
        type=int,
    )
    _add(
        group,
        "tensor_parallel",
        "neuron-legacy: NeuronCores that share the target (default: %(default)s)",
        alias="tp_degree",
        type=int,
    )
    _add(
        group,
        "batch",
        "sequences held at once: KV rows of the target, prompts drafted at once (default: "
        "%(default)s)",
        type=int,
    )
    _add(
        group,
        "sequence_length",
        "prompt and output together (default: the smaller of 2048 and the model's limit)",
        type=int,
    )
    _add(
        group,
        "max_tree_nodes",
        "target: largest tree taken, its root included (default: %(default)s)",
        type=int,
    )
    emulate = (
        "target: the model chooses, each pass takes the time of this profile; all that is "
        "reported says emulated (unknown names list them)"
    )
    _add(group, "emulate", emulate, metavar="PROFILE")
    calibrate = (
        "measure the models of this role afresh (a draft: and the link, if a target "
        "answers), print and keep what was found, and end"
    )
    _add(group, "calibrate", calibrate, action="store_true")


def _text_flags(group: argparse._ArgumentGroup) -> None:
    _add(
        group,
        "prompt",
        "raw text; the tokenizer's beginning-of-text token is put in front where it defines one",
    )
    _add(group, "prompt_text", "one prompt a line, --batch of them at once", metavar="FILE")
    _add(group, "chat", "apply the model's chat template to the prompt", action="store_true")
    _add(group, "max_new_tokens", "default: %(default)s", type=int)
    _add(group, "temperature", "0 is greedy (default: %(default)s)", type=float)
    _add(group, "top_p", "1 is off (default: %(default)s)", type=float)
    _add(group, "top_k", "0 is off, at most 256 (default: %(default)s)", type=int)
    _add(group, "seed", "prompt i uses seed + i (default: random, printed)", type=int)
    _add(
        group,
        "json",
        "one JSON object a prompt on stdout, and nothing else there",
        action="store_true",
    )
    _add(
        group,
        "profile",
        "write outrider-profile.csv and .json into DIR (default: here)",
        nargs="?",
        const=".",
        metavar="DIR",
    )


def _tree_flags(group: argparse._ArgumentGroup) -> None:
    _add(
        group,
        "gamma",
        "rounds: the target waits for a chain of this length",
        alias="speculation_length",
        type=int,
    )
    _add(
        group,
        "tree_nodes",
        "rounds with trees of this many nodes (default of --pace wait and beside --tree_depth: 16)",
        type=int,
    )
    _add(group, "tree_depth", "and this depth (default: 6)", type=int)
    _add(
        group,
        "tree_rates",
        "a tree of fixed shape, the best for these acceptance rates by rank, such as 0.6,0.15,0.05",
        metavar="R,R,...",
    )
    pace = (
        "go_on: the target waits for nobody (default); wait: for whole trees, which takes fewer "
        "of its forwards"
    )
    _add(group, "pace", pace, choices=PACES)
    _add(
        group,
        "baseline",
        "also run target-only with the same prompt and seed, for the speed-up",
        action="store_true",
    )


def _wish_flags(group: argparse._ArgumentGroup) -> None:
    _add(
        group,
        "cs",
        "cost against speed: tps, balanced, cost or 0 to 100 (default: %(default)s)",
        metavar="KNOB",
    )
    objective = (
        f"what cost is: {', '.join(OBJECTIVES)} (default: total_cost where all its prices "
        "are given, else api_cost)"
    )
    _add(group, "objective", objective, choices=OBJECTIVES, metavar="NAME")
    _add(
        group,
        "min_tps",
        "tokens a second that must be kept, at least cost",
        type=float,
        metavar="N",
    )
    _add(
        group,
        "max_usd_per_1m",
        "US dollars a million tokens that must be kept, at most speed",
        type=float,
        metavar="USD",
    )
    _add(group, "max_joules_per_token", "the same in joules", type=float, metavar="J")
    _add(
        group,
        "max_usd",
        "end the run, with what was made, when it has cost so much",
        type=float,
        metavar="USD",
    )
    _add(
        group,
        "explain",
        "say on stderr what a token costs, what limits it and what would change that",
        action="store_true",
    )
    _add(group, "instance", "price the target by EC2 type, such as trn1.2xlarge", metavar="TYPE")
    _add(group, "region", "of --instance (default: %(default)s)")
    _add(group, "pricing", "of --instance (default: %(default)s)", choices=PRICINGS)
    _add(group, "no_live", "price from the bundled snapshot: ask nobody", action="store_true")
    _add(
        group,
        "target_share",
        "part of the target's hour that is charged: 1/n where n such sessions share it (default: "
        "%(default)g)",
        type=float,
    )
    _add(group, "usd_per_kwh", "price of this machine's electricity", type=float, metavar="USD")
    _add(
        group,
        "usd_per_gb_up",
        "price of traffic to the target (default: that of --instance)",
        type=float,
        metavar="USD",
    )
    _add(group, "usd_per_gb_down", "and from it", type=float, metavar="USD")
    _add(group, "draft_watts", "what this machine draws while it drafts", type=float, metavar="W")
    _add(group, "target_watts", "what the target's machine draws", type=float, metavar="W")


def _network_flags(group: argparse._ArgumentGroup) -> None:
    _add(
        group,
        "host",
        "target: address to listen on; make-cert: name in the certificate (default: %(default)s)",
    )
    port = "of the target; 0 lets the system choose (default: %(default)s)"
    _add(group, "port", port, type=_port, metavar="PORT")
    _add(
        group,
        "target_host",
        "draft: where the target is, HOST or HOST:PORT; several of one model: A,B (default: "
        "%(default)s)",
        metavar="HOST",
    )
    _add(
        group,
        "patience",
        "draft: seconds to look for a target that is full or went away (default: %(default)s)",
        type=float,
    )
    _add(
        group,
        "offline",
        "draft: while the target is away, wait, or go on with the draft's own text, corrected "
        "later",
        choices=("wait", "draft"),
    )
    _add(
        group,
        "waiting",
        "target: sessions that may stand in line for a row (default: %(default)s)",
        type=int,
    )
    _add(
        group,
        "lease",
        "target: seconds that a silent client's session is held (default: %(default)s)",
        type=float,
    )
    _add(
        group,
        "grace",
        "target: seconds that sessions have to leave after the first signal (default: %(default)s)",
        type=float,
    )
    _add(
        group,
        "share_prefixes",
        "target: sessions may start from the prompts of other keys",
        action="store_true",
    )
    _add(
        group,
        "reflection",
        "target: tell callers the protocol (gRPC reflection)",
        action="store_true",
    )
    _add(group, "tls_cert", "certificate of this side; a target needs one for TLS", metavar="FILE")
    _add(group, "tls_key", "its private key", metavar="FILE")
    _add(
        group,
        "tls_ca",
        "authority that signed the other side's certificate; a target given one demands client "
        "certificates",
        metavar="FILE",
    )
    _add(group, "tls", "draft: TLS with the system's authorities", action="store_true")
    _add(group, "token_file", "file whose first line is the bearer token", metavar="FILE")
    keys = (
        "target: its clients' keys, each with limits; make-key: the file that the key is added to"
    )
    _add(group, "keys_file", keys, metavar="FILE")
    _add(group, "name", "make-key: whose key it is")
    _add(group, "insecure", "go without TLS and token beyond this machine", action="store_true")
    _add(group, "out", "make-cert: directory to write to (default: %(default)s)", metavar="DIR")


def _check_listing(parser: argparse.ArgumentParser, options: Options) -> None:
    for name, roles in (
        ("models", SERVING),
        ("model_name", ASKING),
        ("list_models", ("draft",)),
        ("calibrate", ("draft", *SERVING)),
    ):
        if getattr(options, name) and options.role not in roles:
            parser.error(
                f"--{name} is for --role {' and '.join(roles)} (got --role {options.role})"
            )
    if options.calibrate and options.emulate:
        parser.error("--calibrate measures a target, --emulate states its times: give one of them")
    if options.calibrate and options.models:
        parser.error(
            "--calibrate measures one model, --models lists several: name it with --model or "
            "--artifact"
        )


_OBSERVING = ("metrics_port", "metrics_host", "log", "log_level", "watch")
_WISHES = (
    "cs",
    "objective",
    "min_tps",
    "max_usd_per_1m",
    "max_joules_per_token",
    "explain",
)

_AMOUNTS = ("usd_per_kwh", "usd_per_gb_up", "usd_per_gb_down", "draft_watts", "target_watts")


def _observing_flags(group: argparse._ArgumentGroup) -> None:
    metrics = "serve Prometheus metrics and /healthz over HTTP on this port; "
    metrics += "0 lets the system choose"
    _add(group, "metrics_port", metrics, type=_port, metavar="PORT")
    _add(group, "metrics_host", "where they are served (default: %(default)s)", metavar="HOST")
    _add(group, "log", "form of the log on stderr (default: %(default)s)", choices=LOG_FORMS)
    _add(
        group,
        "log_level",
        "info has a line for each session's start and end (default: %(default)s)",
        choices=LOG_LEVELS,
    )
    _add(
        group,
        "watch",
        "show sessions, batch, acceptance and tokens a second on stderr while serving",
        action="store_true",
    )
    price = (
        "price of the target's machine; a target tells its clients, and --watch shows dollars "
        "per million tokens, idle time included"
    )
    _add(group, "usd_per_hour", price, type=float, metavar="USD")


def _check_observing(parser: argparse.ArgumentParser, options: Options) -> None:
    given = [name for name in _OBSERVING if getattr(options, name) != getattr(Options, name)]
    if given and options.role not in SERVING:
        parser.error(f"--{given[0]} is for --role target (got --role {options.role})")
    if "metrics_host" in given and options.metrics_port is None:
        parser.error("--metrics_host needs --metrics_port")
    if options.usd_per_hour is not None and not 0 < options.usd_per_hour < float("inf"):
        parser.error(f"--usd_per_hour is a price above 0 (got {options.usd_per_hour})")


def _check_wishes(parser: argparse.ArgumentParser, options: Options) -> None:
    given = [name for name in _WISHES if getattr(options, name) != getattr(Options, name)]
    if given and options.role != "draft":
        parser.error(f"--{given[0]} is for --role draft (got --role {options.role})")
    _check_pace(parser, options, given)
    if options.max_usd is not None and options.role != "draft":
        parser.error(f"--max_usd is for --role draft (got --role {options.role})")
    if options.instance is not None and options.usd_per_hour is not None:
        parser.error("--instance and --usd_per_hour both price the target: give one of them")
    for name in _AMOUNTS:
        if (amount := getattr(options, name)) is not None and not 0 <= amount < float("inf"):
            parser.error(f"--{name} is 0 or more (got {amount:g})")
    if not 0 < options.target_share <= 1:
        parser.error(
            f"--target_share is above 0, and 1 is the whole target (got {options.target_share:g})"
        )


def _check_pace(parser: argparse.ArgumentParser, options: Options, wishes: Sequence[str]) -> None:
    """wishes: flags of prices and limits that are given."""
    fixed = [name for name in TREES if getattr(options, name) is not None]
    if (fixed or options.pace) and options.role != "draft":
        parser.error(
            f"--{[*fixed, 'pace'][0]} is for --role draft: a draft beside the target chooses its "
            f"own trees (got --role {options.role})"
        )
    if fixed and options.pace == "go_on":
        parser.error(
            f"--{fixed[0]} makes the target wait for whole trees, --pace go_on lets it go on: give "
            "one of them"
        )
    waiting = f"--{fixed[0]}" if fixed else "--pace wait"
    if options.waits and wishes:
        parser.error(
            f"--{wishes[0]} steers a draft that never waits, {waiting} makes rounds: give one of "
            "them"
        )
    if options.waits and options.offline != Options.offline:
        parser.error(
            f"--offline {options.offline} goes on with a draft that never waits, {waiting} makes "
            "rounds: give one of them"
        )
