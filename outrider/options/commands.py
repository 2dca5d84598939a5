"""The commands by name, and the command line: a command, or --role, followed by its flags."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

from inference.command import USAGE, nearest
from inference.errors import InvalidRequest
from inference.flags.command_line import (
    PREFIX,
    Elsewhere,
    ValueSource,
    check_names,
    fail,
    parse_flags,
    read_file,
    resolve,
    underscored,
)
from inference.flags.group import Flag, brief, flags_of
from outrider.installation import outrider_version
from outrider.options.roles import ROLES, Role

OTHER_VERBS = {
    "demo": "race a draft against the target alone, with an emulated target",
    "compile": "build a target for Trainium, Inferentia or a CPU",
    "compare": "measure architectures side by side over an emulated link",
    "bench": "measure drafting methods on prompt sets",
    "recommend": "measure which draft suits a target and this machine",
    "prove": "check losslessness and speed on this device",
    "runs": "run the experiments and sweeps of a file",
    "deploy": "run targets on AWS: plan, start, inspect, remove, prices",
}
"""Commands that are not roles, and their help texts."""

GROUPS = {
    "Use": ("up", "run", "chat", "fused_client", "demo", "pull", "list", "doctor"),
    "Serve": ("target", "serve", "fused_target", "cert", "keys"),
    "Measure": ("recommend", "bench", "compare", "prove", "runs", "verify_target", "verify_draft"),
    "AWS": ("compile", "deploy"),
}
"""The commands in each group of the help."""


def verb_of(role: str) -> str:
    """Return the command of a role: the same name, except that draft is `run`."""
    return "run" if role == "draft" else role


VERBS = {verb_of(role): role for role in ROLES}
"""The role of each command that is a role."""


def overview() -> Iterator[str]:
    """Yield the lines of the help that is shown without a command."""
    yield "usage: outrider COMMAND [FLAG VALUE ...]"
    yield ""
    yield "A small draft model on this machine runs ahead of a large target model elsewhere. The"
    yield "text is exactly the target's own. The default is the pair that ships with Outrider."
    for title, verbs in GROUPS.items():
        yield ""
        yield f"{title}:"
        for verb in verbs:
            about = OTHER_VERBS.get(verb) or ROLES[VERBS[verb]].__doc__
            yield f"  {verb:15}{about}"
    yield ""
    yield "Examples:"
    yield "  outrider up qwen2.5-coder              download a pair and open its chat page"
    yield "  outrider target                        serve the target that ships with Outrider"
    yield '  outrider run "def main():" --baseline  generate with it, from another shell'
    yield ""
    yield "`outrider COMMAND --help` shows a command's common flags, `--help-all` all of them."
    yield "Flags may also be set in a YAML file (--config FILE) or in the environment"
    yield "(OUTRIDER_BATCH=8); --no_NAME turns a switch off."


Roles = TypeVar("Roles", bound=Role)


def parse(arguments: Sequence[str] | None = None) -> Role:
    """Parse a command line into options. Prints and exits for help, and for an error (one line)."""
    words = [underscored(word) for word in (sys.argv[1:] if arguments is None else arguments)]
    verb = words.pop(0) if words and not words[0].startswith("-") else ""
    if words == ["--version"] and not verb:
        print(f"outrider {outrider_version()}")
        raise SystemExit(0)
    try:
        role = _role_of(verb) if verb else _start_role(words)
        _check_environment()
    except InvalidRequest as error:
        fail("outrider", str(error))
    if not role:
        lines = "\n".join(overview())
        print(lines, file=sys.stdout if words else sys.stderr, flush=True)
        raise SystemExit(0 if words else USAGE)
    command = f"outrider {verb_of(role)}"
    return parse_flags(ROLES[role], command, words, elsewhere=_others_than(role))


def _others_than(role: str) -> Elsewhere:
    """Return a function that explains a flag which only other roles have."""

    def explain(name: str) -> str:
        commands = ", ".join(verbs_with(name) or verbs_with(name.removeprefix("no_")))
        return commands and f"is for {commands} (got {verb_of(role)})"

    return explain


def _role_of(verb: str) -> str:
    """Return the role of a command. Raises InvalidRequest for an unknown command."""
    if verb not in VERBS:
        hint = nearest(verb, (*VERBS, *OTHER_VERBS)) or ": `outrider --help` lists the commands"
        raise InvalidRequest(f"unknown command {verb!r}{hint}")
    return VERBS[verb]


def _start_role(words: Sequence[str]) -> str:
    """Return the role that --role, OUTRIDER_ROLE or --config names; empty to show the help."""
    path = _early(words, "config")
    role = _early(words, "role") or (read_file(Path(path)).values.get("role") if path else None)
    if role is None and (not words or {"-h", "--help", "--help_all"} & {*words}):
        return ""
    if role is None:
        raise InvalidRequest(f"a command is needed, or --role: one of {', '.join(ROLES)}")
    if not isinstance(role, str) or role not in ROLES:
        got, names = brief(role), ", ".join(ROLES)
        raise InvalidRequest(f"--role {got}: one of {names} is needed{nearest(got, ROLES)}")
    return role


def _early(words: Sequence[str], name: str) -> str | None:
    """Read the value of a flag before the role is known."""
    for word, following in zip(words, [*words[1:], ""], strict=False):
        flag, equals, value = word.partition("=")
        if flag == f"--{name}":
            return value if equals else following
    return os.environ.get(f"{PREFIX}{name.upper()}")


def from_file(role: type[Roles], source: ValueSource) -> Roles:
    """Read a role's options from a file only, not from the command line or environment."""
    check_names(role, source, _others_than(role.model_fields["role"].default))
    return resolve(role, [source])


@cache
def all_flags() -> dict[str, Flag]:
    """Return the flags of all roles, by name."""
    flags: dict[str, Flag] = {}
    for model in ROLES.values():
        flags = {**flags_of(model), **flags}
    return flags


def verbs_with(name: str) -> list[str]:
    """Return the commands that have this flag."""
    return [verb for verb, role in VERBS.items() if name in flags_of(ROLES[role])]


def _check_environment() -> None:
    """Raise InvalidRequest for an OUTRIDER_ variable that is no role's flag."""
    variables = {f"{PREFIX}{name.upper()}" for name in all_flags()}
    for variable in os.environ:
        if variable.startswith(PREFIX) and variable not in variables:
            raise InvalidRequest(f"there is no flag for {variable}{nearest(variable, variables)}")
