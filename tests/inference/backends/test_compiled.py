"""A target compiled for this CPU: built, checked, loaded, padded to, served and refused. Skipped
where no C++ compiler is.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from compile.build.build import build_artifact, read_source
from compile.build.cpu import CpuBuilder, check_compiler
from compile.build.equality import check_equal, check_independent
from compile.build.progress import BuildProgress
from compile.spec import CompileSpec, prefill_bucket, verify_bucket
from grpc_comm.client.connection import connect
from grpc_comm.server.server import BackgroundServer
from inference.artifact import Bucket, read_manifest, write_manifest
from inference.backends.compiled import CompiledModel, graph_path, load_compiled, read_compiled
from inference.backends.eager import EagerModel
from inference.backends.gguf_model import GgufModel
from inference.backends.sequence import ModelSequence
from inference.backends.substitute import substitute_of
from inference.drafters.draft import Draft
from inference.drafters.round_proposer import BestFirst, Chain
from inference.engine.engine import Engine
from inference.engine.local_session import LocalSession
from inference.errors import BadArtifact, InvalidRequest, LimitExceeded, UnsupportedModel
from inference.model.cache import KeysValues
from inference.model.checkpoint import load_decoder
from inference.model.decoder import Decoder
from inference.model.verify_graph import VerifyGraph
from inference.planner.prices import Prices
from inference.proposer import Proposer
from inference.sampling import SamplingParams
from inference.text import Tokenizer
from outrider.cli import main
from outrider.draft_methods import eagle
from outrider.models.loading import EMBEDDED
from outrider.models.reduction import Reduction
from outrider.options.roles import FusedTargetRole, TargetRole
from outrider.target.spawn import role_environment
from outrider.target.target import READY, load_target
from tests.support import heads
from tests.support.copied_rows import PROMPT, shares
from tests.support.drafts import (
    alone,
    blocks,
    copying,
    growing,
    knowledge,
    nudged,
    rounds,
    speculated,
)
from tests.support.equality import NearTies, assert_same_text
from tests.support.fake_llama_cpp import Cells
from tests.support.models import write_checkpoint_with_tokenizer
from tests.support.row_independence import assert_rows_are_independent

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")

LENGTH, NODES, LEVELS = 120, 8, 3
JUNK = LENGTH + NODES
SAMPLINGS = [
    SamplingParams(), SamplingParams(0.7, seed=1), SamplingParams(1.0, seed=2),
    SamplingParams(1.0, top_p=0.9, seed=3).on_the_wire(),
    SamplingParams(0.7, top_k=20, seed=4).on_the_wire(),
]  # fmt: skip


DRAFTS: dict[str, Callable[[Decoder], Proposer]] = {
    "a chain deeper than the noise": lambda target: rounds(target, Chain(7)),
    "a bushy tree": lambda target: rounds(target, BestFirst(7, 2)),
    "a growing tree": lambda target: growing(nudged(target)),
    "copies": lambda target: copying(),
    "masks": lambda target: blocks(nudged(target)),
    "8-bit matrices": lambda target: growing(Reduction("int8").apply(nudged(target))),
    "the target's own layers in 4 bits": lambda target: growing(substitute_of(target)),
    "a GGUF file": lambda target: Draft(gguf()).proposer(0, knowledge(), Prices(), room=128),
}


def gguf() -> GgufModel:
    """A draft that llama.cpp computes, and that disagrees."""
    return GgufModel(
        Cells(), rows=1, capacity=JUNK + 128, max_nodes=32, batch=256, vocabulary=61,
        kind="tiny F32", device=torch.device("cpu"),
    )  # fmt: skip


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint_with_tokenizer(
        tmp_path_factory.mktemp("model"),
        num_hidden_layers=1,
        hidden_size=32,
        intermediate_size=64,
    )


@pytest.fixture(scope="module")
def built(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    vocabulary = Tokenizer(source).vocabulary
    buckets = (
        prefill_bucket(1, 16, 64, JUNK),
        verify_bucket(2, NODES, JUNK, JUNK, sampled=False),
        replace(verify_bucket(2, NODES, JUNK, JUNK, sampled=True), levels=LEVELS),
    )
    spec = CompileSpec(
        "tiny", "cpu", vocabulary, buckets, rows=2, sequence_length=LENGTH, max_tree_nodes=NODES,
        features=(0, 1),
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        out = tmp_path_factory.mktemp("artifact")
        build_artifact(
            spec,
            read_source(source),
            CpuBuilder(spec, source),
            out,
            command="test",
            progress=BuildProgress(print),
        )
        yield out


@pytest.fixture(scope="module")
def model(built: Path) -> CompiledModel:
    return load_compiled(built, read_compiled(built))


@pytest.fixture(scope="module")
def target(source: Path, model: CompiledModel) -> Decoder:
    return load_decoder(
        source,
        positions=LENGTH,
        vocabulary=Tokenizer(source).vocabulary,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )


def engine(model: CompiledModel | EagerModel, vocabulary: int) -> Engine:
    return Engine(model, sequence_length=LENGTH, max_tree_nodes=NODES, vocabulary=vocabulary)


def eager_model(target: Decoder) -> EagerModel:
    return EagerModel(target, rows=2, capacity=JUNK, max_nodes=32)


def prompt_of(target: Decoder, length: int) -> list[int]:
    return np.random.default_rng(length).integers(0, target.vocabulary, length).tolist()


@pytest.mark.parametrize(
    "params",
    SAMPLINGS,
    ids=lambda params: f"T{params.temperature}-p{params.top_p:.1f}-k{params.top_k}",
)
@pytest.mark.parametrize("length", [1, 30, 75])
def test_the_compiled_target_alone_writes_the_eager_targets_text(
    model: CompiledModel, target: Decoder, ties: NearTies, params: SamplingParams, length: int
) -> None:
    prompt, compiled = prompt_of(target, length), engine(model, target.vocabulary)
    reference = alone(
        LocalSession(engine(eager_model(target), target.vocabulary)), prompt, params, 25
    )
    assert_same_text(
        target,
        prompt,
        params,
        reference,
        lambda prompt, n: alone(LocalSession(compiled), prompt, params, n),
        ties,
    )


@pytest.mark.parametrize("params", SAMPLINGS[:3], ids=lambda params: f"T{params.temperature}")
def test_text_from_a_copied_row_is_text_from_a_prefilled_one(
    model: CompiledModel, target: Decoder, params: SamplingParams
) -> None:
    assert shares(engine(model, target.vocabulary), params) == len(PROMPT) + 8


@pytest.mark.parametrize(
    "params",
    SAMPLINGS,
    ids=lambda params: f"T{params.temperature}-p{params.top_p:.1f}-k{params.top_k}",
)
@pytest.mark.parametrize("draft", DRAFTS)
def test_drafting_for_a_compiled_target_leaves_its_text_as_it_is(
    model: CompiledModel, target: Decoder, ties: NearTies, params: SamplingParams, draft: str
) -> None:
    prompt, compiled = prompt_of(target, 20), engine(model, target.vocabulary)
    reference = alone(
        LocalSession(engine(eager_model(target), target.vocabulary)), prompt, params, 25
    )
    proposer = DRAFTS[draft](target)

    def produce(prompt: Sequence[int], n: int) -> list[int]:
        return speculated(LocalSession(compiled), proposer, prompt, params, n)

    assert_same_text(target, prompt, params, reference, produce, ties)


@pytest.mark.parametrize(
    "params", SAMPLINGS[:4], ids=lambda params: f"T{params.temperature}-p{params.top_p:.1f}"
)
def test_rows_and_nodes_are_independent(
    model: CompiledModel, target: Decoder, params: SamplingParams
) -> None:
    assert_rows_are_independent(model, model.cache, NODES, target.vocabulary, params)
    eager = eager_model(target)
    assert_rows_are_independent(eager, eager.cache, NODES, target.vocabulary, params)


def test_what_one_graph_writes_another_reads(model: CompiledModel, target: Decoder) -> None:
    """The prompt by the prefill graph, then by the verify graph: the same keys in the same
    slots, and as eager has them.
    """
    prompt, eager = prompt_of(target, 14), eager_model(target)
    caches = []
    for served in (model, replace_graphs(model, prefill=False), eager):
        ModelSequence(served, 1, SamplingParams()).extend(prompt[:-1])
        caches.append(served.cache.stacked()[0][:, 1, :13])
    torch.testing.assert_close(caches[0], caches[2], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(caches[1], caches[2], rtol=1e-4, atol=1e-5)


def replace_graphs(model: CompiledModel, *, prefill: bool) -> CompiledModel:
    """The same model with the graphs of one kind only."""
    kept = {
        bucket: graph for bucket, graph in model.graphs.items() if (bucket.picks == 1) == prefill
    }
    return CompiledModel(kept, model.cache)


def test_compiled_graphs_return_the_features_that_the_eager_target_keeps(
    model: CompiledModel, target: Decoder
) -> None:
    ours, theirs = (heads.kept_of_a_text(each, (0, 1), 1) for each in (model, eager_model(target)))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    last = heads.kept_of_a_text(model, (1,), 1)
    assert last.equal(ours[:, target.config.hidden_size :])


@pytest.fixture(scope="module")
def head(target: Decoder, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random head, which reads both features of the artefact."""
    raw = heads.raw_config(target.config, eagle_aux_hidden_state_layer_ids=[0, 1])
    tensors = heads.tensors_of(target.config, layers=2)
    return str(heads.write_head(tmp_path_factory.mktemp("head"), raw, tensors))


