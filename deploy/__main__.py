"""Runs `outrider deploy VERB`, also called as `python -m deploy VERB`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import NamedTuple, get_type_hints

from inference.command import USAGE, nearest, run_command
from inference.flags.command_line import CommandOptions, parse_flags


class Verb(NamedTuple):
    """A verb: its help text, and its module with EXAMPLES and run(options)."""

    help: str
    module: str


VERBS = {
    "up": Verb("start a target, or continue an interrupted start", "deploy.commands.up"),
    "prove": Verb("check losslessness and speed on a temporary instance", "deploy.commands.prove"),
    "status": Verb("a target's health and cost, its logs and tunnel", "deploy.commands.status"),
    "down": Verb("remove a target and all its resources", "deploy.commands.down"),
    "prices": Verb("hourly prices of instances", "deploy.prices"),
}

_COMMAND = "outrider deploy"


def main(arguments: Sequence[str] | None = None, verbs: Mapping[str, Verb] = VERBS) -> int:
    """Run a verb and return its exit code, 0 for success."""
    verb, options = parse(sys.argv[1:] if arguments is None else arguments, verbs)
    return run_command(lambda: int(verb.run(options)), debug=options.debug)


def parse(
    arguments: Sequence[str], verbs: Mapping[str, Verb] = VERBS
) -> tuple[ModuleType, CommandOptions]:
    """Return the verb's module and its options. Prints help or a one-line error, and exits."""
    name, *rest = arguments or [""]
    if name in ("-h", "--help"):
        print(_help(verbs))
        raise SystemExit(0)
    if name not in verbs:
        hint = nearest(name, verbs)
        problem = f"unknown command {name!r}:" if name else "a command is needed:"
        print(f"{_COMMAND}: error: {problem} one of {', '.join(verbs)}{hint}", file=sys.stderr)
        raise SystemExit(USAGE)
    verb = import_module(verbs[name].module)
    flags = get_type_hints(verb.run)["options"]
    options = parse_flags(flags, f"{_COMMAND} {name}", rest, verb.EXAMPLES)
    return verb, options


def _help(verbs: Mapping[str, Verb]) -> str:
    lines = [f"  {name:10}{verb.help}" for name, verb in verbs.items()]
    head = [f"usage: {_COMMAND} COMMAND [FLAG VALUE ...]", "", "Targets on AWS.", "", "commands:"]
    return "\n".join([*head, *lines, "", f"`{_COMMAND} COMMAND --help` lists a command's flags."])


if __name__ == "__main__":
    sys.exit(main())
