"""The command line, made from the roles: parsing, help, and errors in one line each."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

from inference.command import USAGE, nearest
from inference.errors import InvalidRequest
from inference.flags.command_line import (
    PREFIX,
    Parser,
    ValueSource,
    environment,
    help_text,
    read_file,
    resolve,
    usage_of,
)
from inference.flags.group import Flag, Shown, brief, flags_of
from outrider.options.groups import GeneralOptions
from outrider.options.roles import Role
from outrider.options.verbs import OTHER_VERBS, ROLES, VERBS, overview, verb_of
from outrider.version import outrider_version

Roles = TypeVar("Roles", bound=Role)
TITLES = (
    "general",
    "models and devices",
    "text",
    "drafting",
    "prices and limits",
    "network",
    "security",
    "observing",
)
"""Titles of the groups, in the order of docs/flags.md."""


class _Start(GeneralOptions):
    """Flags that are read before the role is known."""

    role: Annotated[str, Shown("ROLE")] | None = None
    """role of this process: draft is `outrider run`, all others are commands of the same name"""


def parse(arguments: Sequence[str] | None = None) -> Role:
    """The options of the role that a command line asks for, by --role or by a verb before the rest.

    Prints help or an error in one line, and exits.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    verb = words[0] if words and not words[0].startswith("-") else ""
    role = VERBS.get(verb, verb)
    if verb:
        words = ["--role", role, *words[1:]]
    parser, start = _parser(verb), environment(_Start)
    if not words and not start.values:
        parser.exit(USAGE, "\n".join(overview()) + "\n")
    try:
        _check_verb(verb)
        given = parser.read(words, ROLES[role].BARE.split() if verb else (), ROLES)
        _show_what_is_asked(given.values)
        path = {**start.values, **given.values}.get("config")
        files = [read_file(Path(path))] if path else []
        roles = [
            source.values["role"] for source in (given, start, *files) if "role" in source.values
        ]
        model = _model(roles)
        for source in (given, *files):
            _check_names(model, source)
        _check_environment()
        return resolve(model, [given, environment(model), *files])
    except InvalidRequest as error:
        parser.error(str(error))


def _show_what_is_asked(given: dict[str, Any]) -> None:
    """Print version or help, and end, where the flags ask for it."""
    if "version" in given:
        _print_and_end(f"outrider {outrider_version()}")
    every = "help_all" in given
    if not every and "help" not in given:
        return
    if "role" not in given:
        _print_and_end("\n".join(overview()))
    model = _model([given["role"]])
    command = f"outrider {verb_of(given['role'])}"
    _print_and_end(help_text(model, command, str(model.__doc__), every=every, titles=TITLES))


def from_file(role: type[Roles], source: ValueSource) -> Roles:
    """The options of a role that a file gives, without command line and environment."""
    _check_names(role, source)
    return resolve(role, [source])


@cache
def all_flags() -> dict[str, Flag]:
    """The flags of all roles, by name."""
    flags = flags_of(_Start)
    for model in ROLES.values():
        flags = {**flags_of(model), **flags}
    return flags


def verbs_with(name: str) -> list[str]:
    """Commands that have this flag."""
    return [verb for verb, role in VERBS.items() if name in flags_of(ROLES[role])]


def _check_verb(verb: str) -> None:
    """Raise InvalidRequest for a word that is no verb; empty for none."""
    known = (*VERBS, *OTHER_VERBS)
    if verb and verb not in known:
        meant = nearest(verb, known) or ": `outrider --help` lists the commands"
        raise InvalidRequest(f"unknown command {verb!r}{meant}")


def _model(roles: Sequence[Any]) -> type[Role]:
    """The model of the first of these roles."""
    if not roles:
        raise InvalidRequest(f"a command is needed, or --role: one of {', '.join(ROLES)}")
    if roles[0] not in tuple(ROLES):
        asked, known = brief(roles[0]), ", ".join(ROLES)
        raise InvalidRequest(f"--role {asked}: one of {known} is needed{nearest(asked, ROLES)}")
    return ROLES[roles[0]]


def _check_names(model: type[Role], source: ValueSource) -> None:
    """Raise InvalidRequest for a flag that does not exist or does nothing in this role."""
    flags, role = all_flags(), model.model_fields["role"].default
    for name in source.values:
        if name not in flags:
            raise InvalidRequest(f"there is no flag {source.call(name)}{nearest(name, flags)}")
        if name not in flags_of(model):
            others = ", ".join(verbs_with(name))
            raise InvalidRequest(f"{source.call(name)} is for {others} (got {verb_of(role)})")


def _check_environment() -> None:
    """Raise InvalidRequest for a variable that no role reads."""
    variables = {f"{PREFIX}{name.upper()}" for name in all_flags()}
    for variable in os.environ:
        if variable.startswith(PREFIX) and variable not in variables:
            raise InvalidRequest(f"there is no flag for {variable}{nearest(variable, variables)}")


def _parser(verb: str) -> Parser:
    """A parser of the flags of all roles: one of another role is told from a mistyped one."""
    command = f"outrider {verb}".strip()
    parser = Parser(command, usage_of(command))
    parser.add_flags(all_flags().values())
    for name in ("--version", "--help_all"):
        parser.add_argument(name, action="store_true")
    parser.add_argument("-h", "--help", action="store_true")
    return parser


def _print_and_end(text: str) -> NoReturn:
    print(text, flush=True)
    raise SystemExit(0)
