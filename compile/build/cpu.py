"""The CPU builder: one ahead-of-time inductor package per bucket, checked against the eager graph.

Packages contain machine code for the CPU that builds them. Weights are stored separately, once for
all buckets. Several processes may build graphs at once.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.export import ExportedProgram

from compile.agreement import check_graph
from compile.build.build import Builder, MadeWith, load_whole, quiet_libraries
from compile.plan.memory import processors
from compile.spec import CompileSpec
from inference.backends.eager import EagerModel
from inference.backends.graphs.compiled import (
    WEIGHTS,
    CompiledModel,
    Graph,
    graph_path,
    host,
    load_graph,
)
from inference.backends.graphs.fused import DRAFT_WEIGHTS, round_constants
from inference.errors import BadArtifact, InvalidRequest
from inference.files.artifact import Bucket, DraftBucket, RoundBucket
from inference.model.cache import FeatureForm, KeysValues, cache_names
from inference.model.decoder import Decoder
from inference.model.graphs.round_graph import RoundGraph, round_inputs
from inference.model.graphs.verify_graph import VerifyGraph, example_inputs

ALWAYS: Mapping[str, object] = {
    "aot_inductor.package_constants_in_so": False,  # all graphs share one set of weights
    # use torch's number of threads at run time, not that at compile time
    "cpp.dynamic_threads": True,
    # precompiling headers only pays off for many graphs
    "cpp_cache_precompile_headers": False,
    "aot_inductor.precompile_headers": False,
}


class CpuBuilder:
    """A Builder (compile/build/build.py) for the CPU of this machine.

    draft: the checkpoint of the draft in the graphs, if the spec has one
    """

    workers = 1  # inductor compiles one graph at a time

    def __init__(self, spec: CompileSpec, checkpoint: Path, draft: Path | None = None) -> None:
        self._spec, self._checkpoint, self._draft_checkpoint = spec, checkpoint, draft
        self._config = {**ALWAYS, **_inductor_settings(spec.compiler_flags)}

    def prepare(self, directory: Path) -> list[str]:
        """Write the weights and the rotary tables under their names in the graphs."""
        check_compiler()
        written = {WEIGHTS: self._target}
        if self._spec.fused is not None:
            written[DRAFT_WEIGHTS] = self._draft
        for name, model in written.items():
            weights = weights_of(model.decoder).items()
            tensors = {key: weight.detach().contiguous() for key, weight in weights}
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            save_file(tensors, directory / name)
        return list(written)

    def build(self, bucket: Bucket, directory: Path) -> list[str]:
        """Build one graph. Raises BadArtifact unless it computes the same as the eager graph."""
        if isinstance(bucket, RoundBucket):
            target, draft = self._target, self._draft
            constants = constants_of(target.decoder, target.cache)
            constants |= round_constants(constants_of(draft.decoder, draft.cache))
            graph: nn.Module = RoundGraph(
                target.decoder, draft.decoder, target.cache, draft.cache, bucket.shape
            )
            with self._compiled(graph, bucket, round_inputs(bucket), constants, directory):
                return [graph_path(bucket)]  # check_rounds checks it once all graphs are built
        model = self._draft if isinstance(bucket, DraftBucket) else self._target
        features, cache = self._spec.features, KeysValues.of(map(torch.clone, model.by_slot))
        graph = VerifyGraph(model.decoder, model.cache, bucket.levels, features)
        inputs, constants = example_inputs(bucket), constants_of(model.decoder, cache)
        with self._compiled(graph, bucket, inputs, constants, directory) as compiled:
            form = FeatureForm(features, model.decoder.config.hidden_size)
            over = CompiledModel({bucket: compiled}, cache, form)
            check_graph(over, model, bucket, self._spec.sequence_length, features)
        return [graph_path(bucket)]

    @contextmanager
    def _compiled(
        self,
        eager: nn.Module,
        bucket: Bucket,
        inputs: Mapping[str, Tensor],
        constants: Mapping[str, Tensor],
        directory: Path,
    ) -> Iterator[Graph]:
        """Yield the loaded package of the graph to be checked. If the context ends without an
        error, the package is moved to its final path.
        """
        check_compiler()
        with tempfile.TemporaryDirectory(dir=directory) as scratch:
            path = Path(scratch) / "graph.pt2"
            write_package(export_graph(eager, inputs), bucket.name, path, self._config)
            yield load_graph(path, constants)
            (directory / graph_path(bucket)).parent.mkdir(parents=True, exist_ok=True)
            shutil.move(path, directory / graph_path(bucket))

    def finish(self, directory: Path, buckets: Sequence[Bucket]) -> list[str]:
        """Do nothing: no file is built from all graphs."""
        return []

    def made_with(self) -> MadeWith:
        flags = {name: str(value) for name, value in self._config.items()}
        return MadeWith({"torch": torch.__version__}, host(), flags)

    @cached_property
    def _target(self) -> EagerModel:
        return self._load(self._checkpoint)

    @cached_property
    def _draft(self) -> EagerModel:
        assert self._draft_checkpoint is not None, "a spec with a draft comes with its checkpoint"
        return self._load(self._draft_checkpoint)

    def _load(self, checkpoint: Path) -> EagerModel:
        spec, decoder = self._spec, load_whole(self._spec, checkpoint)
        max_nodes = max(bucket.nodes for bucket in spec.graphs)
        return EagerModel(decoder, rows=spec.rows, capacity=spec.capacity, max_nodes=max_nodes)


def write_package(
    program: ExportedProgram, name: str, path: Path, settings: Mapping[str, object]
) -> None:
    """Compile an exported graph. Raises BadArtifact with the end of the compiler's output."""
    from torch._inductor import aoti_compile_and_package, config
    from torch._inductor.exc import InductorError

    # Inductor's pool of processes is for many small kernels; starting it would only take time.
    with config.patch(compile_threads=1), torch.no_grad():
        try:
            aoti_compile_and_package(
                program, package_path=str(path), inductor_configs=dict(settings)
            )
        except (InductorError, RuntimeError) as error:
            *_, last = type(error).__name__, *filter(str.strip, str(error).splitlines())
            raise BadArtifact(f"graph {name} was not compiled: {last}") from error


