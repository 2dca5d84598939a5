"""The CPU builder: one ahead-of-time inductor package a bucket, without weights, checked against the same graph run eagerly.

Packages hold machine code for the CPU that builds them; weights lie beside them, once for all buckets.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor
from torch.export import ExportedProgram

from compile.equivalence import check_equivalence, check_row_independence
from compile.spec import CompileSpec
from inference.artifact import Bucket
from inference.backends.compiled import CACHES, WEIGHTS, empty_caches, graph_path, host, load_graph
from inference.errors import BadArtifact, InvalidRequest
from inference.model.checkpoint import DTYPES, load_decoder
from inference.model.decoder import Decoder
from inference.model.graph import VerifyGraph, example_inputs

ALWAYS: Mapping[str, object] = {
    "aot_inductor.package_constants_in_so": False,  # one set of weights for all graphs
    "cpp.dynamic_threads": True,  # as many threads as torch has when it serves, not when it was compiled
}


class CpuBuilder:
    """A Builder (compile/build.py) for the machine it runs on."""

    target = "cpu"

    def __init__(self, spec: CompileSpec, checkpoint_directory: Path, vocabulary: int) -> None:
        self._spec, self._checkpoint, self._vocabulary = spec, checkpoint_directory, vocabulary
        self._config = {**ALWAYS, **_inductor_settings(spec.compiler_flags)}
        self._loaded: tuple[Decoder, Tensor, Tensor] | None = None

    def prepare(self, directory: Path) -> list[str]:
        """The weights and the rotary tables, by the names that graphs know them by."""
        from safetensors.torch import save_file

        check_compiler()
        decoder, _keys, _values = self._model()
        (directory / WEIGHTS).parent.mkdir(parents=True, exist_ok=True)
        save_file({name: tensor.detach().contiguous() for name, tensor in _constants(decoder).items()}, directory / WEIGHTS)
        return [WEIGHTS]

    def build(self, bucket: Bucket, directory: Path) -> list[str]:
        """One graph; raises BadArtifact when it does not compute what the eager graph computes."""
        check_compiler()
        decoder, keys, values = self._model()
        eager = VerifyGraph(decoder, keys, values, bucket.levels)
        with tempfile.TemporaryDirectory(dir=directory) as scratch:
            path = Path(scratch) / "graph.pt2"
            compile_graph(eager, bucket, path, self._config)
            compiled = load_graph(path, {**graph_constants(decoder), **dict(zip(CACHES, (keys, values), strict=True))})
            check_equivalence(eager, compiled, bucket, sequence_length=self._spec.sequence_length)
            check_row_independence(compiled, bucket, self._vocabulary, sequence_length=self._spec.sequence_length)
            (directory / graph_path(bucket)).parent.mkdir(parents=True, exist_ok=True)
            shutil.move(path, directory / graph_path(bucket))
        return [graph_path(bucket)]

    def finish(self, directory: Path, buckets: Sequence[Bucket]) -> list[str]:
        """Nothing: each graph stands alone."""
        return []

    def versions(self) -> Mapping[str, str]:
        return {"torch": torch.__version__}

    def host(self) -> Mapping[str, str]:
        return host()

    def flags(self) -> Mapping[str, str]:
        return {name: str(value) for name, value in self._config.items()}

    def _model(self) -> tuple[Decoder, Tensor, Tensor]:
        """The decoder and caches full of noise, which the comparisons read; one for all buckets."""
        if self._loaded is None:
            spec = self._spec
            decoder = load_decoder(
                self._checkpoint, positions=spec.sequence_length, vocabulary=self._vocabulary, dtype=DTYPES[spec.dtype], device=torch.device("cpu")
            )
            keys, values = empty_caches(decoder.config, spec.rows, spec.capacity, DTYPES[spec.dtype])
            generator = torch.Generator().manual_seed(0)
            self._loaded = decoder, keys.normal_(generator=generator), values.normal_(generator=generator)
        return self._loaded


def compile_graph(graph: VerifyGraph, bucket: Bucket, path: Path, settings: Mapping[str, object] = ALWAYS) -> None:
    """Write the graph's package, without weights, to `path`; `settings` are torch._inductor.config's."""
    from torch._inductor import aoti_compile_and_package
    from torch._inductor.exc import InductorError

    program = export_graph(graph, bucket)
    with _one_compile_thread(), torch.no_grad():
        try:
            aoti_compile_and_package(program, package_path=str(path), inductor_configs=dict(settings))
        except (InductorError, RuntimeError) as error:
            raise BadArtifact(f"graph {bucket.name} was not compiled: {_last_line(error)}") from error


def export_graph(graph: VerifyGraph, bucket: Bucket) -> ExportedProgram:
    """The graph for the bucket's shapes; it must leave its caches as they are, since its caller writes them."""
    with torch.no_grad():
        program = torch.export.export(graph, (), example_inputs(bucket), strict=False)
    written = program.run_decompositions({}).graph_signature.buffers_to_mutate
    assert not written, f"the graph writes {sorted(written.values())}"
    return program


def check_compiler() -> None:
    """Raise InvalidRequest where no C++ compiler is found."""
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise InvalidRequest(
            f"--target cpu needs a C++ compiler, and {compiler} is not found: install g++ (apt-get install g++; or set CXX),"
            " or serve the model directory itself with --device cpu --model, which needs none"
        )


def _constants(decoder: Decoder) -> dict[str, Tensor]:
    return {**dict(decoder.named_parameters()), "cos": decoder.cos, "sin": decoder.sin}


def graph_constants(decoder: Decoder) -> dict[str, Tensor]:
    """What a graph needs beside its caches, by the names it has there."""
    return {f"decoder.{name}": tensor for name, tensor in _constants(decoder).items()}


def _inductor_settings(flags: Mapping[str, str]) -> dict[str, object]:
    """torch._inductor.config's settings as their own types; raises InvalidRequest for one it does not have."""
    from torch._inductor import config

    known = config.get_config_copy()
    settings: dict[str, object] = {}
    for name, text in flags.items():
        if name not in known or name in ALWAYS:
            raise InvalidRequest(f"compiler flag {name}: for cpu, flags are settings of torch._inductor.config, such as cpp.simdlen=256")
        kind = type(known[name])
        try:
            settings[name] = text.lower() in ("", "1", "true") if kind is bool else int(text) if kind is int else text
        except ValueError as error:
            raise InvalidRequest(f"compiler flag {name}={text}: a number is needed") from error
    return settings


@contextmanager
def _one_compile_thread() -> Iterator[None]:
    """Inductor's pool of compile processes is for many small kernels; here it only costs its start."""
    from torch._inductor import config

    with config.patch(compile_threads=1):
        yield


def _last_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
