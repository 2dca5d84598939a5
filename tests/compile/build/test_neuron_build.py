"""What the Neuron builder writes, asks of the environment, and says when something is wrong;
nothing here needs a device.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from compile.builders import neuron_artifact
from compile.neuron.builder import NeuronBuilder, graph_flags
from compile.neuron.compiler import OVERRIDE, compiler_flags, render
from inference.backends.neuron import sdk as neuron_sdk
from inference.backends.neuron.model import COPY, FILL, PACKAGE
from inference.errors import BadArtifact, MissingExtra
from inference.files.artifact import check_files
from inference.text.tokenizer import Tokenizer
from tests.support.commands import Run
from tests.support.fake_neuron import VERSIONS, Neuron
from tests.support.neuron_artifacts import FEW, ROWS, TREE, build, spec_of
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
