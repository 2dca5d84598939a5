"""The figures of the code's plan: `python -m tests.house` prints them with their bounds.

The bounds are a ratchet. A change may lower them. A change that raises one does so in the same
commit, and says why in a comment beside it.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from inspect import cleandoc
from pathlib import Path
from typing import NamedTuple

from tests.support.repository import ROOT

ROOMS = ("inference", "grpc_comm", "compile", "deploy", "outrider")
GENERATED = ("_pb2.py", "_pb2_grpc.py")


class Room(NamedTuple):
    """Bounds of a directory with all below it: sum of lines, and modules."""

    lines: int
    modules: int


BOUNDS = {
    "inference": Room(21_763, 122),
    "grpc_comm": Room(6_123, 38),
    "compile": Room(7_200, 33),
    "deploy": Room(3_546, 25),
    "outrider": Room(16_939, 108),
    "benchmarks": Room(8_369, 43),
    "tests": Room(47_074, 280),
}
"""Bounds of each room. They rose last for these, by lines:

- GGUF files of models with windows and with running states: 400 of inference/, which lost 240 and
  five modules elsewhere.
- Attention has a file of its own, which benchmarks/ import: 1.
- Tests of these: 440. Real files are written in tests/, and scores are the library's.
"""

MOST_STEPS = 8
"""Bound of the longest trip of a parameter."""

MOST_NAMES = 7
"""Bound of the type names with several meanings. Layers of a model keep theirs in each stack, and
`Engine` is the public interface's own.
"""

MOST_FILE_NAMES = 2
"""Bound of the file names that stand for several files."""


class Module(NamedTuple):
    """A file of the product, parsed. name: dotted, as it is imported."""

    name: str
    path: Path
    source: str
    tree: ast.Module

    @property
    def lines(self) -> int:
        return len(self.source.splitlines())


Function = ast.FunctionDef | ast.AsyncFunctionDef


def modules() -> list[Module]:
    """The product's own modules, generated ones left out."""
    found = []
    for path in sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py")):
        if not path.name.endswith(GENERATED):
            source = path.read_text(encoding="utf-8")
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            found.append(Module(name, path, source, ast.parse(source)))
    return found


def functions(module: Module) -> Iterator[Function]:
    for node in ast.walk(module.tree):
        if isinstance(node, Function):
            yield node


def length(function: Function) -> int:
    """Lines of a function, decorators left out."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


def at_import(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run when their module is imported, those for types left out."""
    for node in body:
        if isinstance(node, ast.If | ast.Try):
            typed = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            yield from at_import(node.orelse if typed else [*node.body, *node.orelse])
        else:
            yield node


def closure(found: list[Module], start: str) -> list[Module]:
    """Modules that importing `start` imports, their packages included where they hold code."""
    by_name, left, seen = {module.name: module for module in found}, [start], set[str]()
    while left:
        name = left.pop()
        if name in by_name and name not in seen:
            seen.add(name)
            left.append(name.rpartition(".")[0])
            module = by_name[name]
            left += imported(module, set(by_name), at_import(module.tree.body))
    return [by_name[name] for name in seen if by_name[name].lines > 1]


def imported(module: Module, known: set[str], nodes: Iterable[ast.AST] | None = None) -> set[str]:
    """Modules of the product that a module imports, for types only included.

    nodes: those that are looked at; None for all
    """
    found: set[str] = set()
    for node in ast.walk(module.tree) if nodes is None else nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            members = {f"{node.module}.{alias.name}" for alias in node.names}
            inside = members & known
            found |= inside or {node.module}
            if len(inside) < len(members):
                found.add(node.module)
    return (found & known) - {module.name}


def circles(found: list[Module]) -> list[list[str]]:
    """Groups of modules that import each other: Tarjan's strongly connected components."""
    known = {module.name for module in found}
    arrows = {module.name: imported(module, known) for module in found}
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in arrows[name]:
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            group = [stack.pop()]
            while group[-1] != name:
                group.append(stack.pop())
            if len(group) > 1:
                groups.append(sorted(group))

    for name in arrows:
        if name not in index:
            visit(name)
    return groups


def shared_type_names(found: list[Module]) -> dict[str, list[str]]:
    """Names of classes and type aliases that stand in several files, with where they are. A leading
    underscore makes no other name.
    """
    homes: defaultdict[str, set[str]] = defaultdict(set)
    for module in found:
        for node in ast.walk(module.tree):
            match node:
                case ast.ClassDef(name=name):
                    homes[name.lstrip("_")].add(module.name)
                case ast.AnnAssign(ast.Name(name), ast.Name("TypeAlias")):
                    homes[name.lstrip("_")].add(module.name)
    return {name: sorted(places) for name, places in homes.items() if len(places) > 1}


def shared_file_names(found: list[Module]) -> dict[str, list[str]]:
    """File names that stand for several files, __init__ and __main__ left out."""
    homes: defaultdict[str, list[str]] = defaultdict(list)
    for module in found:
        if not module.path.stem.startswith("__"):
            homes[module.path.name].append(module.name)
    return {name: places for name, places in homes.items() if len(places) > 1}


