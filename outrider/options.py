"""Every flag of the command line, its default and its meaning, in one flat frozen record."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

ROLES = ("target", "draft", "verify_target", "verify_draft", "make-cert")
DEVICES = ("auto", "cpu", "cuda", "neuron")
PRECISIONS = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Options:
    """What the user asked for; argparse reads the defaults from here."""

    role: str = "draft"
    model: str | None = None
    draft_model: str | None = None
    target_model: str | None = None
    artifact: str | None = None
    device: str = "auto"
    dtype: str | None = None
    threads: int | None = None
    batch: int = 4
    sequence_length: int | None = None
    max_tree_nodes: int = 64
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
    baseline: bool = False
    json: bool = False
    profile: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_ca: str | None = None
    tls: bool = False
    token_file: str | None = None
    insecure: bool = False
    out: str = "certificates"
    debug: bool = False


_DESCRIPTION = """Outrider: a small draft model runs ahead on this machine, a large target model elsewhere checks its guesses,
and the text is exactly the target's own. Without model flags the pair that ships with the repository is used."""

_EXAMPLES = """examples:
  python main.py --role target                                        serve the embedded target on 127.0.0.1:50051
  python main.py --role draft --prompt "def main():" --baseline       draft here, verify there, compare with target-only
  python main.py --role target --model DIR --host 0.0.0.0 --tls_cert cert.pem --tls_key key.pem --token_file token
  python main.py --role draft --model DIR --target_host HOST --tls_ca ca.pem --token_file token --prompt_text prompts.txt
  python main.py --role verify_target --prompt "def main():"          the target alone, in this process
  python main.py --role make-cert --host HOST --out certificates      a self-signed pair for --tls_*"""


def parse(arguments: Sequence[str] | None = None) -> Options:
    """The options of a command line; prints help or a usage error and exits as argparse does."""
    parser = argparse.ArgumentParser(
        prog="main.py", description=_DESCRIPTION, epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    _add(parser, "role", "what this process is", choices=ROLES, required=True)
    _model_flags(parser.add_argument_group("models and devices"))
    _text_flags(parser.add_argument_group("text (draft, verify_target, verify_draft)"))
    _tree_flags(parser.add_argument_group("drafting (draft)"))
    _network_flags(parser.add_argument_group("network"))
    _add(parser, "debug", "show tracebacks", action="store_true")
    return Options(**vars(parser.parse_args(arguments)))


def _model_flags(group: argparse._ArgumentGroup) -> None:
    _add(group, "model", "model directory or hub name (default: the embedded model of the role)", metavar="DIR_OR_NAME")
    _add(group, "draft_model", "the same for roles draft and verify_draft", metavar="DIR_OR_NAME")
    _add(group, "target_model", "the same for roles target and verify_target", metavar="DIR_OR_NAME")
    _add(group, "artifact", "target, verify_target: serve this compiled target (python -m compile) instead of a model", metavar="DIR")
    _add(group, "device", "auto takes CUDA where there is one (default: %(default)s)", choices=DEVICES)
    _add(group, "dtype", "default: float32 for the embedded pair, else the checkpoint's", choices=PRECISIONS)
    _add(group, "threads", "CPU threads (default: one for small models, else torch's choice)", type=int)
    _add(group, "batch", "sequences held at once: KV rows of the target, prompts drafted at once (default: %(default)s)", type=int)
    _add(group, "sequence_length", "prompt and output together (default: the smaller of 2048 and the model's limit)", type=int)
    _add(group, "max_tree_nodes", "target: largest tree taken, its root included (default: %(default)s)", type=int)


def _text_flags(group: argparse._ArgumentGroup) -> None:
    _add(group, "prompt", "raw text; the tokenizer's beginning-of-text token is put in front where it defines one")
    _add(group, "prompt_text", "one prompt a line, --batch of them at once", metavar="FILE")
    _add(group, "chat", "apply the model's chat template to the prompt", action="store_true")
    _add(group, "max_new_tokens", "default: %(default)s", type=int)
    _add(group, "temperature", "0 is greedy (default: %(default)s)", type=float)
    _add(group, "top_p", "1 is off (default: %(default)s)", type=float)
    _add(group, "top_k", "0 is off, at most 256 (default: %(default)s)", type=int)
    _add(group, "seed", "prompt i uses seed + i (default: random, printed)", type=int)
    _add(group, "json", "one JSON object a prompt on stdout, and nothing else there", action="store_true")
    _add(group, "profile", "write outrider-profile.csv and .json into DIR (default: here)", nargs="?", const=".", metavar="DIR")


def _tree_flags(group: argparse._ArgumentGroup) -> None:
    _add(group, "gamma", "draft a chain of this length", type=int)
    _add(group, "tree_nodes", "draft a tree of this many nodes (default: 16)", type=int)
    _add(group, "tree_depth", "and this depth (default: 6)", type=int)
    _add(group, "tree_rates", "a tree of fixed shape, the best for these acceptance rates by rank, such as 0.6,0.15,0.05", metavar="R,R,...")
    _add(group, "baseline", "also run target-only with the same prompt and seed, for the speed-up", action="store_true")


def _network_flags(group: argparse._ArgumentGroup) -> None:
    _add(group, "host", "target: address to listen on; make-cert: name in the certificate (default: %(default)s)")
    _add(group, "port", "of the target; 0 lets the system choose (default: %(default)s)", type=int)
    _add(group, "target_host", "draft: where the target is, HOST or HOST:PORT (default: %(default)s)", metavar="HOST")
    _add(group, "tls_cert", "certificate of this side; a target needs one for TLS", metavar="FILE")
    _add(group, "tls_key", "its private key", metavar="FILE")
    _add(group, "tls_ca", "authority that signed the other side's certificate; a target given one demands client certificates", metavar="FILE")
    _add(group, "tls", "draft: TLS with the system's authorities", action="store_true")
    _add(group, "token_file", "file whose first line is the bearer token", metavar="FILE")
    _add(group, "insecure", "go without TLS and token beyond this machine", action="store_true")
    _add(group, "out", "make-cert: directory to write to (default: %(default)s)", metavar="DIR")


def _add(group: argparse._ActionsContainer, name: str, text: str, **settings: Any) -> None:
    """A flag under its underscore and its dash spelling, with the default of Options."""
    spellings = dict.fromkeys([f"--{name}", f"--{name.replace('_', '-')}"])
    default = next(entry.default for entry in fields(Options) if entry.name == name)
    group.add_argument(*spellings, dest=name, default=default, help=text, **settings)