def test_a_head_beside_a_compiled_target_makes_the_targets_own_text(
    built: Path, head: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = FusedTargetRole(port=0, artifact=str(built), draft="eagle", draft_model=head)
    with BackgroundServer(load_target(options)) as server:
        for temperature in ("0", "0.7", "1"):
            port = str(server.address.port)
            flags = ["--port", port, "--prompt", "def main(argv):", "--max_new_tokens", "24"]
            sampled = ["--temperature", temperature, "--seed", "3", "--json", "--baseline"]
            capsys.readouterr()
            assert main(["--role", "fused_client", *flags, *sampled]) == 0
            said = capsys.readouterr()
            record = json.loads(said.out)
            assert record["token_ids"] == record["baseline"]["token_ids"]
            assert f"with {head} beside it" in said.err


def test_a_head_that_reads_other_layers_is_told_how_to_build_for_it(
    built: Path, head: str, model: CompiledModel, tmp_path: Path
) -> None:
    for path in built.glob("*.json*"):
        shutil.copyfile(path, tmp_path / path.name)
    manifest = read_manifest(built)
    write_manifest(tmp_path, replace(manifest, features=(0,), command="outrider compile --rows 2"))
    options = FusedTargetRole(artifact=str(tmp_path), draft="eagle", draft_model=head)
    message = (
        "its graphs return inputs of layers 0, and .* reads inputs of layers 0, 1: build it again "
        "with outrider compile --rows 2 --features 0,1$"
    )
    with pytest.raises(UnsupportedModel, match=message):
        eagle.find(options, model)


def test_a_session_longer_than_the_artefact_is_refused_at_open_with_the_limit(
    model: CompiledModel, target: Decoder
) -> None:
    with pytest.raises(LimitExceeded, match=str(LENGTH)):
        engine(model, target.vocabulary).open(prompt_of(target, LENGTH), SamplingParams())


def test_a_graph_that_computes_something_else_is_not_written(
    model: CompiledModel, target: Decoder
) -> None:
    bucket, graph = next(
        (bucket, graph) for bucket, graph in model.graphs.items() if bucket.sampled
    )
    cache = KeysValues.of(torch.randn_like(part) for part in model.cache.tensors)
    eager = VerifyGraph(target, cache, LEVELS, (0, 1))
    with pytest.raises(BadArtifact, match="keys differ"):
        check_equal(
            eager,
            lambda **inputs: tuple(part + 1 for part in graph(**inputs)),
            bucket,
            sequence_length=LENGTH,
        )
    with pytest.raises(BadArtifact, match="choices differ"):
        check_equal(
            eager,
            lambda **inputs: (torch.flip(eager(**inputs)[0], (1,)), *eager(**inputs)[1:]),
            bucket,
            sequence_length=LENGTH,
        )


def test_a_graph_whose_nodes_depend_on_their_siblings_is_not_written(
    model: CompiledModel, target: Decoder
) -> None:
    bucket, graph = next(
        (bucket, graph)
        for bucket, graph in model.graphs.items()
        if bucket.picks > 1 and not bucket.sampled
    )
    eager = VerifyGraph(target, model.cache, LEVELS, (0, 1))
    check_independent(eager, graph, bucket, sequence_length=LENGTH)

    def per_tensor(**inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        chosen, keys, *others = graph(**inputs)
        scale = keys.abs().max() / 127
        return chosen, torch.round(keys / scale) * scale, *others

    with pytest.raises(BadArtifact, match="keys change"):
        check_independent(eager, per_tensor, bucket, sequence_length=LENGTH)


@pytest.mark.parametrize(
    "name", ["weights/model.safetensors", "tokenizer.json", "graphs/prefill_b1_t16_s64_greedy.pt2"]
)
def test_a_changed_byte_is_refused_by_the_files_name(
    artifact: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    path = artifact / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert main(["--role", "verify_target", "--artifact", str(artifact), "--prompt", "a"]) == 1
    assert name in capsys.readouterr().err


def test_another_schema_another_machine_and_another_target_are_refused(artifact: Path) -> None:
    manifest = read_manifest(artifact)
    for change, said in (
        ({"schema": 99}, "manifest.json"),
        ({"schema": 1}, "build it again"),
        ({"host": {**manifest.host, "cpu_capability": "AVX9000"}}, "AVX9000.*outrider compile"),
        (
            {"host": {**manifest.host, "cpu_instructions": "avx2 abacus"}},
            "abacus.*outrider compile",
        ),
        ({"versions": {"torch": "1.0"}}, "torch 1.0.*outrider compile"),
        ({"target": "trn1"}, "built for trn1"),
    ):
        write_manifest(artifact, replace(manifest, **change))
        with pytest.raises(BadArtifact, match=said):
            read_compiled(artifact)


def over_grpc(
    address: str, proposer: Proposer, prompt: Sequence[int], params: SamplingParams, tokens: int
) -> list[int]:
    """A text drafted here and chosen by the target at the address."""
    with connect(address) as connection:
        return speculated(connection.session(), proposer, prompt, params, tokens)


@pytest.fixture(scope="module")
def embedded_draft() -> Decoder:
    directory, cpu = EMBEDDED / "draft", torch.device("cpu")
    return load_decoder(
        directory,
        positions=LENGTH,
        vocabulary=Tokenizer(directory).vocabulary,
        dtype=torch.float32,
        device=cpu,
    )


@pytest.mark.parametrize("params", SAMPLINGS[:3], ids=lambda params: f"T{params.temperature}")
@pytest.mark.parametrize(
    "draft", [growing, partial(rounds, policy=BestFirst(7, 4))], ids=["growing", "rounds"]
)
def test_a_served_artefact_writes_the_eager_targets_text_over_grpc(
    built: Path,
    target: Decoder,
    embedded_draft: Decoder,
    ties: NearTies,
    params: SamplingParams,
    draft: Callable[[Decoder], Proposer],
) -> None:
    prompt = Tokenizer(EMBEDDED / "draft").encode("def main():\n    return")
    reference = alone(
        LocalSession(engine(eager_model(target), target.vocabulary)), prompt, params, 30
    )
    proposer = draft(embedded_draft)
    with BackgroundServer(load_target(TargetRole(port=0, artifact=str(built)))) as server:
        address = str(server.address)
        assert_same_text(
            target,
            prompt,
            params,
            reference,
            lambda prompt, n: over_grpc(address, proposer, prompt, params, n),
            ties,
        )


SERVING = """
import json, sys, torch

def refuse(event, arguments):
    if event in ("subprocess.Popen", "os.fork", "os.posix_spawn", "os.exec", "os.system"):
        raise AssertionError(f"{event} {arguments}")

def traced(*_, **__):
    raise AssertionError("traced")

sys.addaudithook(refuse)
torch.export.export = torch.compile = torch.jit.trace = traced
from outrider.cli import main
code = main(["--role", "target", "--port", "0", "--artifact", sys.argv[1]])
print(json.dumps(sorted(sys.modules)))
sys.exit(code)
"""
MODEL_SOURCE = (
    r"inference\.model\.(decoder|graph|checkpoint)"
    r"|transformers\.models\.(?!auto\.)\w+\.modeling_\w+"
)
COMPILER = (
    r"compile(\..+)?|triton|torch\.export\._trace"
    r"|torch\._inductor\.(compile_fx|graph|lowering|scheduler|codecache|codegen\.cpp)"
)


def test_the_served_process_traces_nothing_starts_no_compiler_and_imports_no_model_source(
    built: Path, target: Decoder, embedded_draft: Decoder, tmp_path: Path
) -> None:
    """The role as typed, in a process of its own with an empty torch cache, until the signal that
    ends it. transformers is there for tokenizers, and brings parts of torch's compilers with it;
    the modelling of a family and what makes code are not there.
    """
    cache, prompt, params = tmp_path / "cache", prompt_of(target, 20), SAMPLINGS[1]
    environment = {**role_environment(), "TORCHINDUCTOR_CACHE_DIR": str(cache)}
    with subprocess.Popen(
        [sys.executable, "-c", SERVING, str(built)],
        env=environment,
        stdout=-1,
        stderr=-1,
        text=True,
    ) as process:
        assert process.stderr is not None
        address = next(
            (
                line.removeprefix(READY).split()[0]
                for line in process.stderr
                if line.startswith(READY)
            ),
            "nowhere",
        )
        made = over_grpc(address, growing(embedded_draft), prompt, params, 20)
        process.terminate()
        printed, said = process.communicate(timeout=30)
    assert process.returncode == 0, said
    assert made == alone(
        LocalSession(engine(eager_model(target), target.vocabulary)), prompt, params, 20
    )
    assert [
        name for name in json.loads(printed) if re.fullmatch(f"{MODEL_SOURCE}|{COMPILER}", name)
    ] == []
    assert list(cache.glob("*")) == []  # torch makes the directory; nothing was compiled into it


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--model", "somewhere"], "leave out --model"),
        (["--device", "cuda"], "--device cuda"),
        (["--sequence_length", "500"], f"2 to {LENGTH}"),
    ],
)
def test_flags_that_contradict_the_artefact_are_refused(
    built: Path, capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    assert main(["--role", "verify_target", "--artifact", str(built), "--prompt", "a", *flags]) == 1
    assert said in capsys.readouterr().err


def test_an_artefact_does_not_draft(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--role", "verify_draft", "--artifact", str(built), "--prompt", "a"])
    assert ended.value.code == 2
    assert "--artifact is for --role target" in capsys.readouterr().err


def test_without_a_compiler_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(InvalidRequest, match="g\\+\\+"):
        check_compiler()


def test_an_unknown_compiler_flag_is_refused(source: Path) -> None:
    bucket = Bucket(1, NODES, JUNK, NODES, 1, False, JUNK)
    spec = CompileSpec(
        "tiny",
        "cpu",
        10,
        (bucket,),
        rows=1,
        sequence_length=LENGTH,
        max_tree_nodes=NODES,
        compiler_flags={"--O2": ""},
    )
    with pytest.raises(InvalidRequest, match="--O2"):
        CpuBuilder(spec, source)


def test_graphs_lie_where_the_bucket_says(built: Path) -> None:
    manifest = read_manifest(built)
    assert {graph_path(bucket) for bucket in manifest.buckets} < set(manifest.files)
    assert {path.relative_to(built).as_posix() for path in (built / "graphs").iterdir()} == {
        graph_path(bucket) for bucket in manifest.buckets
    }
