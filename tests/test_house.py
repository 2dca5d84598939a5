"""The plan of the code: who may import whom, what importing may do, sizes, pages and words."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch

import pytest

from tests.house import (
    ROOMS,
    TOTALS,
    circle,
    dead_links,
    imports,
    modules,
    private_names_in_tests,
    too_long,
    totals,
)
from tests.support.repository import ROOT

ALLOWED = {
    "inference": {"inference"},
    "grpc_comm": {"grpc_comm", "inference"},
    "compile": {"compile", "inference"},
    "deploy": {"deploy", "compile", "inference", "grpc_comm"},
    "outrider": {"outrider", "inference", "grpc_comm", "compile", "deploy"},
    "benchmarks": {"benchmarks", "outrider", "inference", "grpc_comm", "compile", "deploy"},
}
"""Packages, with those that they may import."""

TOP = "inference"
BELOW = {
    TOP: set[str](),
    "inference.flags": {TOP},
    "inference.model": {TOP},
    "inference.backends": {TOP, "inference.model"},
    "inference.planner": {TOP, "inference.backends"},
    "inference.cost": {TOP, "inference.planner"},
    "inference.drafters": {TOP, "inference.backends", "inference.planner"},
    "inference.engine": {TOP, "inference.backends", "inference.drafters", "inference.planner"},
    "grpc_comm.client": {"grpc_comm"},
    "grpc_comm.server": {"grpc_comm", "grpc_comm.observability"},
    "grpc_comm.observability": {"grpc_comm"},
    "grpc_comm": set[str](),
}
"""Rooms, and which others of the same package they may import."""


def room_of(name: str) -> str:
    """The room of a module: the longest of BELOW that it is in, else its package."""
    inside = [room for room in BELOW if name == room or name.startswith(f"{room}.")]
    return max(inside, key=len, default=name.split(".")[0])


def test_packages_and_rooms_import_only_those_below_them_and_never_in_a_circle() -> None:
    for package, allowed in ALLOWED.items():
        for module in modules(package):
            assert module.libraries() & set(ALLOWED) <= allowed, module.name
    for name, others in imports().items():
        room = room_of(name)
        inside = {room_of(other) for other in others if other.startswith(room.split(".")[0] + ".")}
        assert room not in BELOW or inside <= {room, *BELOW[room]}, name
    assert circle() == []


PURE = (
    *("", "cost.", "drafters.", "engine.", "engine.colocated.", "engine.sessions.", "files."),
    *("loop.", "planner.", "text.", "tree."),
)
IMPURE = {
    *("cost.energy", "files.artifact", "files.json_file", "text.chat_template", "text.grammar"),
    *("text.grammar_check", "text.stream", "text.tokenizer", "times_file"),
}
"""Packages of inference that need nothing but the standard library and numpy, but for these."""


def test_the_pure_core_needs_only_the_standard_library_and_numpy() -> None:
    allowed = {*sys.stdlib_module_names, "numpy", "inference"}
    impure = set[str]()
    for module in modules("inference"):
        name = module.name.removeprefix("inference").removeprefix(".")
        is_pure = name.removesuffix(name.rpartition(".")[2]) in PURE or name == "backends.sequence"
        if is_pure and not module.libraries() <= allowed:
            impure.add(name)
    assert impure == IMPURE


HOMES = {
    "boto3": ("compile/aws.py",),
    "defusedxml": ("outrider/measure/verbs/runs.py",),
    "llguidance": ("inference/text/grammar.py", "inference/text/grammar_check.py"),
}
BY_NAME = {
    *("torch_neuronx", "neuronx_distributed", "libneuronxla", "neuronxcc", "torch_xla"),
    "transformers_neuronx",
}
"""AWS's packages, which are imported by name when they are needed."""

TRANSFORMERS_4 = {
    "transformers.AutoModelForCausalLM",
    "transformers.cache_utils.Cache",
    "transformers.utils.logging",
}
"""What modules may import of transformers, as version 4.57 of a trn1 host has it."""


