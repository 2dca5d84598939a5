"""Parses command lines by groups of flags; formats help and one-line errors.

Precedence: command line, environment (OUTRIDER_...), YAML file, defaults.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import ChainMap
from collections.abc import Callable, Iterable, Sequence
from inspect import getdoc
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, NoReturn, TypeVar

from pydantic import ValidationError

from inference.command import USAGE, nearest, printable
from inference.errors import InvalidRequest
from inference.flags.group import Flag, Group, flags_of, refusal

PREFIX = "OUTRIDER_"

Elsewhere = Callable[[str], str]
"""Explains a flag that a command lacks, such as `is for run`; empty if no command has it."""
Options = TypeVar("Options", bound="CommandOptions")


class ValueSource(NamedTuple):
    """Values by flag name. `label`: how errors refer to a flag, with {} for its name."""

    label: str
    values: dict[str, Any]

    def call(self, name: str) -> str:
        return self.label.format(name.upper() if self.label.startswith(PREFIX) else name)


def environment(model: type[Group]) -> ValueSource:
    """Return the values that the environment sets for this model's flags."""
    variables = {name: f"{PREFIX}{name.upper()}" for name in flags_of(model)}
    values = {name: os.environ[key] for name, key in variables.items() if key in os.environ}
    return ValueSource(PREFIX + "{}", values)


def read_file(path: Path) -> ValueSource:
    """Return the values of a YAML file. Raises InvalidRequest unless all are `flag: value`."""
    values = read_yaml(path, f"--config {path}")
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise InvalidRequest(f"--config {path}: lines such as `batch: 8` are needed")
    return ValueSource(f"{path}: {{}}", {name.replace("-", "_"): values[name] for name in values})


def read_yaml(path: Path, called: str) -> Any:
    """Return a YAML file's content. Raises InvalidRequest. called: the file's name in errors"""
    import yaml  # takes longer than all flags together, and few commands read a file

    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise InvalidRequest(f"{called} cannot be read: {reason}") from error


def resolve(model: type[Options], sources: list[ValueSource]) -> Options:
    """Return the options; an earlier source overrides a later one. Raises InvalidRequest, which
    refers to the flag as its source does.
    """

    def label(name: str) -> str:
        labels = (source.call(name) for source in sources if name in source.values)
        return next(labels, f"--{name}")

    try:
        return model(**ChainMap(*(source.values for source in sources)))
    except InvalidRequest as error:
        if isinstance(error.__cause__, ValidationError):
            raise InvalidRequest(refusal(model, error.__cause__, label)) from error
        raise


class CommandOptions(Group, title="general"):
    """Base of a command's options. Its docstring is the first line of the command's help."""

    BARE: ClassVar[str] = ""
    """Flags whose values may be given without the flag, in this order; empty for none."""
    COMMON: ClassVar[tuple[str, ...]] = ()
    """The flags of the command's short help; empty for all."""

    debug: bool = False
    """show tracebacks"""


def parse_flags(
    model: type[Options],
    command: str,
    arguments: Sequence[str] | None,
    examples: str = "",
    elsewhere: Elsewhere = lambda name: "",
) -> Options:
    """Parse words, or this process's arguments, into options. For help or an error, print it and
    exit. Environment and file are read if the model has the flag `config`.

    command: name of the command, such as `outrider deploy up`
    examples: text at the end of the help
    elsewhere: explains flags that the model lacks
    """
    words = [underscored(word) for word in (sys.argv[1:] if arguments is None else arguments)]
    flags = flags_of(model)
    if {"-h", "--help", "--help_all"} & {*words}:
        print(help_text(model, command, examples, with_all="--help_all" in words), flush=True)
        raise SystemExit(0)
    parser = Parser(command)
    parser.add_flags(flags.values())
    try:
        sources = [parser.read(words, model.BARE.split(), elsewhere)]
        if "config" in flags:
            sources.append(environment(model))
            if path := ChainMap(*(source.values for source in sources)).get("config"):
                sources.append(read_file(Path(path)))
                check_names(model, sources[-1], elsewhere)
        return resolve(model, sources)
    except InvalidRequest as error:
        fail(command, str(error))


def check_names(model: type[Group], source: ValueSource, elsewhere: Elsewhere) -> None:
    """Raise InvalidRequest for a value of a flag that the model lacks."""
    flags = flags_of(model)
    for name in source.values:
        if name not in flags:
            reason = elsewhere(name) or f"is no flag here{nearest(name, flags)}"
            raise InvalidRequest(f"{source.call(name)} {reason}")


