"""The command line, made from the roles: parsing, help, and errors in one line each."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

from inference.command import USAGE, nearest
from inference.errors import InvalidRequest
from inference.flags.command_line import (
    PREFIX,
    Parser,
    ValueSource,
    add_flag,
    environment,
    read_file,
    resolve,
    with_bare,
)
from inference.flags.group import Flag, Shown, brief, flags_of
from outrider.options.groups import GeneralOptions
from outrider.options.roles import Role
from outrider.options.verbs import OTHER_VERBS, ROLES, VERBS
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
"""Titles of the groups, in the order of the help."""

_SHORT = """{command}: a small draft model runs ahead here, a large target model checks its guesses.
  {command} up qwen2.5-coder             a real pair here: target, draft, endpoint, chat page
  {command} target                       serve the target that ships here
  {command} chat                         chat with it, from another shell
  {command} serve                        an OpenAI-compatible endpoint and a chat page
  {command} run --prompt "def main():"   make one text
  {command} VERB --help                  the common flags of a verb; --help-all lists all
  {command} --help                       all verbs, all flags
  {command} --config FILE                role and flags from a YAML file
"""

_DESCRIPTION = """Outrider: a small draft model runs ahead on this machine, a large target model
elsewhere checks its guesses, and the text is exactly the target's own. Without model flags the pair
that ships with the repository is used. Each flag may also stand in a YAML file (--config) or in the
environment (OUTRIDER_BATCH=8); the command line comes first. - and _ are the same in a flag, and
--no_NAME turns a switch off. `--role ROLE --help` shows the flags of one role, `VERB --help` the
common ones of a verb.

verbs:
"""

EXAMPLES = """examples:
  outrider up                                             names of pairs, and what fits here
  outrider up qwen2.5-coder                               pull it, serve it, open its page
  outrider up --target_host HOST                          its draft here, the target there
  outrider target                                         serve the embedded target on
                                                          127.0.0.1:50051
  outrider run "def main():" --baseline                   draft here, verify there, compare with
                                                          target-only
  outrider target --model DIR --host 0.0.0.0 \\
    --tls_cert cert.pem --tls_key key.pem --token_file token
  outrider run --model DIR --target_host HOST \\
    --tls_ca ca.pem --token_file token --prompt_text prompts.txt
  outrider fused_target                                   target and draft on one host
  outrider fused_client --prompt "def main():"            ask such a host
  outrider cert --host HOST --out certificates            a self-signed pair for --tls_*
  outrider keys --name alice --keys_file keys.json        a key for a client"""


class _Start(GeneralOptions):
    """Flags that are read before the role is known."""

    role: Annotated[str, Shown("ROLE")] | None = None
    """what this process is: one of the roles above"""


def parse(arguments: Sequence[str] | None = None) -> Role:
    """The options of the role that a command line asks for, by --role or by a verb before the rest.

    Prints help or what else is asked to be shown, or an error in one line, and exits.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    verb = words[0] if words and not words[0].startswith("-") else ""
    if verb:
        words = _with_role(verb, words[1:])
    parser, start = _parser(all_flags()), environment(_Start)
    if not words and not start.values:
        parser.exit(USAGE, _SHORT.format(command=_command()))
    try:
        _check_verb(verb)
        given = parser.read(words, ROLES)
        _show_what_is_asked(given.values, verb)
        path = {**start.values, **given.values}.get("config")
        files = [read_file(Path(path))] if path else []
        roles = [
            source.values["role"] for source in (given, start, *files) if "role" in source.values
        ]
        model = _model(roles)
        for source in (given, *files):
            _check_names(model, source, verb)
        _check_environment()
        return resolve(model, [given, environment(model), *files])
    except InvalidRequest as error:
        parser.error(str(error))


def _show_what_is_asked(given: dict[str, Any], verb: str) -> None:
    """Print version or help, and end, where the flags ask for it."""
    role = given.get("role")
    if "version" in given:
        _print_and_end(f"outrider {outrider_version()}\n")
    if "help_all" in given or ("help" in given and not verb):
        _print_and_end(_help(role))
    if "help" in given:
        _print_and_end(_short_help(verb, _model([role])))


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


def roles_of(name: str) -> list[str]:
    """Roles that have this flag."""
    return [role for role, model in ROLES.items() if name in flags_of(model)]


def _with_role(verb: str, rest: list[str]) -> list[str]:
    """A verb's words as flags: its role, and the flag of a value that follows the verb."""
    role = VERBS.get(verb, verb)
    bare = ROLES[role].BARE if role in ROLES else ""
    return ["--role", role, *with_bare(bare, rest)]


