"""A Neuron build compiles each graph once: after a kill, for one more graph, on other machines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from compile.neuron.builder import NeuronBuilder, hot_graph
from compile.neuron.compiler import NeffCache, hlo_digest, unit_key
from compile.plan import memory
from compile.store import DiskObjects
from inference.backends.neuron.loading import load_neuron
from inference.backends.neuron.model import COPY, FILL
from inference.files.artifact import MANIFEST, Bucket, check_files
from tests.support.fake_build import Lowering
from tests.support.fake_neuron import Neuron
from tests.support.neuron_artifacts import FEW, MORE, build, spec_of
from tests.support.repository import ROOT

NAMES = [bucket.name for bucket in MORE]

KILLED = """
import sys
from functools import partial
from pathlib import Path
import pytest
from compile.neuron.builder import NeuronBuilder
from tests.support.fake_neuron import Neuron
from tests.support.neuron_artifacts import MORE, build, spec_of
folder, checkpoint, stalls_at = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
Neuron(stalls_at=stalls_at).install(pytest.MonkeyPatch(), folder / "packages")
one_by_one = partial(NeuronBuilder, workers=1)
build(folder / "artefact", checkpoint, spec_of(1, MORE), one_by_one)
"""


def hot(buckets: Sequence[Bucket] = MORE) -> str:
    graph = hot_graph(spec_of(1, buckets))
    assert graph is not None
    return graph.name


def killed_at(folder: Path, checkpoint: Path, graph: str) -> None:
    """A build in another process, which is killed while its compiler is at this graph."""
    command = [sys.executable, "-c", KILLED, str(folder), str(checkpoint), graph]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == f"compiling {graph}\n"
        other.kill()


def test_a_build_that_is_killed_goes_on_with_the_graph_it_was_at(
    monkeypatch: pytest.MonkeyPatch, checkpoint: Path, tmp_path: Path
) -> None:
    at = NAMES[5]
    killed_at(tmp_path, checkpoint, at)
    assert not (tmp_path / "artefact" / MANIFEST).exists()
    neuron = Neuron().install(monkeypatch, tmp_path / "again")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "packages" / "cache"))
    one_by_one = partial(NeuronBuilder, workers=1)
    manifest = build(tmp_path / "artefact", checkpoint, spec_of(1, MORE), one_by_one)
    # the graph that the weights are laid out for was the first
    assert neuron.compiled == [*(name for name in NAMES[5:] if name != hot()), COPY, FILL]
    check_files(tmp_path / "artefact", manifest)
    load_neuron(tmp_path / "artefact", manifest, lambda line: None)


def test_one_graph_more_compiles_one_graph(
    neuron: Neuron, checkpoint: Path, tmp_path: Path
) -> None:
    build(tmp_path / "a", checkpoint, spec_of(1, MORE[1:]))
    before = len(neuron.compiled)
    manifest = build(tmp_path / "a", checkpoint, spec_of(1, MORE))
    assert neuron.compiled[before:] == [NAMES[0]]
    load_neuron(tmp_path / "a", manifest, lambda line: None)


def test_a_graph_that_was_spoilt_in_the_cache_is_compiled_again(
    neuron: Neuron, packages: Path, checkpoint: Path, tmp_path: Path
) -> None:
    build(tmp_path / "a", checkpoint, spec_of(1))
    for log in (packages / "cache" / "outrider" / "neuron_graphs").glob("*/log-neuron-cc.txt"):
        if "prefill" in log.read_text():
            (log.parent / "graph.neff").write_text("{}")
    before = len(neuron.compiled)
    build(tmp_path / "b", checkpoint, spec_of(1))
    assert neuron.compiled[before:] == [FEW[1].name]


def test_another_machine_takes_the_graphs_from_the_store(
    neuron: Neuron, checkpoint: Path, tmp_path: Path
) -> None:
    for machine in ("one", "two"):
        cache = NeffCache(tmp_path / machine, DiskObjects(tmp_path / "store"))
        builder = partial(NeuronBuilder, cache=cache)
        build(tmp_path / f"artefact-{machine}", checkpoint, spec_of(1), builder)
    beside = 3  # the layout, copying and noise
    assert len(neuron.compiled) == len(set(neuron.compiled)) == len(FEW) + beside


@pytest.mark.parametrize("workers", [1, 3])
def test_graphs_compiled_at_once_are_those_compiled_in_turn(
    neuron: Neuron, checkpoint: Path, tmp_path: Path, workers: int
) -> None:
    spec = spec_of(2, MORE)
    manifest = build(tmp_path / "a", checkpoint, spec, partial(NeuronBuilder, workers=workers))
    assert sorted(neuron.compiled) == sorted([*NAMES, COPY, FILL, "layout_opt"])
    load_neuron(tmp_path / "a", manifest, lambda line: None)


@pytest.mark.parametrize(
    ("flags", "levels"), [({}, ["-O2", "-O1"]), ({"--optlevel": "3"}, ["-O3", "-O3"])]
)
@pytest.mark.usefixtures("neuron")
def test_prompts_are_compiled_at_o1_unless_told_otherwise(
    checkpoint: Path, tmp_path: Path, flags: dict[str, str], levels: list[str]
) -> None:
    build(tmp_path / "a", checkpoint, spec_of(1, compiler_flags=flags))
    paths = [tmp_path / "a" / f"graphs/{bucket.name}.json" for bucket in FEW]
    given = [json.loads(path.read_text())["flags"] for path in paths]
    assert [words.split()[-1] for words in given] == levels


@pytest.mark.parametrize("changes", [True, False])
@pytest.mark.parametrize("target", ["trn1", "inf2"])
def test_weights_are_laid_out_for_the_largest_tree(
    monkeypatch: pytest.MonkeyPatch, packages: Path, checkpoint: Path, tmp_path: Path,
    target: str, changes: bool,
) -> None:  # fmt: skip
    neuron = Neuron(layout_changes=changes).install(monkeypatch, packages)
    manifest = build(tmp_path / "a", checkpoint, spec_of(1, target=target))
    (packages / "product_name").write_text(f"{target}.2xlarge\n")
    assert ("layout_opt" in neuron.compiled) == changes
    assert neuron.compiled[0] == hot(FEW)
    load_neuron(tmp_path / "a", manifest, lambda line: None)


def test_a_graph_that_is_added_later_leaves_the_layout_as_it_is() -> None:
    assert hot(MORE) == hot(MORE[3:]) == FEW[0].name


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