def test_a_heavy_library_is_imported_at_home_only_and_awss_by_name_alone() -> None:
    for library, homes in HOMES.items():
        importing = {
            module.path.relative_to(ROOT).as_posix()
            for module in modules(*ALLOWED)
            if library in module.libraries()
        }
        assert importing == set(homes)
    imported = {library for module in modules(*ALLOWED) for library in module.libraries()}
    assert not imported & BY_NAME
    names = {
        f"{node.module}.{alias.name}"
        for module in modules("compile", "inference")
        for node in module.tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert {name for name in names if name.startswith("transformers.")} == TRANSFORMERS_4


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


def test_protobuf_messages_stay_on_the_wire() -> None:
    readers = {
        room_of(module.name)
        for module in modules(*ROOMS)
        if re.search(r"\bverifier_pb2\b(?!_grpc)", module.path.read_text(encoding="utf-8"))
    }
    assert readers <= {"grpc_comm", "grpc_comm.client", "grpc_comm.server"}


def test_a_file_fits_on_some_screens_and_a_function_on_one_and_no_total_rises() -> None:
    assert [*too_long()] == []
    today = totals()
    assert [total.name for total in TOTALS if today[total.name] > total.limit] == []


def test_no_link_and_no_path_in_a_page_is_dead() -> None:
    assert [*dead_links()] == []


def test_tests_reach_few_private_parts_of_the_product() -> None:
    reached = [*private_names_in_tests()]
    assert len(reached) <= 5, reached


def test_pytest_looks_into_every_directory_with_tests(pytestconfig: pytest.Config) -> None:
    """It skips directories by name without a word, such as build."""
    skipped: list[str] = pytestconfig.getini("norecursedirs")
    names = {part for module in modules("tests") for part in module.name.split(".")[1:-1]}
    assert [name for name in names for pattern in skipped if fnmatch(name, pattern)] == []


EVERYWHERE = (
    r"nor where", r"(?:decodes|guesses) on", r"hereby", r"thereof", r"shall", r"spoilt",
    r"somebody", r"times as fast", r"whoever", r"whatever (?:comes|came)",
    r"comes? of (?:it|them)", r"asks? nobody", r"stands? (?:in line|still)",
    r"mend(?:s|ed)?", r"dear(?:er|est)?", r"go(?:es)? on", r"come again", r"makes? a text",
    r"ships? here", r"names? (?:the |its )?tokens", r"as (?:it stands|they stand)", r"hears",
    r"told", r"taught", r"dealt", r"spelt", r"learnt", r"learns? of", r"w?hence", r"thereby",
    r"is made of", r"to be had", r"that has none", r"what (?:was|(?:it|they) \w+) given",
)  # fmt: skip
"""Phrases of a dialect that no reader speaks: neither docstrings nor texts for users have them."""
FOR_USERS = (
    *EVERYWHERE, r"nobody (?:listens|can be asked)", r"likeliest",
    r"quick(?:er|est)", r"what lacks", r"broken off", r"begun",
)  # fmt: skip
"""Phrases that pages and messages, which are strings with a space, do not contain."""


def _matches(place: str, text: str, line: int, phrases: tuple[str, ...]) -> Iterator[str]:
    for match in re.finditer(rf"\b(?:{'|'.join(phrases)})\b", text, re.IGNORECASE):
        yield f"{place}:{line + text.count(chr(10), 0, match.start())}: {match[0]!r}"


def test_pages_and_strings_of_the_product_are_in_plain_english() -> None:
    hits = list[str]()
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        hits += _matches(page.name, page.read_text("utf-8"), 1, FOR_USERS)
    for module in modules(*ROOMS):
        nodes = [*ast.walk(module.tree)]
        docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            if isinstance(node, ast.Constant) and " " in str(node.value):
                phrases = EVERYWHERE if id(node) in docstrings else FOR_USERS
                hits += _matches(module.name, str(node.value), node.lineno, phrases)
    assert hits == []


def test_every_module_says_what_it_is_for() -> None:
    for module in modules(*ALLOWED):
        assert not module.lines or ast.get_docstring(module.tree), module.name
