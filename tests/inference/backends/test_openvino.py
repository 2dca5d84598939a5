"""A target with 8-bit matrices by OpenVINO: built, checked, served and refused; its text is its
own decoding, whatever is drafted.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("openvino", reason="outrider[openvino] is not installed")

import inference.backends.openvino as backend
from compile.__main__ import main as compile_main
from compile.build.equivalence import INT8, check_equivalence, check_row_independence
from compile.build.openvino_builder import OpenVinoBuilder, matrices, to_int8
from compile.plan.memory import footprint
from compile.spec import CompileSpec, verify_bucket
from inference.artifact import read_manifest, write_manifest
from inference.backends.compiled import CompiledModel, read_compiled
from inference.backends.openvino import DECODER, DECODER_WEIGHTS, load_openvino
from inference.decode import Step
from inference.drafters.tree_policies import BestFirst, Chain
from inference.engine.engine import Engine
from inference.engine.local_session import LocalSession
from inference.errors import BadArtifact, InvalidRequest, MissingExtra
from inference.model.checkpoint import load_decoder
from inference.model.config import read_config
from inference.model.decoder import Decoder
from inference.model.verify_graph import VerifyGraph
from inference.sampling import SamplingParams
from inference.text import Tokenizer
from outrider.cli import main
from tests.support.drafts import alone, growing, nudged, rounds, speculated
from tests.support.models import tiny_decoder, write_checkpoint_with_tokenizer
from tests.support.repository import ROOT
from tests.support.row_independence import assert_rows_are_independent

LENGTH, NODES = 120, 8
JUNK = LENGTH + NODES
SIZES = {"hidden_size": 64, "intermediate_size": 96}
FLAGS = [
    "--target",
    "cpu",
    "--dtype",
    "int8",
    "--rows",
    "2",
    "--sequence_length",
    str(LENGTH),
    "--max_tree_nodes",
    str(NODES),
    "--sampling",
    "both",
]
SAMPLINGS = [
    SamplingParams(),
    SamplingParams(0.7, seed=1),
    SamplingParams(1.0, seed=2),
    SamplingParams(1.0, top_p=0.9, seed=3).on_the_wire(),
]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint_with_tokenizer(tmp_path_factory.mktemp("model"), **SIZES)


@pytest.fixture(scope="module")
def built(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("artifact")
    sizes = ["--prompt_chunks", "16", "--tree_sizes", f"2,{NODES}", "--slots", "64,128"]
    sizes += ["--sampling", "both"]
    assert compile_main(["--model", str(source), *FLAGS, *sizes, "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def model(built: Path) -> CompiledModel:
    return load_openvino(built, read_compiled(built))


@pytest.fixture(scope="module")
def engine(model: CompiledModel, source: Path) -> Engine:
    return Engine(
        model, sequence_length=LENGTH, max_tree_nodes=NODES, vocabulary=Tokenizer(source).vocabulary
    )


@pytest.fixture(scope="module")
def rounded(source: Path) -> Decoder:
    """The checkpoint in float32 with the artefact's matrices."""
    return float_decoder(source, round_=True)


