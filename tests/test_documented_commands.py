"""The commands of README, docs/ and the help texts are understood by the programs they name."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from importlib.util import find_spec

import pytest

from compile import compile_options as compiling
from compile.__main__ import VERBS
from deploy import __main__ as deploying
from outrider import options as running
from outrider.compare import compare_options as comparing
from outrider.compare.testbed import read_positions
from outrider.money.goal import read_billing
from tests.support.repository import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
HELP = [
    "compile/compile_options.py",
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "deploy/commands").glob("*.py")),
    "outrider/compare/compare_options.py",
    "outrider/options/parsing.py",
]


def compiled(arguments: list[str]) -> object:
    """Options of a build, or of a verb of `python -m compile`."""
    if arguments in ([verb] for verb in VERBS):  # the text names a verb
        return arguments
    if arguments[0] in VERBS:
        return compiling.parse([*arguments[1:], "--dry_run"])
    return compiling.parse(arguments)


PARSERS: dict[str, Callable[[list[str]], object]] = {
    "main.py": running.parse,
    "compare_architectures.py": comparing.parse,
    "-m compile": compiled,
    "-m deploy": deploying.parse,
}
PLACEHOLDERS = {"D": "bfloat16", "T": "trn1", "N": "2", "NAME": "demo"}
"""What a page has the reader put in where not any text will do."""

EXITS = {"main.py --help"}
"""What prints and ends."""


VERB_OF = r"outrider (deploy|compile) "
"""Commands that are called as `python -m NAME`, too."""


def commands_of(text: str) -> Iterator[str]:
    """Each `python ...` and `outrider VERB ...` on a line or between backticks, without comment or
    redirection.
    """
    whole = re.sub(VERB_OF, r"python -m \1 ", text.replace("\\\n", " "))
    for line in re.findall(r"(?m)^ *(?:.*; )?python (.*)$", whole):
        yield re.split(r"\s#|\s>|\s2>", line)[0]
    yield from re.findall(r"`python ([^`]*)`", whole)


def documented() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for command in commands_of(page.read_text(encoding="utf-8")):
            yield page.name, command.strip()
    for name in HELP:
        source = (ROOT / name).read_text(encoding="utf-8")
        text = re.sub(r" \\\\\n *", " ", source)  # a line that goes on
        for line in re.findall(r"(?m)^  python (.*)$", re.sub(VERB_OF, r"python -m \1 ", text)):
            yield name, re.split(r" {2,}", line.removesuffix('"""'))[0].strip()


def split(command: str) -> tuple[str, list[str]]:
    """The program, and its arguments."""
    words = shlex.split(command)
    count = 2 if words[0] == "-m" else 1
    return " ".join(words[:count]), [PLACEHOLDERS.get(word, word) for word in words[count:]]


DOCUMENTED = sorted(set(documented()))


def test_the_pages_have_commands_of_every_program() -> None:
    assert {split(command)[0] for _, command in DOCUMENTED} >= set(PARSERS)


@pytest.mark.parametrize(
    ("page", "command"), DOCUMENTED, ids=[f"{page}: {command}" for page, command in DOCUMENTED]
)
def test_a_documented_command_is_understood(page: str, command: str) -> None:
    program, arguments = split(command)
    if program not in PARSERS:
        module = arguments[0] if program == "-m pytest" else program.removeprefix("-m ")
        assert (ROOT / module).exists() or find_spec(module) is not None
    elif command in EXITS:
        with pytest.raises(SystemExit) as ended:
            PARSERS[program](arguments)
        assert ended.value.code == 0
    elif program == "-m deploy" and arguments[1:] in ([], ["NAME"]):  # the text names a verb
        assert arguments[0] in deploying.VERBS
    elif arguments:
        PARSERS[program](arguments)


@pytest.mark.parametrize(
    "command", sorted({command for _, command in DOCUMENTED if "_architectures.py --cs" in command})
)
def test_a_documented_curve_states_the_prices_that_it_weighs(command: str) -> None:
    options = comparing.parse(split(command)[1])
    billing = read_billing(options.draft)
    assert len(read_positions(options, billing)) == len(options.cs)