def room(name: str) -> Room:
    """Lines and modules of a room, generated files left out."""
    files = [path for path in (ROOT / name).rglob("*.py") if not path.name.endswith(GENERATED)]
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
    return Room(lines, sum(not path.stem.startswith("__") for path in files))


def longest_trip(found: list[Module]) -> list[str]:
    """The functions through which one parameter is handed on under its own name, by simple names:
    the longest such chain.
    """
    taking: defaultdict[tuple[str, str], set[str]] = defaultdict(set)  # handed on to
    having: defaultdict[str, set[str]] = defaultdict(set)
    for function in (one for module in found for one in functions(module)):
        given = function.args
        having[function.name] |= {
            one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)
        } - {"self", "cls"}
    for function in (one for module in found for one in functions(module)):
        for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
            called = call.func.id if isinstance(call.func, ast.Name) else ""
            for node in (*call.args, *(keyword.value for keyword in call.keywords)):
                name = node.id if isinstance(node, ast.Name) else ""
                if called != function.name and name in having[function.name] & having[called]:
                    taking[function.name, name].add(called)

    def trip(function: str, parameter: str, before: tuple[str, ...]) -> list[str]:
        after = [
            trip(other, parameter, (*before, function))
            for other in sorted(taking[function, parameter])
            if other not in before
        ]
        return [function, *max(after, key=len, default=[])]

    trips = [[parameter, *trip(function, parameter, ())] for function, parameter in list(taking)]
    return max(trips, key=len, default=[])


LEANING = re.compile(r"^(Of|The same|As|Those)\b")
ASKING = re.compile(r"^(What|Who|Where|That|How|Why|When|Which)\b")
PACKED = re.compile(r"^ *\w+: [^.\n]+\.  \w+: ", re.MULTILINE)


def docstrings(found: list[Module]) -> Iterator[str]:
    """Docstrings, and the strings below fields and constants."""
    for module in found:
        for node in ast.walk(module.tree):
            match node:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield cleandoc(text)


def proto_readers(found: list[Module]) -> list[str]:
    """Modules that name protobuf messages."""
    return [
        module.name for module in found if re.search(r"\bverifier_pb2\b(?!_grpc)", module.source)
    ]


PRIVATE = re.compile(r"_[A-Za-z]")


def private_names(found: list[Module]) -> set[str]:
    """Private attributes, functions and classes that the product defines."""
    names: set[str] = set()
    for module in found:
        for node in ast.walk(module.tree):
            if isinstance(node, Function | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.attr)
    return {name for name in names if PRIVATE.match(name)}


def private_accesses(found: list[Module]) -> list[str]:
    """Places where tests reach into private parts of the product, as file:line name.

    Others' names do not count, such as the methods of a NamedTuple.
    """
    names, places = private_names(found), list[str]()
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            reached: list[str] = []
            if isinstance(node, ast.Attribute):
                own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
                reached = [] if own else [node.attr]
            elif isinstance(node, ast.ImportFrom):
                reached = [alias.name for alias in node.names]
            where = path.relative_to(ROOT).as_posix()
            places += [f"{where}:{node.lineno} {name}" for name in reached if name in names]
    return places


class Measure(NamedTuple):
    """A figure of the plan, and its bound."""

    name: str
    most: int
    value: int


def measures() -> list[Measure]:
    found = modules()
    sizes = sorted(length(function) for module in found for function in functions(module))
    texts, client = list(docstrings(found)), closure(found, "outrider.client.client")
    rooms, bounds = {name: room(name) for name in BOUNDS}, BOUNDS.items()
    return [
        *(Measure(f"lines of {name}/", most.lines, rooms[name].lines) for name, most in bounds),
        *(
            Measure(f"modules of {name}/", most.modules, rooms[name].modules)
            for name, most in bounds
        ),
        Measure("longest trip of a parameter", MOST_STEPS, len(longest_trip(found)) - 1),
        Measure("type names with several meanings", MOST_NAMES, len(shared_type_names(found))),
        Measure("file names of several files", MOST_FILE_NAMES, len(shared_file_names(found))),
        Measure("longest file, lines", 350, max(module.lines for module in found)),
        Measure("longest function, lines", 58, sizes[-1]),
        Measure("import circles, for types included", 0, len(circles(found))),
        Measure("files that a client imports", 58, len(client)),
        Measure("lines that a client imports", 8_844, sum(module.lines for module in client)),
        Measure("docstrings that lean on the line above", 0, len([*filter(LEANING.match, texts)])),
        Measure("docstrings that begin like a question", 0, len([*filter(ASKING.match, texts)])),
        Measure("fields packed into a paragraph", 0, len([*filter(PACKED.search, texts)])),
        Measure("private attributes reached by tests", 8, len(private_accesses(found))),
    ]


def print_table(write: Callable[[str], object] = print) -> None:
    write(f"{'measure':<45} {'bound':>8} {'now':>8}")
    for one in measures():
        write(f"{one.name:<45} {f'{one.most:,}':>8} {f'{one.value:,}':>8}")


if __name__ == "__main__":
    print_table()
