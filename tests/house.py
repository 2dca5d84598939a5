"""The rules that the code and its pages keep, and four totals: `python -m tests.house` prints them.

Each rule returns the places that break it. A total has a limit, which may only be lowered, and
targets, each with the issue that is to reach it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from inference.flags.group import Group, flags_of
from tests.support.repository import ROOT

ROOMS = ("inference", "grpc_comm", "compile", "deploy", "outrider")
LONGEST_FILE, LONGEST_FUNCTION = 350, 60


class Total(NamedTuple):
    """A sum of the repository: what it is, the most that it may be, and where it has to get to."""

    name: str
    limit: int
    targets: str


TOTALS = (
    Total("product lines", 48_200, "52,000 (issue 45), 40,000 (issue 48)"),
    Total("tests lines", 40_200, "44,000 (issue 45), 36,000 (issue 48), 30,000 (issue 50)"),
    Total("benchmarks lines", 4_000, "7,600 (issue 45), 4,000 (issue 48)"),
    Total("flags", 110, "150 (issue 45), 110 (issue 48)"),
)


class Module(NamedTuple):
    """A Python file. name: dotted, as it is imported."""

    name: str
    path: Path
    lines: int
    tree: ast.Module

    def names_of(self, known: set[str]) -> set[str]:
        """Those of the known modules that this one imports or names in a string, as import_module,
        a table of programs or the command of a process does.
        """
        names: set[str] = set()
        for node in ast.walk(self.tree):
            match node:
                case ast.Import(names=aliases):
                    names |= {alias.name for alias in aliases}
                case ast.ImportFrom(module=str(module), names=aliases, level=0):
                    members = {f"{module}.{alias.name}" for alias in aliases}
                    names |= members if members <= known else {*members, module}
                case ast.Constant(value=str(text)) if "." in text:
                    names.add(text.partition(":")[0])
        return (names & known) - {self.name}

    def libraries(self) -> set[str]:
        """Top-level packages that it imports, anywhere in it."""
        names: set[str] = set()
        for node in ast.walk(self.tree):
            match node:
                case ast.Import(names=aliases):
                    names |= {alias.name.split(".")[0] for alias in aliases}
                case ast.ImportFrom(module=str(module), level=0):
                    names.add(module.split(".")[0])
        return names


@cache
def modules(*rooms: str) -> tuple[Module, ...]:
    """The Python files of some rooms, generated ones left out, each parsed once."""
    paths = [path for room in rooms for path in sorted((ROOT / room).rglob("*.py"))]
    return tuple(_module(path) for path in paths if not re.search("_pb2(_grpc)?$", path.stem))


@cache
def _module(path: Path) -> Module:
    source = path.read_text(encoding="utf-8")
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    return Module(name, path, len(source.splitlines()), ast.parse(source))


@cache
def imports() -> dict[str, set[str]]:
    """The modules of the product that each of them imports or names."""
    known = {module.name for module in modules(*ROOMS)}
    return {module.name: module.names_of(known) for module in modules(*ROOMS)}


def circle() -> list[str]:
    """Modules that import each other in a circle, if any do."""
    try:
        TopologicalSorter(imports()).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def too_long() -> Iterator[str]:
    """Files and functions that do not fit on some screens and on one."""
    for module in modules(*ROOMS):
        if module.lines > LONGEST_FILE:
            yield f"{module.name}: {module.lines} lines"
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > LONGEST_FUNCTION:
                    yield f"{module.name}.{node.name}: {lines} lines"


LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
CODE = re.compile(r"```.*?```|`([^`\n]+)`", re.DOTALL)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
PLACE = re.compile(rf"(?:{'|'.join((*ROOMS, 'benchmarks', 'tests', 'docs'))})/[\w./*-]*\w/?")


def pages() -> Iterator[Path]:
    """The repository's own pages."""
    yield from ROOT.glob("*.md")
    for room in (*ROOMS, "benchmarks", "tests", "docs"):
        yield from (path for path in (ROOT / room).rglob("*.md") if "vendor" not in path.parts)


def _anchors(page: Path) -> set[str]:
    """Its headings as a link names them."""
    titles = HEADING.findall(page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def dead_links() -> Iterator[str]:
    """Relative links, and paths of the repository between backticks, that lead nowhere."""
    for page in pages():
        text = page.read_text(encoding="utf-8")
        for name, anchor in LINK.findall(text):
            path = page.parent / name if name else page
            if ":" in name:
                continue
            if not path.exists() or (anchor and anchor not in _anchors(path)):
                yield f"{page.relative_to(ROOT)}: {name}#{anchor}"
        for code in CODE.findall(text):
            places = (word.partition(":")[0].rstrip(".,;)") for word in code.split())
            for place in filter(PLACE.fullmatch, places):
                if not any(ROOT.glob(place.rstrip("/"))):
                    yield f"{page.relative_to(ROOT)}: {place}"


def private_names_in_tests() -> Iterator[str]:
    """Places where tests reach into private parts of the product. Names that the standard library
    gives, such as a NamedTuple's fields, are no such parts.
    """
    defined = {
        name
        for module in modules(*ROOMS)
        for name in re.findall(
            r"(?:def |class |self\.)(_[A-Za-z]\w*)", module.path.read_text("utf-8")
        )
    } - {"_fields", "_replace", "_asdict"}
    for module in modules("tests"):
        for node in ast.walk(module.tree):
            match node:
                case ast.Attribute(value=ast.Name(id="self" | "cls")):
                    continue
                case ast.Attribute(attr=name) if name in defined:
                    yield f"{module.name}:{node.lineno} {name}"
                case ast.ImportFrom(names=aliases):
                    for alias in filter(lambda alias: alias.name in defined, aliases):
                        yield f"{module.name}:{node.lineno} {alias.name}"


def flags() -> set[str]:
    """Names of all flags: those of every group of options."""
    for module in modules(*ROOMS):
        if re.search(r"(?m)^class .*(Group|Options|Role)\b", module.path.read_text("utf-8")):
            import_module(module.name)
    groups = [Group]
    for group in groups:
        groups += group.__subclasses__()
    ours = (group for group in groups if group.__module__.split(".")[0] in ROOMS)
    return {name for group in ours for name in flags_of(group)}


def totals() -> dict[str, int]:
    """Today's totals by their names."""
    return {
        "product lines": sum(module.lines for module in modules(*ROOMS)),
        "tests lines": sum(module.lines for module in modules("tests")),
        "benchmarks lines": sum(module.lines for module in modules("benchmarks")),
        "flags": len(flags()),
    }


def print_table() -> None:
    """Print totals beside their limits and targets, then what breaks a rule."""
    today = totals()
    print(f"{'total':<18} {'today':>7} {'limit':>7}  targets")
    for total in TOTALS:
        print(f"{total.name:<18} {today[total.name]:>7,} {total.limit:>7,}  {total.targets}")
    for rule in (circle, too_long, dead_links, private_names_in_tests):
        for place in rule():
            print(f"{rule.__name__}: {place}")


if __name__ == "__main__":
    print_table()
