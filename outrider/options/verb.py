"""Reads the command line of a verb that is a command of its own, such as `outrider deploy up`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from inspect import getdoc
from typing import ClassVar, TypeVar

from inference.command import Parser, nearest
from inference.errors import InvalidRequest
from outrider.options.group import Group, flags_of
from outrider.options.parsing import add_to, underscored
from outrider.options.sources import ValueSource, resolve


class VerbOptions(Group, title="general"):
    """Base of such a verb's options. Its docstring is the first line of the verb's help."""

    BARE: ClassVar[str] = ""
    """The flag whose value may directly follow the verb; empty for none."""

    debug: bool = False
    """show the traceback of an error"""


Verb = TypeVar("Verb", bound=VerbOptions)


def parse_verb(
    model: type[Verb], command: str, arguments: Sequence[str], examples: str = ""
) -> Verb:
    """The options that these words give. Prints help or an error in one line, and exits.

    command: how the verb is called, such as `outrider deploy up`
    examples: ends the help
    """
    parser = _parser(model, command, examples)
    words = list(arguments)
    if model.BARE and words and not words[0].startswith("-"):
        words = [f"--{model.BARE}", *words]
    given, unknown = parser.parse_known_args([underscored(word) for word in words])
    try:
        if unknown:
            word = unknown[0].partition("=")[0]
            raise InvalidRequest(f"there is no flag {word}{nearest(word, parser.flags)}")
        return resolve(model, [ValueSource("--{}", vars(given))])
    except InvalidRequest as error:
        parser.error(str(error))


def _parser(model: type[VerbOptions], command: str, examples: str) -> Parser:
    bare = f" [{model.BARE.upper()}]" if model.BARE else ""
    parser = Parser(
        prog=command,
        usage=f"{command}{bare} [FLAG VALUE ...]",
        description=getdoc(model),
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    groups: dict[str, argparse._ArgumentGroup] = {}
    for flag in flags_of(model).values():
        if flag.title not in groups:
            groups[flag.title] = parser.add_argument_group(flag.title)
        add_to(groups[flag.title], flag)
    return parser
