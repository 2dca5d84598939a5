"""A target, and its draft, compiled for this CPU into one artefact: built, loaded, served and
refused.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from torch import Tensor

from compile import round_check
from compile.build.build import build_artifact, read_source
from compile.build.cpu import CpuBuilder, check_compiler
from compile.spec import CompileSpec, mask_words, prefill_bucket, verify_bucket
from grpc_comm.client.connection import connect
from inference.backends.eager import EagerModel
from inference.backends.graphs.compiled import read_compiled
from inference.backends.graphs.fused import load_fused
from inference.engine.engine import Engine
from inference.engine.sessions.local_session import LocalSession
from inference.errors import BadArtifact, InvalidRequest
from inference.files.artifact import (
    MANIFEST,
    DraftBucket,
    FusedPart,
    Manifest,
    RoundBucket,
    read_manifest,
    write_manifest,
)
from inference.model.checkpoints.config import read_raw_config
from inference.model.checkpoints.weight_files import fingerprint
from inference.model.decoder import Decoder
from inference.sampling import SamplingParams
from inference.text.tokenizer import Tokenizer
from inference.tree.tree_shape import Branches
from outrider.cli import main
from outrider.options.roles import FusedTargetRole
from outrider.processes import READY
from outrider.target.spawn import role_environment
from outrider.target.target import load_target
from tests.support.backends import NO_COMPILER
from tests.support.equality import NearTies
from tests.support.models import SAMPLINGS, loaded, write_checkpoint_with_tokenizer
from tests.support.pairs import alone, assert_drafted_text, growing, nudged, speculated
from tests.support.refusals import assert_refused

pytestmark = [pytest.mark.extended, NO_COMPILER]

LENGTH, TREE = 60, 4
JUNK = LENGTH + TREE


class Build(NamedTuple):
    """A build of the target's graphs, the draft's, and a round of two rows; and what it printed."""

    spec: CompileSpec
    source: Path
    draft: Path
    lines: list[str]

    def into(self, directory: Path) -> Manifest:
        return build_artifact(
            self.spec,
            read_source(self.source),
            CpuBuilder(self.spec, self.source, self.draft),
            directory,
            command="test",
            say=self.lines.append,
        )


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Build]:
    folder = tmp_path_factory.mktemp("models")
    source, draft = (
        write_checkpoint_with_tokenizer(folder / name, seed=seed, num_hidden_layers=1)
        for seed, name in enumerate(("target", "draft"))
    )
    part = FusedPart(
        "disagreeing draft",
        fingerprint(draft),
        read_raw_config(draft),
        (DraftBucket(1, 16, JUNK, 1, 1, False, JUNK),),
        (RoundBucket.of(Branches((2,)), 2, JUNK, JUNK, sampled=True),),
    )
    vocabulary = Tokenizer(source).vocabulary
    sampled = replace(verify_bucket(2, TREE, JUNK, JUNK, sampled=True), levels=3)
    masked = replace(sampled, words=mask_words(vocabulary, 1))
    graphs = (prefill_bucket(1, 16, JUNK, JUNK), sampled, masked)
    spec = CompileSpec("tiny", "cpu", vocabulary, graphs, 2, LENGTH, TREE, fused=part)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        yield Build(spec, source, draft, [])


@pytest.fixture(scope="module")
def built(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("artifact")
    build.into(out)
    return out


@pytest.fixture(scope="module")
def target(build: Build) -> Decoder:
    return loaded(build.source, LENGTH, build.spec.vocabulary)


def prompt_of(target: Decoder, length: int) -> list[int]:
    return np.random.default_rng(length).integers(0, target.vocabulary, length).tolist()


def own_text(target: Decoder, prompt: list[int], params: SamplingParams) -> list[int]:
    eager = EagerModel(target, rows=1, capacity=JUNK, max_nodes=16)
    plain = Engine(eager, sequence_length=LENGTH, max_tree_nodes=8, vocabulary=target.vocabulary)
    return alone(LocalSession(plain), prompt, params, 20)


def test_an_artefact_holds_both_models_and_says_so(build: Build, built: Path) -> None:
    manifest = read_manifest(built)
    assert manifest.fused is not None
    assert {path.relative_to(built).as_posix() for path in (built / "graphs").iterdir()} == {
        f"graphs/{bucket.name}.pt2" for bucket in manifest.graphs
    }
    assert {"weights/model.safetensors", "weights/draft.safetensors"} < set(manifest.files)
    assert str(manifest.fused.shape) == "tree of 2 nodes (2 children a node)"
    assert build.lines[-2:] == [
        "rounds, greedy: 30 of 30 choices equal",
        "rounds, temperature 1: 30 of 30 choices equal",
    ]


def test_the_role_serves_the_targets_own_text(built: Path, target: Decoder, ties: NearTies) -> None:
    served = load_target(FusedTargetRole(artifact=str(built), host="127.0.0.1", port=0))
    assert served.description.draft_model == (
        "disagreeing draft (in the target's graph: tree of 2 nodes (2 children a node))"
    )
    for length, params in enumerate(SAMPLINGS[:4], 5):
        prompt = prompt_of(target, length)
        own = own_text(target, prompt, params)
        assert_drafted_text(served.engine, target, prompt, params, own, ties)


def test_a_build_whose_rounds_write_another_text_ends_without_a_manifest(
    build: Build, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = read_manifest(built)
    wrong = load_fused(built, manifest)
    ((bucket, graph),) = wrong.round_graphs.items()

    def shifted(**inputs: Tensor) -> tuple[Tensor, ...]:
        answer, *others = graph(**inputs)
        answer[:, -1] = (answer[:, -1] + 1) % manifest.vocabulary
        return answer, *others

    wrong.round_graphs = {bucket: shifted}
    out = shutil.copytree(built, tmp_path / "out")
    (out / MANIFEST).unlink()
    monkeypatch.setattr(round_check, "load_fused", lambda *_: wrong)
    assert_refused(lambda: build.into(out), ["own text"], BadArtifact)
    assert not (out / MANIFEST).exists()
    monkeypatch.undo()
    assert build.into(out).files == manifest.files


@pytest.mark.parametrize(
    "name",
    ["weights/model.safetensors", "tokenizer.json", f"graphs/prefill_b1_t16_s{JUNK}_greedy.pt2"],
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
    r"inference\.model\.(decoder|eagle_head|graphs\..+|checkpoints\.checkpoint)"
    r"|transformers\.models\.(?!auto\.)\w+\.modeling_\w+"
)
COMPILER = (
    r"compile(\..+)?|triton|torch\.export\._trace"
    r"|torch\._inductor\.(compile_fx|graph|lowering|scheduler|codecache|codegen\.cpp)"
)


def test_the_served_process_traces_nothing_starts_no_compiler_and_imports_no_model_source(
    artifact: Path, target: Decoder, tmp_path: Path
) -> None:
    """The role as typed, with an empty torch cache. Parts of compilers come with transformers."""
    write_manifest(artifact, replace(read_manifest(artifact), fused=None))
    cache, prompt = tmp_path / "cache", prompt_of(target, 20)
    environment = {**role_environment(), "TORCHINDUCTOR_CACHE_DIR": str(cache)}
    command = [sys.executable, "-c", SERVING, str(artifact)]
    with subprocess.Popen(command, env=environment, stdout=-1, stderr=-1, text=True) as process:
        assert process.stderr is not None
        ready = next((line for line in process.stderr if line.startswith(READY)), READY + "nowhere")
        with connect(ready.removeprefix(READY).split()[0]) as connection:
            for params in SAMPLINGS[:3]:
                draft, session = growing(nudged(target)), connection.session()
                made = speculated(session, draft, prompt, params, 20)
                assert made == own_text(target, prompt, params)
        process.terminate()
        printed, said = process.communicate(timeout=30)
    assert process.returncode == 0, said
    imported = json.loads(printed)
    assert [name for name in imported if re.fullmatch(f"{MODEL_SOURCE}|{COMPILER}", name)] == []
    assert list(cache.glob("*")) == []  # torch makes the directory; nothing was compiled into it


VERIFY, FUSED = ["verify_target", "--prompt", "a"], ["fused_target"]


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        ([*VERIFY, "--model", "somewhere"], "leave out --model"),
        ([*VERIFY, "--device", "cuda"], "--device cuda"),
        ([*VERIFY, "--sequence_length", "500"], f"2 to {LENGTH}"),
        ([*FUSED, "--draft_model", "another"], "contains a draft"),
        ([*FUSED, "--draft_quantization", "int8"], "remove --draft_quantization"),
        ([*FUSED, "--max_tree_nodes", "2"], "3 nodes"),
    ],
)
def test_flags_that_contradict_the_artefact_are_refused(
    built: Path, capsys: pytest.CaptureFixture[str], flags: list[str], shown: str
) -> None:
    assert main(["--role", *flags, "--artifact", str(built)]) == 1
    assert shown in capsys.readouterr().err


def test_no_compiler_and_an_unknown_flag_of_it_are_refused(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = replace(build.spec, compiler_flags={"--O2": ""})
    assert_refused(lambda: CpuBuilder(spec, build.source), ["--O2"])
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert_refused(check_compiler, ["g++"], InvalidRequest)
