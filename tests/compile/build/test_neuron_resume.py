"""A Neuron build compiles each graph once: after a kill, for a new graph, on other machines."""

from __future__ import annotations

import os
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
from inference.files.artifact import Bucket, check_files
from tests.support.fake_build import Lowering
from tests.support.fake_neuron import Neuron
from tests.support.neuron_artifacts import FEW, MORE, build, spec_of

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