def fail(command: str, message: str) -> NoReturn:
    """Print an error about the command line, and exit."""
    print(f"{command}: error: {printable(message)}", file=sys.stderr)
    raise SystemExit(USAGE)


def help_text(model: type[CommandOptions], command: str, examples: str, *, with_all: bool) -> str:
    """Return a command's help: its common flags in groups, or every flag, common ones first."""
    flags, common = flags_of(model), model.COMMON
    shown = common if common and not with_all else dict.fromkeys((*common, *flags))
    hint = f"`{command} --help-all` lists all {len(flags)} flags." if shown is common else ""
    bare = "".join(f" [{name}]" for name in model.BARE.upper().split())
    parser = Parser(
        command,
        usage=f"{command}{bare} [FLAG VALUE ...]",
        description=getdoc(model),
        epilog="\n".join(text for text in (examples, hint) if text),
    )
    parser.add_flags(flags[name] for name in shown)
    return parser.format_help().rstrip()


class Parser(argparse.ArgumentParser):
    """Reads flags as text; groups check the values."""

    def __init__(self, command: str, **shown: Any) -> None:
        super().__init__(
            prog=command,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            argument_default=argparse.SUPPRESS,
            allow_abbrev=False,
            add_help=False,
            exit_on_error=False,
            **shown,
        )
        self._titled: dict[str, argparse._ArgumentGroup] = {}
        self._flags: dict[str, Flag] = {}

    def add_flags(self, flags: Iterable[Flag]) -> None:
        """Add flags, each in the group of its title."""
        for flag in flags:
            self._flags |= dict.fromkeys(flag.spellings, flag)
            if flag.title not in self._titled:
                self._titled[flag.title] = self.add_argument_group(flag.title)
            add_flag(self._titled[flag.title], flag)

    def read(self, words: Sequence[str], bare: Iterable[str], elsewhere: Elsewhere) -> ValueSource:
        """Return the values in the words. Raises InvalidRequest for an unknown flag.

        bare: flags whose values may be given without the flag, in this order
        """
        try:
            values, unknown = self.parse_known_args(words)
        except argparse.ArgumentError as error:
            raise InvalidRequest(self._misuse(str(error.argument_name), words)) from error
        for flag in bare:
            if flag not in values and unknown and (unknown[0] == "-" or unknown[0][:1] != "-"):
                setattr(values, flag, unknown.pop(0))
        if unknown:
            word = unknown[0].partition("=")[0]
            if not word.startswith("-"):
                raise InvalidRequest(f"unexpected argument {word!r}: a value follows its flag")
            if reason := elsewhere(word.removeprefix("--")):
                raise InvalidRequest(f"{word} {reason}")
            raise InvalidRequest(f"there is no flag {word}{nearest(word, self._flags)}")
        return ValueSource("--{}", vars(values))

    def _misuse(self, name: str, words: Sequence[str]) -> str:
        """Return the error for a flag without a value, or for a switch with a value."""
        flag = self._flags.get(name)
        if flag is None or flag.kind is bool:
            return f"{name} is a switch and takes no value"
        following = dict(zip(words, [*words[1:], "nothing"], strict=True))
        return f"{name} needs a value, {flag.allowed}: got {following[name]}"


def add_flag(group: argparse._ActionsContainer, flag: Flag) -> None:
    """Add a flag in all its spellings; the help shows the first. A switch can also be turned
    off.
    """
    settings: dict[str, Any] = {"dest": flag.name, "help": flag.help.replace("%", "%%")}
    if flag.kind is bool:
        group.add_argument(f"--{flag.name}", action="store_true", **settings)
        settings["help"] = argparse.SUPPRESS
        group.add_argument(f"--no_{flag.name}", action="store_false", **settings)
        return
    settings["metavar"] = f"{{{','.join(flag.choices)}}}" if flag.choices else flag.metavar
    settings["action"] = "append" if flag.repeated else "store"
    name, *aliases = flag.spellings
    group.add_argument(name, **settings)
    for spelling in aliases:
        group.add_argument(spelling, **settings | {"help": argparse.SUPPRESS})


def underscored(word: str) -> str:
    """Replace dashes in a flag's name by underscores."""
    name, equals, value = word.partition("=")
    return f"--{name[2:].replace('-', '_')}{equals}{value}" if word.startswith("--") else word
