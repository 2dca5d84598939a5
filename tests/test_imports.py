"""Who may import whom, and what importing may do."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.repository import ROOT

ALLOWED = {
    "inference": {"inference"},
    "grpc_comm": {"grpc_comm", "inference"},
    "compile": {"compile", "inference"},
    "deploy": {"deploy", "compile", "inference", "grpc_comm"},
    "outrider": {"outrider", "inference", "grpc_comm", "compile", "deploy"},
    "benchmarks": {"benchmarks", "outrider", "inference", "grpc_comm", "compile", "deploy"},
}
"""Rooms, with what they may import."""
PURE = ("*", "cost/*", "drafters/*", "engine/*", "planner/*", "backends/slots")
IMPURE = {
    "artifact",
    "cost/energy",
    "file_model",
    "grammar",
    "grammar_check",
    "planner/profile_files",
    "text",
}
"""Files within inference/ that need nothing but the standard library and numpy, and the others."""

HOMES = {
    "boto3": ("deploy/aws.py", "compile/store.py"),
    "defusedxml": ("outrider/runs/autodraft.py",),
    "llguidance": ("inference/grammar.py", "inference/grammar_check.py"),
}


def imports(path: Path) -> set[str]:
    """Top-level packages that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("room", [room for room in ALLOWED if (ROOT / room).exists()])
def test_a_room_imports_only_the_rooms_below_it(room: str) -> None:
    for path in sorted((ROOT / room).rglob("*.py")):
        assert imports(path) & set(ALLOWED) <= ALLOWED[room], path


@pytest.mark.parametrize("files", PURE)
def test_the_pure_core_needs_only_the_standard_library_and_numpy(files: str) -> None:
    allowed = {*sys.stdlib_module_names, "numpy", "inference"}
    for path in sorted((ROOT / "inference").glob(f"{files}.py")):
        name = path.relative_to(ROOT / "inference").with_suffix("").as_posix()
        assert (imports(path) <= allowed) is (name not in IMPURE), path


@pytest.mark.parametrize("library", HOMES)
def test_a_heavy_library_is_imported_at_home_only(library: str) -> None:
    importing = [
        path.relative_to(ROOT).as_posix()
        for room in ALLOWED
        for path in (ROOT / room).rglob("*.py")
        if library in imports(path)
    ]
    assert importing
    assert all(path.startswith(HOMES[library]) for path in importing), importing


MODELS = {"torch", "transformers", "safetensors", "llama_cpp"}
"""What a machine without models lacks."""

LIGHT = {
    "outrider.cli": {"torch", "transformers", "grpc", "numpy"},
    "compile.__main__, compile.compile_options": {"torch", "transformers", "numpy", "boto3"},
    "deploy.__main__, deploy.instance_price": {"torch", "numpy", "boto3"},
    "deploy.commands.plan, deploy.commands.status, deploy.commands.up": MODELS | {"boto3"},
    "outrider.client.client, outrider.client.drafting, outrider.draft_methods.gguf": MODELS,
    "outrider.endpoint.run, outrider.terminal.generate, outrider.terminal.chat": MODELS,
    "outrider.compare.__main__, outrider.doctor.checks, outrider.models.models_here": MODELS,
    "outrider.runs.command, outrider.terminal.demo, outrider.recommend.advice": MODELS,
    "grpc_comm.client.connection, inference.decode, inference.drafters.round_proposer": {"torch"},
}
"""What starts fast, or on a machine that has little installed: modules, and what they must not
import.
"""


@pytest.mark.parametrize("modules", LIGHT)
def test_what_starts_fast_imports_no_heavy_library(modules: str) -> None:
    code = f"import sys, {modules}; print(*{LIGHT[modules]} & set(sys.modules))"
    heavy = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert heavy.stdout.split() == []


def test_the_packages_imported_here_are_this_checkouts() -> None:
    import deploy
    import grpc_comm
    import inference
    import outrider

    assert {
        Path(package.__file__ or "").parents[1]
        for package in (inference, grpc_comm, deploy, outrider)
    } == {ROOT}


def test_every_module_says_what_it_is_for() -> None:
    for room in ALLOWED:
        for path in (ROOT / room).rglob("*.py"):
            source = path.read_text(encoding="utf-8")
            if source and "_pb2" not in path.name:
                assert ast.get_docstring(ast.parse(source)), path