def export_graph(graph: nn.Module, inputs: Mapping[str, Tensor]) -> ExportedProgram:
    """Export the graph for inputs of these shapes. It must leave its caches unchanged, since its
    caller writes them.
    """
    with torch.no_grad():
        program = torch.export.export(graph, (), dict(inputs), strict=False)
    written = program.run_decompositions({}).graph_signature.buffers_to_mutate
    assert not written, f"the graph writes {sorted(written.values())}"
    return program


def check_compiler() -> None:
    """Raise InvalidRequest if no C++ compiler is found."""
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise InvalidRequest(
            f"--target cpu needs a C++ compiler, and {compiler} is not found: install g++ (apt-get "
            "install g++; or set CXX),"
            " or serve the model directory itself with --device cpu --model, which needs none"
        )


def weights_of(decoder: Decoder) -> dict[str, Tensor]:
    """Return the weights and the rotary tables without copying. They must outlive a graph that is
    loaded with them.
    """
    return {**dict(decoder.named_parameters()), "cos": decoder.cos, "sin": decoder.sin}


def constants_of(decoder: Decoder, cache: KeysValues) -> dict[str, Tensor]:
    """Return the tensors that a model's graphs need from outside, by their names in the graphs."""
    weights = {f"decoder.{name}": tensor for name, tensor in weights_of(decoder).items()}
    return weights | dict(zip(cache_names(len(cache.keys)), cache.tensors, strict=True))


def _inductor_settings(flags: Mapping[str, str]) -> dict[str, object]:
    """Return settings of torch._inductor.config, converted to their types. Raises InvalidRequest
    for an unknown setting.
    """
    from torch._inductor import config

    defaults = config.get_config_copy()
    settings: dict[str, object] = {}
    readers: Mapping[type, Callable[[str], object]] = {
        bool: lambda text: text.lower() in ("", "1", "true"),
        int: int,
    }
    for name, text in flags.items():
        if name not in defaults or name in ALWAYS:
            raise InvalidRequest(
                f"compiler flag {name}: for cpu, flags are settings of torch._inductor.config, "
                "such as cpp.simdlen=256"
            )
        try:
            settings[name] = readers.get(type(defaults[name]), str)(text)
        except ValueError as error:
            raise InvalidRequest(f"compiler flag {name}={text}: a number is needed") from error
    return settings


MakeBuilder = Callable[[], Builder]


class InProcesses:
    """A Builder (compile/build/build.py) that passes each graph to a separate process. A builder in
    this process does the rest.

    make: creates the builder of a process; must be picklable, since it is sent to the process
    """

    def __init__(self, make: MakeBuilder, workers: int, *, quiet: bool) -> None:
        self.workers, self._here = workers, make()
        threads = max(1, processors() // workers)
        spawned = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(workers, spawned, _begin, (make, threads, quiet))

    def prepare(self, directory: Path) -> list[str]:
        return self._here.prepare(directory)

    def build(self, bucket: Bucket, directory: Path) -> list[str]:
        """Build one graph in another process. Raises the exceptions of its builder."""
        try:
            return self._pool.submit(_build, bucket, directory).result()
        except BrokenProcessPool as error:
            raise BadArtifact(
                f"graph {bucket.name}: the process that built it ended. With too little memory, "
                "fewer processors build fewer graphs at once (taskset -c 0)"
            ) from error

    def finish(self, directory: Path, buckets: Sequence[Bucket]) -> list[str]:
        """Shut down the processes, and let this process's builder finish."""
        self._pool.shutdown()
        return self._here.finish(directory, buckets)

    def made_with(self) -> MadeWith:
        return self._here.made_with()


_BUILDERS: list[Builder] = []
"""The builder of a worker process."""


def _begin(make: MakeBuilder, threads: int, quiet: bool) -> None:
    """Initialise a worker process. Ctrl-C ends it silently."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if quiet:
        quiet_libraries()
    torch.set_num_threads(threads)
    _BUILDERS.append(make())


def _build(bucket: Bucket, directory: Path) -> list[str]:
    return _BUILDERS[0].build(bucket, directory)
