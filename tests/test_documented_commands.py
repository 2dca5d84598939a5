"""The commands of README, docs/ and the help texts are understood by the programs they name."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from compile import compile_options as compiling
from deploy import __main__ as deploying
from grpc_comm.client.named_targets import NamedTarget
from inference.flags.command_line import parse_flags
from outrider.aws_verbs import DEPLOY_VERBS
from outrider.measure import commands as measuring
from outrider.options import commands as running
from outrider.options.commands import OTHER_VERBS, VERBS
from outrider.options.roles import ROLES
from outrider.terminal.demo import DemoOptions
from tests.support.repository import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
HELP = [
    "compile/compile_options.py",
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "deploy/commands").glob("*.py")),
    "outrider/measure/commands.py",
    "outrider/options/commands.py",
    "outrider/target/ray_fleet.py",
]


COMMANDS: dict[str, Callable[[list[str]], object]] = {
    "compile": compiling.parse,
    "bench": partial(measuring.parse, "bench"),
    "compare": partial(measuring.parse, "compare"),
    "deploy": lambda words: deploying.parse(words, DEPLOY_VERBS),
    "runs": partial(measuring.parse, "runs"),
    "prove": partial(measuring.parse, "prove"),
    "recommend": partial(measuring.parse, "recommend"),
    "demo": lambda words: parse_flags(DemoOptions, "outrider demo", words),
}
"""Parsers of the verbs that are commands of their own; the others are roles."""

PARSERS: dict[str, Callable[[list[str]], object]] = {
    "outrider": lambda words: (
        COMMANDS[words[0]](words[1:]) if words[0] in COMMANDS else running.parse(words)
    ),
    "main.py": running.parse,
    "compare_architectures.py": partial(measuring.parse, "compare"),
    "-m compile": compiling.parse,
    "-m deploy": deploying.parse,
}
PLACEHOLDERS = {"D": "bfloat16", "T": "trn1", "N": "2", "NAME": "demo", "HEX": "0" * 64}
"""What a page has the reader put in where not any text will do."""

SHOWN = {"--help", "--help-all", "--version", "--completion"}
"""Flags that print something and end."""

START = rf"(?:python +|(?=outrider (?:{'|'.join({*VERBS, *OTHER_VERBS, *ROLES})})\b))"
"""Start of a command: `python ...` or `outrider VERB ...`."""


def commands_of(text: str) -> Iterator[str]:
    """Each command on a line or between backticks, without comment or redirection."""
    whole = re.sub(r"\\\n *", " ", text)
    for line in re.findall(rf"(?m)^ *(?:.*; )?{START}(.*)$", whole):
        yield re.split(r"\s#| {3,}|\s>|\s2>|\s\|", line)[0]
    yield from re.findall(rf"`{START}([^`]*)`", whole)


def documented() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for command in commands_of(page.read_text(encoding="utf-8")):
            yield page.name, command.strip()
    for name in HELP:
        source = (ROOT / name).read_text(encoding="utf-8")
        text = re.sub(r" \\\\\n *", " ", source)  # a line that goes on
        for line in re.findall(rf"(?m)^  {START}(.*)$", text):
            yield name, re.split(r" {2,}", line.removesuffix('"""'))[0].strip()


def split(command: str) -> tuple[str, list[str]]:
    """The program, and its arguments."""
    words = shlex.split(command)
    count = 2 if words[0] == "-m" else 1
    given = [PLACEHOLDERS.get(word, word).replace("BUCKET", "bucket") for word in words[count:]]
    return " ".join(words[:count]), given


def is_named(arguments: list[str]) -> bool:
    """The text names a verb, and shows no whole command."""
    verbs = [word for word in arguments if word not in ("NAME", "demo")]
    return len(verbs) == 1 or (verbs[:1] == ["deploy"] and len(verbs) == 2)


@pytest.fixture(autouse=True)
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A target of the name that the pages use."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    target = NamedTarget("demo", "127.0.0.1:50151", "us-east-1")
    target.write()
    target.write_secret("token", b"t")


DOCUMENTED = sorted(set(documented()))


def test_the_pages_have_commands_of_the_programs_that_they_speak_of() -> None:
    spoken = {split(command)[0] for _, command in DOCUMENTED}
    assert spoken >= set(PARSERS) - {
        "main.py",
        "compare_architectures.py",
        "-m compile",
        "-m deploy",
    }


@pytest.mark.parametrize(
    ("page", "command"), DOCUMENTED, ids=[f"{page}: {command}" for page, command in DOCUMENTED]
)
def test_a_documented_command_is_understood(page: str, command: str) -> None:
    program, arguments = split(command)
    if program not in PARSERS:
        module = arguments[0] if program == "-m pytest" else program.removeprefix("-m ")
        assert (ROOT / module).exists() or find_spec(module) is not None
    elif SHOWN & {*arguments}:
        with pytest.raises(SystemExit) as ended:
            PARSERS[program](arguments)
        assert ended.value.code == 0
    elif program == "outrider" and is_named(arguments):
        assert arguments[0] in {*VERBS, *OTHER_VERBS, *ROLES}
        assert arguments[0] != "deploy" or {*arguments[1:2]} <= {*DEPLOY_VERBS}
    elif arguments:
        PARSERS[program](arguments)