def _check_verb(verb: str) -> None:
    """Raise InvalidRequest for a word that is no verb; empty for none."""
    known = (*VERBS, *OTHER_VERBS, *ROLES)
    if verb and verb not in known:
        verbs = ", ".join((*VERBS, *OTHER_VERBS))
        raise InvalidRequest(f"what is {verb}? The verbs are {verbs}{nearest(verb, known)}")


def _model(roles: Sequence[Any]) -> type[Role]:
    """The model of the first of these roles."""
    if not roles:
        raise InvalidRequest(f"--role is needed: one of {', '.join(ROLES)}")
    if roles[0] not in tuple(ROLES):
        asked, known = brief(roles[0]), ", ".join(ROLES)
        raise InvalidRequest(f"--role {asked}: one of {known} is needed{nearest(asked, ROLES)}")
    return ROLES[roles[0]]


def _check_names(model: type[Role], source: ValueSource, verb: str = "") -> None:
    """Raise InvalidRequest for a flag that does not exist or does nothing in this role.

    verb: what the user has called the role; empty for --role
    """
    flags, role = all_flags(), model.model_fields["role"].default
    for name in source.values:
        if name not in flags:
            raise InvalidRequest(f"{source.call(name)} is no flag{nearest(name, flags)}")
        if name not in flags_of(model):
            verbs = {one: known for known, one in VERBS.items()} if verb else {}
            whose = ", ".join(verbs.get(one, one) for one in roles_of(name))
            kind, got = ("", verb) if verb else ("--role ", f"--role {role}")
            raise InvalidRequest(f"{source.call(name)} is for {kind}{whose} (got {got})")


def _check_environment() -> None:
    """Raise InvalidRequest for a variable that no role reads."""
    variables = {f"{PREFIX}{name.upper()}" for name in all_flags()}
    for variable in os.environ:
        if variable.startswith(PREFIX) and variable not in variables:
            raise InvalidRequest(f"{variable} is no flag{nearest(variable, variables)}")


def _parser(flags: Mapping[str, Flag], description: str = "") -> Parser:
    command = _command()
    parser = Parser(command, f"{command} VERB [FLAG VALUE ...]", description, EXAMPLES)
    general, *_ = (parser.titled(title) for title in TITLES)
    for flag in flags.values():
        roles = roles_of(flag.name)
        whose = f" [{', '.join(roles)}]" if 0 < len(roles) < len(ROLES) else ""
        add_flag(parser.titled(flag.title), flag, whose)
    general.add_argument("--version", action="store_true", help="print it, and end")
    general.add_argument("--help_all", action="store_true", help="print the help with all flags")
    general.add_argument("-h", "--help", action="store_true", help="print this, and end")
    return parser


def _help(role: str | None) -> str:
    """The help of one role, or of all roles."""
    flags = all_flags()
    if role is not None:
        flags = {name: flags[name] for name in all_flags() if name in flags_of(_model([role]))}
    verbs = {verb: ROLES[name].__doc__ for verb, name in VERBS.items()} | OTHER_VERBS
    roles = {name: model.__doc__ for name, model in ROLES.items() if name not in VERBS}
    tables = f"{_table(verbs)}\nother roles, which are verbs, too:\n{_table(roles)}"
    return _parser(flags, _DESCRIPTION + tables).format_help()


def _table(lines: Mapping[str, str | None]) -> str:
    return "".join(f"  {name:15}{text}\n" for name, text in lines.items())


def _short_help(verb: str, model: type[Role]) -> str:
    """The help of a verb: its common flags. It fits a screen."""
    flags, command = flags_of(model), _command()
    bare = f" {model.BARE.upper()}" if model.BARE else ""
    usage = f"{command} {verb}{bare} [FLAG VALUE ...]"
    more = f"`{command} {verb} --help-all` lists all {len(flags)} flags."
    parser = Parser(command, usage, str(model.__doc__), more)
    for name in model.COMMON or flags:
        add_flag(parser.titled("common flags"), flags[name])
    return parser.format_help()


def _print_and_end(text: str) -> NoReturn:
    sys.stdout.write(text)
    raise SystemExit(0)


def _command() -> str:
    """The command that started this program."""
    called = Path(sys.argv[0]).name
    return {"outrider": called, "__main__.py": "python -m outrider"}.get(called, "python main.py")
