"""The command line: the command, or --role, chooses the options; the rest are its flags."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
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
from outrider.options.roles import Role
from outrider.options.verbs import OTHER_VERBS, ROLES, VERBS, overview, verb_of
from outrider.version import outrider_version

Roles = TypeVar("Roles", bound=Role)


def parse(arguments: Sequence[str] | None = None) -> Role:
    """The options of a command line. Prints help or an error in one line, and exits."""
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
    """Explains flags that only other roles have."""

    def explain(name: str) -> str:
        commands = ", ".join(verbs_with(name) or verbs_with(name.removeprefix("no_")))
        return commands and f"is for {commands} (got {verb_of(role)})"

    return explain


def _role_of(verb: str) -> str:
    """The role of a command. Raises InvalidRequest for a word that is no command."""
    if verb not in VERBS:
        hint = nearest(verb, (*VERBS, *OTHER_VERBS)) or ": `outrider --help` lists the commands"
        raise InvalidRequest(f"unknown command {verb!r}{hint}")
    return VERBS[verb]


def _start_role(words: Sequence[str]) -> str:
    """The role that --role, OUTRIDER_ROLE or a file names; empty where help is to be shown."""
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
    """The value of a flag that is read before the role is known."""
    for word, following in zip(words, [*words[1:], ""], strict=False):
        flag, equals, value = word.partition("=")
        if flag == f"--{name}":
            return value if equals else following
    return os.environ.get(f"{PREFIX}{name.upper()}")


def from_file(role: type[Roles], source: ValueSource) -> Roles:
    """The options of a role that a file gives, without command line and environment."""
    check_names(role, source, _others_than(role.model_fields["role"].default))
    return resolve(role, [source])


@cache
def all_flags() -> dict[str, Flag]:
    """The flags of all roles, by name."""
    flags: dict[str, Flag] = {}
    for model in ROLES.values():
        flags = {**flags_of(model), **flags}
    return flags


def verbs_with(name: str) -> list[str]:
    """Commands that have this flag."""
    return [verb for verb, role in VERBS.items() if name in flags_of(ROLES[role])]


def _check_environment() -> None:
    """Raise InvalidRequest for a variable that no role reads."""
    variables = {f"{PREFIX}{name.upper()}" for name in all_flags()}
    for variable in os.environ:
        if variable.startswith(PREFIX) and variable not in variables:
            raise InvalidRequest(f"there is no flag for {variable}{nearest(variable, variables)}")
