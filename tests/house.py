"""The figures of the code's plan: `python -m tests.house` prints them with their bounds."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.support.repository import ROOT

ROOMS = ("inference", "grpc_comm", "compile", "deploy", "outrider")
COMMANDS = ("main.py", "compare_architectures.py")
GENERATED = ("_pb2.py", "_pb2_grpc.py")


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


def imported(module: Module, known: set[str]) -> set[str]:
    """Modules of the product that a module imports, for types only included."""
    found: set[str] = set()
    for node in ast.walk(module.tree):
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
    """Public classes whose name has several definitions, with where they are."""
    homes: defaultdict[str, list[str]] = defaultdict(list)
    for module in found:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(module.name)
    return {name: places for name, places in homes.items() if len(places) > 1}


def shared_file_names(found: list[Module]) -> dict[str, list[str]]:
    """File names that stand for several files, __init__ and __main__ left out."""
    homes: defaultdict[str, list[str]] = defaultdict(list)
    for module in found:
        if not module.path.stem.startswith("__"):
            homes[module.path.name].append(module.name)
    return {name: places for name, places in homes.items() if len(places) > 1}


LEANING = re.compile(r"^(Of|The same|As|Those)\b")
PACKED = re.compile(r"^ *\w+: [^.\n]+\.  \w+: ", re.MULTILINE)


def docstrings(found: list[Module]) -> Iterator[str]:
    for module in found:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Module | ast.ClassDef | Function):
                text = ast.get_docstring(node)
                if text:
                    yield text


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


def test_lines() -> int:
    return sum(
        len(path.read_text(encoding="utf-8").splitlines())
        for path in (ROOT / "tests").rglob("*.py")
    )


class Measure(NamedTuple):
    """A figure of the plan, its bound, and what it was before the plan was made."""

    name: str
    before: str
    most: int
    value: int


def measures() -> list[Measure]:
    found = modules()
    sizes = sorted(length(function) for module in found for function in functions(module))
    lines = sum(module.lines for module in found)
    lines += sum(len((ROOT / name).read_text(encoding="utf-8").splitlines()) for name in COMMANDS)
    texts = list(docstrings(found))
    plain = [module for module in found if not module.path.stem.startswith("__")]
    rooms: Counter[str] = Counter(module.path.parent.name for module in plain)
    return [
        Measure("product lines at 100 columns", "28,809", 23_000, lines),
        Measure("modules, __init__ and __main__ left out", "171", 120, len(plain)),
        Measure("longest file, lines", "565", 350, max(module.lines for module in found)),
        Measure("functions over 60 lines", "3", 0, sum(size > 60 for size in sizes)),
        Measure("function lines, p95", "27", 30, sizes[int(0.95 * len(sizes))]),
        Measure("files flat in inference/", "44", 22, rooms["inference"]),
        Measure("import circles, for types included", "3", 0, len(circles(found))),
        Measure("type names with several meanings", "30", 3, len(shared_type_names(found))),
        Measure("file names that stand for several files", "9", 2, len(shared_file_names(found))),
        Measure("modules that name protobuf messages", "8", 12, len(proto_readers(found))),
        Measure(
            "docstrings that lean on the line above",
            "75",
            0,
            sum(bool(LEANING.match(text)) for text in texts),
        ),
        Measure(
            "fields packed into a paragraph", "36", 0, sum(bool(PACKED.search(t)) for t in texts)
        ),
        Measure("lines of tests", "19,156", 17_000, test_lines()),
        Measure("private attributes reached by tests", "31", 5, len(private_accesses(found))),
    ]


def print_table(write: Callable[[str], object] = print) -> None:
    write(f"{'measure':<45} {'before':>8} {'goal':>8} {'now':>8}")
    for one in measures():
        write(f"{one.name:<45} {one.before:>8} {f'{one.most:,}':>8} {f'{one.value:,}':>8}")


if __name__ == "__main__":
    sys.setrecursionlimit(10_000)
    print_table()
