"""Runs `outrider deploy VERB`, also called as `python -m deploy VERB`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

from inference.command import USAGE, nearest, run_command
from outrider.options.verb import VerbOptions, parse_verb

VERBS = {
    "plan": "what `up` would create, and what that costs",
    "up": "start a target, or go on with one that is half made",
    "status": "a target's stack, instance and health, and what it has cost",
    "logs": "what a target's host logged",
    "tunnel": "lead a port of this machine to a target",
    "down": "remove a target with all that was made for it",
    "prices": "what an hour of an instance costs, with source and day",
    "k8s": "print the manifests of a target on Kubernetes",
    "ray": "serve from several replicas behind one address, with Ray Serve",
}
"""Verbs, each a module of deploy/commands, with their help."""

_COMMAND = "outrider deploy"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb. Returns 0 when what was asked was done."""
    verb, options = parse(sys.argv[1:] if arguments is None else arguments)
    return run_command(lambda: int(verb.run(options)), debug=options.debug)


def parse(arguments: Sequence[str]) -> tuple[ModuleType, VerbOptions]:
    """The verb's module, and its options. Prints help or an error in one line, and exits."""
    name, *rest = arguments or [""]
    if name in ("-h", "--help"):
        print(_help())
        raise SystemExit(0)
    if name not in VERBS:
        meant = nearest(name, VERBS)
        asked = f"what is {name}? A COMMAND is" if name else "a COMMAND is needed:"
        print(f"{_COMMAND}: error: {asked} one of {', '.join(VERBS)}{meant}", file=sys.stderr)
        raise SystemExit(USAGE)
    verb = import_module(f"deploy.commands.{name.replace('-', '_')}")
    return verb, parse_verb(verb.OPTIONS, f"{_COMMAND} {name}", rest, verb.EXAMPLES)


def _help() -> str:
    lines = [f"  {name:10}{text}" for name, text in VERBS.items()]
    head = [f"usage: {_COMMAND} COMMAND [FLAG VALUE ...]", "", "Targets on AWS.", "", "commands:"]
    return "\n".join([*head, *lines, "", f"`{_COMMAND} COMMAND --help` lists a command's flags."])


if __name__ == "__main__":
    sys.exit(main())
