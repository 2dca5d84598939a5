"""A target for one NeuronCore through torch_neuronx.trace, from the command line to the text,
over the strict stand-in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from compile.__main__ import main
from compile.neuron_trace import TraceBuilder
from grpc_comm.client.connection import connect
from grpc_comm.server.server import BackgroundServer
from inference.artifact import Manifest, check_files, read_manifest
from inference.backends.eager import EagerModel
from inference.backends.neuron import TRACE, load_neuron
from inference.drafters.tree_policies import BestFirst
from inference.engine.engine import Engine
from inference.engine.local_session import LocalSession
from inference.errors import BadArtifact, InvalidRequest
from inference.model.checkpoint import load_decoder
from inference.model.decoder import Decoder
from inference.proposer import Proposer
from inference.sampling import SamplingParams
from inference.text import Tokenizer
from outrider.models import EMBEDDED
from outrider.options import Options
from outrider.serve import load_target
from tests.drafts import alone, growing, nudged, rounds, speculated
from tests.equality import NearTies, assert_same_text
from tests.fake_neuron import Neuron
from tests.models import write_checkpoint
from tests.neuron_artifacts import FEW, VOCABULARY, build, spec_of

LENGTH, NODES, ROWS = 64, 8, 2
GRAPH = f"verify_b{ROWS}_t{NODES}_s{LENGTH + NODES}_sampled"
MODEL = EMBEDDED / "draft"  # the smallest target with a tokenizer that is at hand
COMMAND = [
    "--model",
    str(MODEL),
    "--target",
    "trn1",
    "--tensor_parallel",
    "1",
    "--trace",
    "--dtype",
    "float32",
    "--rows",
    str(ROWS),
]
COMMAND += ["--sequence_length", str(LENGTH), "--max_tree_nodes", str(NODES)]


class Built(NamedTuple):
    neuron: Neuron
    directory: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    """An artefact made by the command line, on a machine that has a device for as long as the
    module runs.
    """
    folder = tmp_path_factory.mktemp("traced")
    with pytest.MonkeyPatch.context() as patch:
        neuron = Neuron().install(patch, folder / "packages")
        assert main([*COMMAND, "--out", str(folder / "artifact")]) == 0
        yield Built(neuron, folder / "artifact")


@pytest.fixture(scope="module")
def target() -> Decoder:
    return load_decoder(
        MODEL,
        positions=LENGTH,
        vocabulary=Tokenizer(MODEL).vocabulary,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )


def eager_text(
    target: Decoder, prompt: Sequence[int], params: SamplingParams, tokens: int
) -> list[int]:
    model = EagerModel(target, rows=1, capacity=LENGTH + NODES, max_nodes=LENGTH)
    engine = Engine(
        model, sequence_length=LENGTH, max_tree_nodes=NODES, vocabulary=target.vocabulary
    )
    return alone(LocalSession(engine), prompt, params, tokens)


def test_the_artefact_holds_one_graph_for_all_rows_the_largest_tree_and_the_whole_context(
    built: Built,
) -> None:
    manifest = read_manifest(built.directory)
    check_files(built.directory, manifest)
    assert [bucket.name for bucket in manifest.buckets] == [GRAPH]
    assert {name for name in manifest.files if not name.endswith(".json")} == {TRACE}
    assert manifest.host == {"family": "trn1", "logical_cores": "1", "interface": "trace"}
    assert manifest.compiler_flags["--auto-cast"] == "none"


@pytest.mark.parametrize(
    "params",
    [SamplingParams(), SamplingParams(0.7, seed=11), SamplingParams(1.0, seed=12)],
    ids=lambda params: f"T{params.temperature}",
)
@pytest.mark.parametrize(
    "draft", [growing, partial(rounds, policy=BestFirst(NODES - 1, 4))], ids=["growing", "rounds"]
)
def test_the_served_artefact_writes_the_eager_targets_text(
    built: Built,
    target: Decoder,
    draft: Callable[[Decoder], Proposer],
    params: SamplingParams,
) -> None:
    """Over gRPC, with prompts longer than the graph, two of them one after the other on rows
    that were used before.
    """
    proposer, ties, served = (
        draft(nudged(target)),
        NearTies(),
        load_target(Options(role="target", port=0, device="neuron", artifact=str(built.directory))),
    )
    with BackgroundServer(served) as server, connect(str(server.address)) as connection:

        def produce(prompt: Sequence[int], tokens: int) -> list[int]:
            return speculated(connection.session(), proposer, prompt, params, tokens)

        for text in ("import os\nimport sys\n\n\ndef main(argv):\n", "class Node:"):
            prompt = Tokenizer(MODEL).encode(text)
            assert_same_text(
                target, prompt, params, eager_text(target, prompt, params, 20), produce, ties
            )
    assert ties.ties == 0


def test_the_graph_runs_once_idle_before_the_model_is_handed_out(built: Built) -> None:
    said: list[str] = []
    load_neuron(built.directory, read_manifest(built.directory), said.append)
    assert said[0].endswith("on 1 trn1 cores")
    assert [line for line in said if line.startswith(f"[1/1] {GRAPH} ran in ")]


def test_greedy_only_is_a_graph_without_noise(built: Built, tmp_path: Path) -> None:
    assert main([*COMMAND, "--sampling", "greedy", "--out", str(tmp_path / "artifact")]) == 0
    assert [bucket.sampled for bucket in read_manifest(tmp_path / "artifact").buckets] == [False]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["--tensor_parallel", "2"], "a graph for one core: leave it out for --tensor_parallel 2"),
        (["--target", "cpu"], "--trace is for trn1, inf2 and trn2"),
        (["--tree_nodes", "4"], "--trace makes one graph, .* leave out --tree_nodes"),
        (["--slots", "32"], "leave out --slots"),
        (["--prefill_nodes", "16"], "leave out --prefill_nodes"),
        (["--load", "load.json"], "leave out --load"),
    ],
)
def test_what_one_graph_on_one_core_cannot_be_is_refused_in_words(
    changes: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*COMMAND, *changes, "--dry_run"]) == 1
    assert re.search(words, capsys.readouterr().err)


def test_a_spec_of_several_graphs_or_cores_is_refused(tmp_path: Path) -> None:
    for spec in (spec_of(1, FEW), spec_of(2, FEW[:1])):
        with pytest.raises(InvalidRequest, match="one graph for one core"):
            TraceBuilder(spec, write_checkpoint(tmp_path / "model"), VOCABULARY)


def test_a_failing_compiler_is_quoted_and_its_files_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Neuron(compiler_fails="NCC_EVRF007: too many instructions").install(
        monkeypatch, tmp_path / "packages"
    )
    with pytest.raises(
        BadArtifact, match=r"NCC_EVRF007: too many instructions\. Its files and logs are in (.+)"
    ) as failed:
        build(
            tmp_path / "artifact",
            write_checkpoint(tmp_path / "model"),
            spec_of(1, FEW[:1]),
            TraceBuilder,
        )
    assert Path(str(failed.value).rsplit(" ", 1)[1]).is_dir()


def test_it_is_built_where_no_device_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Neuron(device=False).install(monkeypatch, tmp_path / "packages")
    manifest: Manifest = build(
        tmp_path / "artifact",
        write_checkpoint(tmp_path / "model"),
        spec_of(1, FEW[:1]),
        TraceBuilder,
    )
    with pytest.raises(InvalidRequest, match="no Neuron device"):
        load_neuron(tmp_path / "artifact", manifest, lambda line: None)
