"""What the Neuron builder writes, asks of the environment, and says when something is wrong;
nothing here needs a device.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from compile.builders import neuron_artifact
from compile.neuron.builder import NeuronBuilder, graph_flags, hot_graph
from compile.neuron.compiler import (
    OVERRIDE,
    NeffCache,
    compiler_flags,
    hlo_digest,
    render,
    unit_key,
)
from compile.plan import memory
from compile.store import DiskObjects
from inference.backends.neuron import sdk as neuron_sdk
from inference.backends.neuron.loading import load_neuron
from inference.backends.neuron.model import COPY, FILL, PACKAGE
from inference.errors import BadArtifact, MissingExtra
from inference.files.artifact import Bucket, check_files
from inference.text.tokenizer import Tokenizer
from tests.support.commands import Run
from tests.support.fake_build import Lowering
from tests.support.fake_neuron import VERSIONS, Neuron
from tests.support.neuron_artifacts import FEW, MORE, ROWS, TREE, build, spec_of
from tests.support.refusals import assert_refused
from tests.support.repository import ROOT

# --- what is built


def test_an_artefact_has_weights_by_rank_one_package_and_a_record_of_each_graph(
    neuron: Neuron, checkpoint: Path, tmp_path: Path
) -> None:
    manifest = build(tmp_path / "a", checkpoint, spec_of(2))
    check_files(tmp_path / "a", manifest)
    graphs = {f"graphs/{bucket.name}.{kind}" for bucket in FEW for kind in ("json", "log.txt")}
    graphs |= {f"graphs/{COPY}.json", f"graphs/{FILL}.json", PACKAGE}
    assert {name for name in manifest.files if name.startswith("graphs/")} == graphs
    ranks = [
        load_file(tmp_path / "a" / f"weights/tp{rank}_sharded_checkpoint.safetensors")
        for rank in range(2)
    ]
    assert [rank["decoder.model.layers.0.self_attn.q_proj.weight"].shape for rank in ranks] == [
        (8, 16),
        (8, 16),
    ]
    # the tokenizer's 60 ids, in whole words of a mask
    assert ranks[0]["decoder.lm_head.weight"].shape == (32, 16)
    assert [rank["decoder.ids.weight"][0].item() for rank in ranks] == [0, 32]
    assert torch.equal(ranks[0]["decoder.model.norm.weight"], ranks[1]["decoder.model.norm.weight"])
    assert manifest.versions["neuron-sdk"] == "2.31"
    assert manifest.host == {"family": "trn1", "logical_cores": "1", "interface": "model_builder"}
    record = json.loads((tmp_path / "a" / f"graphs/{FEW[0].name}.json").read_text())
    assert record["inputs"]["tree_mask"] == ["int32", [ROWS, TREE, TREE]]
    log = (tmp_path / "a" / f"graphs/{FEW[1].name}.log.txt").read_text()
    assert f"compiled {FEW[1].name} with" in log
    assert json.loads((tmp_path / "a" / f"graphs/{COPY}.json").read_text())["inputs"] == {
        "rows": ["int32", [ROWS]]
    }


def test_flags_are_explicit_the_specs_come_last_and_prompts_are_compiled_at_o1() -> None:
    assert render(compiler_flags(spec_of(), 1)) == (
        "--target trn1 --lnc=1 --model-type=transformer --auto-cast=none "
        "--enable-saturate-infinity -O2"
    )
    inf2 = spec_of(target="inf2", compiler_flags={"--optlevel": "1", "--auto-cast": "matmult"})
    assert render(compiler_flags(inf2, 1)) == (
        "--target inf2 --lnc=1 --model-type=transformer --auto-cast=matmult "
        "--enable-saturate-infinity -O1"
    )
    assert_refused(lambda: compiler_flags(spec_of(compiler_flags={"--lnc": "2"}), 1), ["--lnc"])
    value = "--enable-ccop-compute-overlap --cc-pipeline-tiling-factor=2"
    blanks = spec_of(compiler_flags={"--tensorizer-options": value})
    assert f"--tensorizer-options={value}" in shlex.split(render(compiler_flags(blanks, 1)))
    for spec, levels in (
        (spec_of(), ["-O2", "-O1"]),
        (spec_of(compiler_flags={"--optlevel": "3"}), ["-O3", "-O3"]),
    ):
        flags = [graph_flags(compiler_flags(spec, 1), spec, bucket) for bucket in FEW]
        assert [render(each).split()[-1] for each in flags] == levels


def test_a_graph_whose_compiler_died_without_a_reason_is_compiled_once_more(
    neuron: Neuron, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    neuron.compiler_dies = 1
    build(tmp_path / "a", checkpoint, spec_of(1))
    assert "neuronx-cc failed with 70" in capsys.readouterr().err
    assert len(neuron.compiled) == len({*neuron.compiled})


@pytest.mark.parametrize(
    ("fails", "words", "is_repeated"),
    [
        ({"compiler_dies": 2}, "neuronx-cc failed with 70", True),
        (
            {"compiler_fails": "[NCC_EVRF007] too many instructions\nmore"},
            "[NCC_EVRF007] too many instructions",
            False,
        ),
    ],
)
def test_a_compiler_that_dies_twice_or_gives_its_reason_ends_the_build_and_keeps_its_files(
    monkeypatch: pytest.MonkeyPatch, packages: Path, checkpoint: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], fails: dict[str, Any], words: str, is_repeated: bool,
) -> None:  # fmt: skip
    neuron = Neuron(**fails).install(monkeypatch, packages)
    with pytest.raises(BadArtifact, match=re.escape(words)) as failure:
        build(tmp_path / "a", checkpoint, spec_of(1))
    assert Path(str(failure.value).rsplit(" ", 1)[1]).is_dir()
    assert (neuron.compiler_dies, neuron.compiled) == (0, [])
    assert ("once more" in capsys.readouterr().err) == is_repeated


def test_an_artefact_that_matches_is_used_and_another_one_announced_and_built(
    monkeypatch: pytest.MonkeyPatch, neuron: Neuron, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    model, said = ROOT / "inference" / "data" / "draft", list[str]()
    spec = replace(spec_of(2), vocabulary=Tokenizer(model).vocabulary)
    find = partial(neuron_artifact, command="test", say=said.append)
    first = find(spec, model, tmp_path / "cache")
    for start in ("memory of a core", "host memory: ", "building it in "):
        assert any(line.startswith(start) for line in said)
    said.clear()
    assert find(spec, model, tmp_path / "cache") == first
    assert said == [f"using the artefact in {first}"]
    other = replace(spec, compiler_flags={"-O1": ""})
    assert find(other, model, tmp_path / "cache") != first


# --- what is compiled once: after a kill, for a new graph, on other machines

NAMES = [bucket.name for bucket in MORE]


def hot(buckets: Sequence[Bucket]) -> str:
    graph = hot_graph(spec_of(1, buckets))
    assert graph is not None
    return graph.name


def test_a_build_that_is_broken_off_goes_on_with_the_graph_it_was_at_with_any_number_of_compilers(
    neuron: Neuron, checkpoint: Path, tmp_path: Path
) -> None:
    neuron.broken_at = NAMES[5]
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "a", checkpoint, spec_of(1, MORE), partial(NeuronBuilder, workers=1))
    # the graph that the weights are laid out for is the first
    assert neuron.compiled == [hot(MORE), "layout_opt", *NAMES[:5]]
    neuron.broken_at, neuron.compiled = "", []
    manifest = build(
        tmp_path / "a", checkpoint, spec_of(1, MORE), partial(NeuronBuilder, workers=3)
    )
    rest = [name for name in NAMES[5:] if name != hot(MORE)]
    assert sorted(neuron.compiled) == sorted([*rest, COPY, FILL])
    check_files(tmp_path / "a", manifest)
    load_neuron(tmp_path / "a", manifest, lambda line: None)


def test_only_a_graph_that_is_new_or_was_spoilt_in_the_cache_is_compiled(
    neuron: Neuron, packages: Path, checkpoint: Path, tmp_path: Path
) -> None:
    build(tmp_path / "a", checkpoint, spec_of(1))
    for log in (packages / "cache" / "outrider" / "neuron_graphs").glob("*/log-neuron-cc.txt"):
        if "prefill" in log.read_text():
            (log.parent / "graph.neff").write_text("{}")
    neuron.compiled = []
    build(tmp_path / "b", checkpoint, spec_of(1))
    assert neuron.compiled == [FEW[1].name]
    neuron.compiled = []
    manifest = build(tmp_path / "b", checkpoint, spec_of(1, (MORE[0], *FEW)))
    assert neuron.compiled == [NAMES[0]]
    load_neuron(tmp_path / "b", manifest, lambda line: None)


def test_another_machine_takes_the_graphs_from_the_store(
    neuron: Neuron, checkpoint: Path, tmp_path: Path
) -> None:
    for machine in ("one", "two"):
        cache = NeffCache(tmp_path / machine, DiskObjects(tmp_path / "store"))
        builder = partial(NeuronBuilder, cache=cache)
        build(tmp_path / f"artefact-{machine}", checkpoint, spec_of(1), builder)
    beside = 3  # the layout, copying and noise
    assert len(neuron.compiled) == len(set(neuron.compiled)) == len(FEW) + beside


@pytest.mark.parametrize(("target", "changes"), [("trn1", True), ("inf2", False)])
def test_weights_are_laid_out_for_the_largest_tree_whatever_is_added_later(
    monkeypatch: pytest.MonkeyPatch, packages: Path, checkpoint: Path, tmp_path: Path,
    target: str, changes: bool,
) -> None:  # fmt: skip
    neuron = Neuron(layout_changes=changes).install(monkeypatch, packages)
    manifest = build(tmp_path / "a", checkpoint, spec_of(1, target=target))
    (packages / "product_name").write_text(f"{target}.2xlarge\n")
    assert ("layout_opt" in neuron.compiled) == changes
    assert neuron.compiled[0] == hot(FEW) == hot(MORE) == hot(MORE[3:]) == FEW[0].name
    load_neuron(tmp_path / "a", manifest, lambda line: None)


def test_the_key_follows_what_is_computed_and_not_how_it_was_counted() -> None:
    lowering, operations = Lowering(), [("parameter", "f32[2]"), ("add", "f32[2]")]
    one, again = lowering.module(operations), lowering.module(operations)
    assert one.SerializeToString() != again.SerializeToString()
    assert hlo_digest(one) == hlo_digest(again)
    other = lowering.module([("parameter", "f32[2]"), ("multiply", "f32[2]")])
    turned = lowering.module(operations)
    turned.computations[0].instructions[1].operand_ids[:] = []
    marked = lowering.module(operations)
    marked.frontend_attributes.map["transposable_weight_idx"] = "0"
    assert len({hlo_digest(each) for each in (one, other, turned, marked)}) == 4
    others = [("graph", "-O2", "2.26"), ("layout", "-O2", "2.26")]
    others += [("graph", "-O1", "2.26"), ("graph", "-O2", "2.27")]
    assert len({unit_key(kind, one, flags, version) for kind, flags, version in others}) == 4


def test_as_many_compilers_run_as_there_is_memory_for(monkeypatch: pytest.MonkeyPatch) -> None:
    gib = 1 << 30
    monkeypatch.setattr(memory, "free_memory", lambda: 40 * gib)
    assert memory.workers_within(8, 16 * gib) == 2
    assert memory.workers_within(1, 16 * gib) == 1
    monkeypatch.setattr(memory, "free_memory", lambda: gib)
    assert memory.workers_within(8, 16 * gib) == 1
    assert 0 < memory.processors() <= (os.cpu_count() or 1)


# --- the environment of a compile host


def test_a_host_without_a_device_is_told_the_platform_unless_the_user_has_set_one(
    monkeypatch: pytest.MonkeyPatch, packages: Path, checkpoint: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    neuron = Neuron(device=False).install(monkeypatch, packages)
    with monkeypatch.context() as imported:
        imported.setitem(sys.modules, "torch_neuronx", object())
        again = partial(build, tmp_path / "0", checkpoint, spec_of(1))
        assert_refused(again, ["imported already"])
    monkeypatch.setenv(OVERRIDE, "trn2")
    assert_refused(lambda: build(tmp_path / "a", checkpoint, spec_of(1)), ["trn2", "trn1"])
    monkeypatch.setenv(OVERRIDE, "inf2")
    build(tmp_path / "b", checkpoint, spec_of(1, FEW[:1]))
    assert {name: value for name, value in os.environ.items() if name.startswith("NEURON")} == {
        OVERRIDE: "inf2"
    }
    assert OVERRIDE not in capsys.readouterr().err
    neuron.install(monkeypatch, packages / "another")
    monkeypatch.setattr(os, "environ", dict(os.environ))
    build(tmp_path / "c", checkpoint, spec_of(1, FEW[:1], target="inf2"))
    assert neuron.platform == "trn1"
    assert f"{OVERRIDE}=trn1" in capsys.readouterr().err


def test_with_a_device_nothing_is_set_and_another_family_is_compiled_only_when_asked_for(
    neuron: Neuron, packages: Path, checkpoint: Path, tmp_path: Path
) -> None:
    build(tmp_path / "a", checkpoint, spec_of(1))
    assert OVERRIDE not in os.environ
    (packages / "product_name").write_text("trn2n.48xlarge\n")
    again = partial(build, tmp_path / "b", checkpoint, spec_of(1))
    assert_refused(again, ["a trn2 machine", f"{OVERRIDE}=trn1"])


PLACEHOLDER, NATIVE, OLD = "1.0.0", "2.14.3.0", "2.8.0.2.10.16998"
VERSIONS_REFUSED: list[tuple[dict[str, str], list[str]]] = [
    ({}, ["torch-neuronx, neuronx-cc, neuronx-distributed", neuron_sdk.INDEX]),
    (VERSIONS | {"torch-neuronx": PLACEHOLDER}, ["placeholder", neuron_sdk.INDEX]),
    (VERSIONS | {"torch-neuronx": NATIVE}, ["native", "trn2 and trn3", neuron_sdk.INDEX]),
    (VERSIONS | {"torch-neuronx": OLD}, ["of Neuron SDK 2.26", neuron_sdk.INDEX]),
    # what AWS lists for trn1 in SDK 2.33: a compiler two releases younger than the rest
    (VERSIONS | {"neuronx-cc": "2.28.7631.0"}, ["2.28.7631.0 does not belong", "2.26"]),
    (VERSIONS | {"torch-neuronx": "2.9.0.2.13.1"}, ["of Neuron SDK 2.29", "neuronx-cc 2.24"]),
]


@pytest.mark.parametrize(("versions", "shown"), VERSIONS_REFUSED)
def test_packages_of_another_kind_are_explained(
    monkeypatch: pytest.MonkeyPatch, packages: Path, checkpoint: Path,
    versions: dict[str, str], shown: list[str],
) -> None:  # fmt: skip
    Neuron(versions=versions).install(monkeypatch, packages)
    builder = NeuronBuilder(spec_of(1), checkpoint)
    assert_refused(builder.made_with, shown, MissingExtra)


def test_a_transformers_that_is_too_new_is_told_before_packages_that_cannot_be_imported(
    monkeypatch: pytest.MonkeyPatch, packages: Path
) -> None:
    def failing(name: str) -> None:
        raise ImportError(f"{name}: libnrt.so.1: cannot open shared object file")

    for version, shown in (
        (VERSIONS["transformers"], ["libnrt.so.1"]),
        ("5.0.0", ["transformers 5.0.0", ">=4.51,<5"]),
    ):
        machine = Neuron(versions=VERSIONS | {"transformers": version})
        machine.install(monkeypatch, packages / version)
        monkeypatch.setattr(neuron_sdk, "import_module", failing)
        assert_refused(neuron_sdk.load_sdk, shown, MissingExtra)


# --- documentation


def test_the_memory_table_of_the_documentation_is_what_its_command_prints(run: Run) -> None:
    page = (ROOT / "docs" / "neuron-reference.md").read_text(encoding="utf-8").splitlines()
    names, *rows = (row.split(" | ") for row in page if row.startswith(("| model | t", "| llama-")))
    assert len(rows) == 4
    for row in rows:
        cells = (cell.strip("| ") for cell in row)
        model, where, *parts, total, memory = cells
        target, ranks = where.split(", ")
        flags = ["--model", ROOT / "docs" / "shapes" / model, "--target", target, "--dry_run"]
        flags += ["--tensor_parallel", ranks, "--rows", "4", "--sequence_length", "4096"]
        printed = run("compile", *flags).out
        assert f"memory of a core: {total} of {memory}" in printed
        for name, value in zip(names[2:], parts, strict=False):
            assert re.search(rf"{name} +{re.escape(value)}", printed), row