def float_decoder(source: Path, *, round_: bool) -> Decoder:
    decoder = load_decoder(
        source,
        positions=LENGTH,
        vocabulary=Tokenizer(source).vocabulary,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    for matrix in matrices(decoder) if round_ else ():
        levels, scale = to_int8(matrix.detach().numpy())
        matrix.data = torch.from_numpy(levels * scale)
    return decoder


@pytest.mark.parametrize(
    "params", SAMPLINGS, ids=lambda params: f"T{params.temperature}-p{params.top_p:.1f}"
)
@pytest.mark.parametrize("policy", [Chain(7), BestFirst(7, 2)], ids=["chain", "tree"])
def test_drafting_leaves_the_targets_own_text_as_it_is(
    engine: Engine, rounded: Decoder, params: SamplingParams, policy: Chain | BestFirst
) -> None:
    """Token for token, without any allowance: calls of 2, 8 and 16 nodes compute the same bits
    here.
    """
    prompt, steps = prompt_of(rounded), list[Step]()
    made = speculated(
        LocalSession(engine), rounds(rounded, policy), prompt, params, 60, steps.append
    )
    assert made == alone(LocalSession(engine), prompt, params, 60)
    forwards = sum(bool(step.tokens) for step in steps)
    assert forwards < len(made), "nothing that was drafted was accepted"


@pytest.mark.parametrize(
    "params", SAMPLINGS, ids=lambda params: f"T{params.temperature}-p{params.top_p:.1f}"
)
def test_a_growing_draft_leaves_the_targets_own_text_as_it_is(
    engine: Engine, rounded: Decoder, params: SamplingParams
) -> None:
    """One that agrees often, not always."""
    prompt = prompt_of(rounded)
    made = speculated(LocalSession(engine), growing(nudged(rounded)), prompt, params, 60)
    assert made == alone(LocalSession(engine), prompt, params, 60)


def prompt_of(decoder: Decoder) -> list[int]:
    tokens: list[int] = np.random.default_rng(7).integers(0, decoder.vocabulary, 30).tolist()
    return tokens


@pytest.mark.parametrize(
    "params", SAMPLINGS, ids=lambda params: f"T{params.temperature}-p{params.top_p:.1f}"
)
def test_rows_and_nodes_are_independent(
    model: CompiledModel, rounded: Decoder, params: SamplingParams
) -> None:
    assert_rows_are_independent(model, model.cache, NODES, rounded.vocabulary, params)


@pytest.mark.parametrize(
    "overrides",
    [
        {"tie_word_embeddings": True},
        {"model_type": "qwen2", "vocab_size": 520},
        {"model_type": "qwen3", "head_dim": 16},
    ],
    ids=["tied", "qwen2", "qwen3"],
)
def test_families_build_and_equal_their_rounded_float_model(
    tmp_path: Path, overrides: dict[str, object]
) -> None:
    """The builder compares keys, values and choices of every bucket."""
    source = write_checkpoint_with_tokenizer(
        tmp_path / "model", num_hidden_layers=1, **SIZES | overrides
    )
    sizes = [
        "--prompt_chunks",
        "16",
        "--tree_sizes",
        "8",
        "--slots",
        "128",
        "--sampling",
        "sampled",
    ]
    assert (
        compile_main(["--model", str(source), *FLAGS, *sizes, "--out", str(tmp_path / "out")]) == 0
    )


def test_the_integers_hold_the_matrix_within_half_a_step() -> None:
    matrix = np.random.default_rng(0).normal(size=(5, 64)).astype(np.float32)
    matrix[3] = 0
    levels, scale = to_int8(matrix)
    assert levels.dtype == np.int8
    assert np.abs(levels).max(1).tolist() == [127, 127, 127, 0, 127]
    assert (np.abs(levels * scale - matrix) <= scale * 0.5001).all()


def test_another_models_decoder_is_not_accepted_as_this_one(
    model: CompiledModel, rounded: Decoder
) -> None:
    bucket, graph = next(
        (bucket, graph)
        for bucket, graph in model.graphs.items()
        if bucket.nodes == NODES and not bucket.sampled
    )
    other = tiny_decoder(9, rounded.vocabulary, vocab_size=rounded.vocabulary, **SIZES)
    fill(model.cache.tensors, 0.0, 1.0)
    check_equivalence(
        VerifyGraph(rounded, model.cache, 1),
        graph,
        bucket,
        sequence_length=LENGTH,
        tolerance=INT8,
    )
    check_row_independence(graph, bucket, rounded.vocabulary, sequence_length=LENGTH)
    with pytest.raises(BadArtifact, match="differ"):
        check_equivalence(
            VerifyGraph(other, model.cache, 1),
            graph,
            bucket,
            sequence_length=LENGTH,
            tolerance=INT8,
        )


def fill(parts: Sequence[Tensor], mean: float, spread: float = 0.0) -> None:
    """Write normal numbers, in place."""
    for part in parts:
        part.normal_(mean, spread)


def test_the_caches_are_bound_and_not_copied(model: CompiledModel) -> None:
    """What is written to the caches after loading is what the decoder reads."""
    bucket, graph = next(
        (bucket, graph)
        for bucket, graph in model.graphs.items()
        if bucket.nodes == 2 and not bucket.sampled
    )
    from inference.model.verify_graph import example_inputs

    inputs = example_inputs(bucket)
    inputs["context_mask"][:] = 1
    fill(model.cache.values, 0.0)
    first = graph(**inputs)[1].clone()
    fill(model.cache.values, 1.0)
    assert not torch.equal(first, graph(**inputs)[1])


def test_the_artefact_serves_in_a_process_that_has_neither_model_source_nor_reporting(
    built: Path,
) -> None:
    code = (
        "import sys\n"
        "from outrider.cli import main\n"
        "code = main(sys.argv[1:])\n"
        "unwanted = ('inference.model.decoder', 'compile.build.openvino_builder')\n"
        "loaded = [name for name in unwanted if name in sys.modules]\n"
        "loaded += [name for name in sys.modules if name.startswith('openvino_telemetry') and "
        "sys.modules[name]]\n"
        "sys.exit(f'imported {loaded}' if loaded else code)\n"
    )
    flags = [
        "--role",
        "verify_target",
        "--device",
        "cpu",
        "--artifact",
        str(built),
        "--prompt",
        "def main():",
        "--max_new_tokens",
        "8",
    ]
    done = subprocess.run(
        [sys.executable, "-c", code, *flags],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert "compiled for cpu, int8" in done.stderr


@pytest.mark.parametrize("name", [DECODER, DECODER_WEIGHTS])
def test_a_changed_byte_is_refused_by_the_files_name(
    artifact: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    data = bytearray((artifact / name).read_bytes())
    data[len(data) // 2] ^= 1
    (artifact / name).write_bytes(data)
    assert main(["--role", "verify_target", "--artifact", str(artifact), "--prompt", "a"]) == 1
    assert name in capsys.readouterr().err


def test_another_openvino_and_another_cpu_are_refused(artifact: Path) -> None:
    manifest = read_manifest(artifact)
    for change, said in (
        ({"versions": {**manifest.versions, "openvino": "1.0"}}, "openvino 1.0.*python -m compile"),
        ({"host": {**manifest.host, "openvino_cpu": "ABACUS"}}, "ABACUS.*python -m compile"),
    ):
        write_manifest(artifact, replace(manifest, **change))
        with pytest.raises(BadArtifact, match=said):
            load_openvino(artifact, read_compiled(artifact))


def test_without_openvino_the_install_line_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(MissingExtra, match=r"pip install .*outrider\[openvino\]"):
        backend.import_openvino()


def test_int8_is_for_cpu_and_takes_no_compiler_flags(source: Path) -> None:
    bucket = verify_bucket(1, NODES, JUNK, JUNK, sampled=False)
    spec = CompileSpec(
        "tiny",
        "cpu",
        10,
        (bucket,),
        rows=1,
        sequence_length=LENGTH,
        max_tree_nodes=NODES,
        dtype="int8",
    )
    with pytest.raises(InvalidRequest, match="int8 is built for cpu"):
        replace(spec, target="trn1")
    with pytest.raises(InvalidRequest, match="max_autotune"):
        OpenVinoBuilder(replace(spec, compiler_flags={"max_autotune": "1"}), source, 10)


def test_int8_is_counted_as_a_byte_a_weight_in_matrices(source: Path) -> None:
    bucket = verify_bucket(1, NODES, JUNK, JUNK, sampled=False)
    spec = CompileSpec(
        "tiny",
        "cpu",
        512,
        (bucket,),
        rows=1,
        sequence_length=LENGTH,
        max_tree_nodes=NODES,
        dtype="int8",
    )
    config = read_config(source)
    matrices_ = sum(
        parameter.numel() for parameter in matrices(float_decoder(source, round_=False))
    )
    whole = footprint(config, replace(spec, dtype="float32")).weights
    assert footprint(config, spec).weights == whole - 3 * matrices_
