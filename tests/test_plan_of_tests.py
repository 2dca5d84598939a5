"""The plan of the tests: where they lie, and what they may reach."""

from __future__ import annotations

import ast
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.house import modules, private_names_in_tests
from tests.support.repository import ROOT

TESTS = ROOT / "tests"
FILES = sorted(TESTS.rglob("*.py"))
OF_EVERY_ROOM = {"__init__.py", "conftest.py"}
OF_THEIR_OWN = {"nxd", "simulate", "support", "xla"}
"""Directories of tests that are no room: whole systems, what tests share, other torch, NxD.
"""


def test_every_room_of_tests_is_a_room_of_the_product() -> None:
    rooms = {path.relative_to(TESTS).parent for path in FILES} - {Path(".")}
    assert {room for room in rooms if not (ROOT / room).is_dir()} == set(map(Path, OF_THEIR_OWN))


def test_a_test_file_has_a_name_of_its_own() -> None:
    names = Counter(path.name for path in FILES if path.name not in OF_EVERY_ROOM)
    assert [name for name, files in names.items() if files > 1] == []


def test_pytest_looks_into_every_directory_with_tests(pytestconfig: pytest.Config) -> None:
    """It skips directories by name without a word, such as build."""
    skipped: list[str] = pytestconfig.getini("norecursedirs")
    names = {part for path in FILES for part in path.relative_to(TESTS).parts[:-1]}
    assert [name for name in names for pattern in skipped if fnmatch(name, pattern)] == []


def test_what_test_files_share_lies_in_support() -> None:
    wrong = [
        (module.name, node.module)
        for module in modules("tests")
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests.")
        if ".test_" in (node.module or "")
    ]
    assert wrong == []


def test_tests_reach_few_private_parts_of_the_product() -> None:
    reached = [*private_names_in_tests()]
    assert len(reached) <= 5, reached
