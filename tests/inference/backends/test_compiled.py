"""A target compiled for this CPU: built, checked, loaded, served and refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from compile.agreement import check_graph
from compile.build.build import build_artifact, read_source
from compile.build.cpu import CpuBuilder, check_compiler
from compile.spec import CompileSpec, mask_words, prefill_bucket, verify_bucket
from grpc_comm.client.connection import connect
from inference.backends.eager import EagerModel
from inference.backends.graphs.compiled import CompiledModel, load_compiled, read_compiled
from inference.engine.engine import Engine
from inference.engine.sessions.local_session import LocalSession
from inference.errors import BadArtifact, InvalidRequest
from inference.files.artifact import read_manifest, write_manifest
from inference.model.cache import FeatureForm
from inference.model.decoder import Decoder
from inference.text.tokenizer import Tokenizer
from outrider.cli import main
from outrider.processes import READY
from outrider.target.spawn import role_environment
from tests.support.backends import NO_COMPILER
from tests.support.models import SAMPLINGS, loaded, write_checkpoint_with_tokenizer
from tests.support.pairs import alone, growing, nudged, speculated
from tests.support.refusals import assert_refused

pytestmark = [pytest.mark.extended, NO_COMPILER]

LENGTH, NODES, LEVELS = 120, 8, 3
JUNK = LENGTH + NODES


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 64}
    return write_checkpoint_with_tokenizer(tmp_path_factory.mktemp("model"), **sizes)


def spec_of(source: Path, **changes: Any) -> CompileSpec:
    vocabulary = Tokenizer(source).vocabulary
    sampled = replace(verify_bucket(2, NODES, JUNK, JUNK, sampled=True), levels=LEVELS)
    graphs = (
        prefill_bucket(1, 16, 64, JUNK),
        verify_bucket(2, NODES, JUNK, JUNK, sampled=False),
        sampled,
        replace(sampled, words=mask_words(vocabulary, 1)),
    )
    spec = CompileSpec("tiny", "cpu", vocabulary, graphs, 2, LENGTH, NODES, features=(0, 1))
    return replace(spec, **changes)


@pytest.fixture(scope="module")
def built(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    spec, out = spec_of(source), tmp_path_factory.mktemp("artifact")
    builder = CpuBuilder(spec, source)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        build_artifact(spec, read_source(source), builder, out, command="test", say=print)
        yield out


@pytest.fixture(scope="module")
def model(built: Path) -> CompiledModel:
    return load_compiled(built, read_compiled(built))


@pytest.fixture(scope="module")
def target(source: Path) -> Decoder:
    return loaded(source, LENGTH, Tokenizer(source).vocabulary)


def eager_model(target: Decoder) -> EagerModel:
    return EagerModel(target, rows=2, capacity=JUNK, max_nodes=32)


def prompt_of(target: Decoder, length: int) -> list[int]:
    return np.random.default_rng(length).integers(0, target.vocabulary, length).tolist()


Run = Callable[..., tuple[Tensor, ...]]


@pytest.mark.parametrize("kind", ["greedy", "sampled", "masked"])
def test_a_graph_that_computes_something_else_is_not_written(
    model: CompiledModel, target: Decoder, kind: str
) -> None:
    bucket, graph = next(
        (bucket, graph)
        for bucket, graph in model.graphs.items()
        if bucket.picks > 1 and bucket.name.endswith(kind)
    )

    def check(run: Run) -> None:
        over = CompiledModel({bucket: run}, model.cache, FeatureForm((0, 1), 32))
        check_graph(over, eager_model(target), bucket, LENGTH, (0, 1))

    def flipped(**inputs: Tensor) -> tuple[Tensor, ...]:
        chosen, *others = graph(**inputs)
        return chosen.flip(1), *others

    def moved(**inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(part + 1 for part in graph(**inputs))

    def featureless(**inputs: Tensor) -> tuple[Tensor, ...]:
        *others, features = graph(**inputs)
        return *others, features.roll(1, -1)

    def leaking(**inputs: Tensor) -> tuple[Tensor, ...]:
        chosen, keys, *others = graph(**inputs)
        return chosen, keys * (1 + 3e-5 * keys.abs().mean()), *others

    check(graph)
    for wrong, shown in (
        (moved, "keys differ"),
        (flipped, "choices differ"),
        (featureless, "features differ"),
        (leaking, "keys change"),
    ):
        with pytest.raises(BadArtifact, match=shown):
            check(wrong)


@pytest.mark.parametrize(
    "name", ["weights/model.safetensors", "tokenizer.json", "graphs/prefill_b1_t16_s64_greedy.pt2"]
)
def test_a_changed_byte_is_refused_by_the_files_name(artifact: Path, name: str) -> None:
    data = bytearray((artifact / name).read_bytes())
    data[len(data) // 2] ^= 1
    (artifact / name).write_bytes(data)
    assert_refused(lambda: read_compiled(artifact), [name], BadArtifact)


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"schema": 99}, ["manifest.json", "99"]),
        ({"schema": 1}, ["build it again"]),
        ({"host": {"cpu_capability": "AVX9000"}}, ["AVX9000", "outrider compile"]),
        ({"host": {"cpu_instructions": "avx2 abacus"}}, ["abacus", "outrider compile"]),
        ({"versions": {"torch": "1.0"}}, ["torch 1.0", "outrider compile"]),
        ({"target": "trn1"}, ["trn1"]),
    ],
    ids=str,
)
def test_another_schema_another_machine_and_another_target_are_refused(
    artifact: Path, change: dict[str, Any], shown: list[str]
) -> None:
    manifest = read_manifest(artifact)
    if "host" in change:
        change = {"host": {**manifest.host, **change["host"]}}
    write_manifest(artifact, replace(manifest, **change))
    assert_refused(lambda: read_compiled(artifact), shown, BadArtifact)


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
    built: Path, target: Decoder, tmp_path: Path
) -> None:
    """The role as typed, with an empty torch cache. Parts of compilers come with transformers."""
    cache, prompt, made = tmp_path / "cache", prompt_of(target, 20), []
    environment = {**role_environment(), "TORCHINDUCTOR_CACHE_DIR": str(cache)}
    command = [sys.executable, "-c", SERVING, str(built)]
    with subprocess.Popen(command, env=environment, stdout=-1, stderr=-1, text=True) as process:
        assert process.stderr is not None
        ready = next((line for line in process.stderr if line.startswith(READY)), READY + "nowhere")
        with connect(ready.removeprefix(READY).split()[0]) as connection:
            for params in SAMPLINGS[:3]:
                draft, session = growing(nudged(target)), connection.session()
                made.append(speculated(session, draft, prompt, params, 20))
        process.terminate()
        printed, said = process.communicate(timeout=30)
    assert process.returncode == 0, said
    vocabulary, eager = target.vocabulary, eager_model(target)
    served = Engine(eager, sequence_length=LENGTH, max_tree_nodes=NODES, vocabulary=vocabulary)
    assert made == [alone(LocalSession(served), prompt, params, 20) for params in SAMPLINGS[:3]]
    imported = json.loads(printed)
    assert [name for name in imported if re.fullmatch(f"{MODEL_SOURCE}|{COMPILER}", name)] == []
    assert list(cache.glob("*")) == []  # torch makes the directory; nothing was compiled into it


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        (["--model", "somewhere"], "leave out --model"),
        (["--device", "cuda"], "--device cuda"),
        (["--sequence_length", "500"], f"2 to {LENGTH}"),
    ],
)
def test_flags_that_contradict_the_artefact_are_refused(
    built: Path, capsys: pytest.CaptureFixture[str], flags: list[str], shown: str
) -> None:
    assert main(["--role", "verify_target", "--artifact", str(built), "--prompt", "a", *flags]) == 1
    assert shown in capsys.readouterr().err


def test_no_compiler_and_an_unknown_flag_of_it_are_refused(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of(source, compiler_flags={"--O2": ""})
    assert_refused(lambda: CpuBuilder(spec, source), ["--O2"])
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert_refused(check_compiler, ["g++"], InvalidRequest)
