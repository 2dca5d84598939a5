"""Who may import whom, and what importing may do."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house import modules
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
PURE = (
    "*",
    "cost/*",
    "drafters/*",
    "engine/*",
    "engine/colocated/*",
    "engine/sessions/*",
    "files/*",
    "loop/*",
    "planner/*",
    "text/*",
    "tree/*",
    "backends/sequence",
)
IMPURE = {
    "cost/energy",
    "files/artifact",
    "files/json_file",
    "text/chat_template",
    "text/grammar",
    "text/grammar_check",
    "text/stream",
    "text/tokenizer",
    "times_file",
}
"""Files within inference/ that need nothing but the standard library and numpy, and the others."""

HOMES = {
    "boto3": ("compile/aws.py",),
    "defusedxml": ("outrider/measure/verbs/runs.py",),
    "llguidance": ("inference/text/grammar.py", "inference/text/grammar_check.py"),
}
BY_NAME = {"torch_neuronx", "neuronx_distributed", "libneuronxla", "neuronxcc", "torch_xla"}
"""AWS's packages, which are imported by name when they are needed."""


@pytest.mark.parametrize("room", ALLOWED)
def test_a_package_imports_only_the_packages_below_it(room: str) -> None:
    for module in modules(room):
        assert module.libraries() & set(ALLOWED) <= ALLOWED[room], module.name


@pytest.mark.parametrize("files", PURE)
def test_the_pure_core_needs_only_the_standard_library_and_numpy(files: str) -> None:
    allowed = {*sys.stdlib_module_names, "numpy", "inference"}
    for module in modules("inference"):
        path = module.path.relative_to(ROOT / "inference")
        if path.parent == Path(files).parent and path.match(f"{files}.py"):
            name = path.with_suffix("").as_posix()
            assert (module.libraries() <= allowed) is (name not in IMPURE), path


@pytest.mark.parametrize("library", HOMES)
def test_a_heavy_library_is_imported_at_home_only(library: str) -> None:
    importing = [
        module.path.relative_to(ROOT).as_posix()
        for module in modules(*ALLOWED)
        if library in module.libraries()
    ]
    assert importing
    assert all(path.startswith(HOMES[library]) for path in importing), importing


def test_awss_packages_are_imported_by_name_alone() -> None:
    imported = {library for module in modules(*ALLOWED) for library in module.libraries()}
    assert not imported & (BY_NAME | {"transformers_neuronx"})


MODELS = {"torch", "transformers", "safetensors", "llama_cpp"}
"""What a machine without models lacks."""

LIGHT = {
    "outrider.cli": {"torch", "transformers", "grpc", "numpy"},
    "compile.__main__ compile.compile_options": {"torch", "transformers", "numpy", "boto3"},
    "deploy.__main__ deploy.prices": {"torch", "numpy", "boto3"},
    "deploy.commands.status deploy.commands.up deploy.plan": MODELS | {"boto3"},
    "grpc_comm.client.connection inference.loop.decode inference.drafters.round_proposer "
    "outrider.client.client outrider.client.drafting outrider.draft_methods.model "
    "outrider.endpoint.run outrider.terminal.generate outrider.terminal.chat "
    "outrider.measure.commands outrider.doctor outrider.terminal.demo "
    "outrider.measure.verbs.runs outrider.measure.verbs.recommend "
    "outrider.models.catalog.models_here": MODELS,
}
"""What starts fast, or on a machine that has little installed: modules, and what they must not
import.
"""


@pytest.mark.parametrize("names", LIGHT)
def test_what_starts_fast_imports_no_heavy_library(names: str) -> None:
    code = f"""
import importlib, sys
for name in {names.split()}:
    importlib.import_module(name)
    if heavy := {LIGHT[names]} & {{*sys.modules}}:
        sys.exit(f"{{name}} imports {{heavy}}")"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


TRANSFORMERS_4 = {
    "transformers.AutoModelForCausalLM",
    "transformers.cache_utils.Cache",
    "transformers.utils.logging",
}
"""What modules may import of transformers, as version 4.57 of a trn1 host has it."""


def test_modules_that_a_trn1_host_imports_take_of_transformers_what_version_4_has() -> None:
    names = {
        f"{node.module}.{alias.name}"
        for module in modules("compile", "inference")
        for node in module.tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert {name for name in names if name.startswith("transformers.")} == TRANSFORMERS_4


def test_every_module_says_what_it_is_for() -> None:
    for module in modules(*ALLOWED):
        assert not module.lines or ast.get_docstring(module.tree), module.name
