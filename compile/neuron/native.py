"""Builds a target for trn2 or trn3 by native PyTorch: weights divided among ranks, and graphs that
TorchNeuron compiles when the ranks first call them.

The build runs on an instance of the type that it is for. The artefact contains TorchNeuron's cache
of compiled graphs, from which they are loaded later.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from compile.build.build import MadeWith, load_whole
from compile.neuron.compiler import CompilerDied, first_error, gave_reason, once_more
from compile.parallel import parallel_config, parallel_tensors, write_record
from compile.spec import CompileSpec
from inference.backends.native.program import GRAPHS, SHARDED, RankPlan, rank_weights
from inference.backends.native.ranks import Ranks, compiled_files
from inference.backends.native.sdk import FLAGS, TRAINIUM, Machine, configure
from inference.backends.neuron.model import Program, calls_between, runtime_error
from inference.backends.neuron.sdk import logical_cores
from inference.errors import BadArtifact, OutriderError
from inference.files.artifact import Bucket
from inference.files.writing import write_whole
from inference.model.checkpoints.config import ModelConfig, read_config, read_raw_config
from inference.model.graphs.verify_graph import example_inputs

_CUT_BY_INPUT = (".o_proj.weight", ".down_proj.weight", "embed_tokens.weight")
_WHOLE = ("norm.weight", "layernorm.weight", ".o_proj.bias", ".down_proj.bias")


class TorchNeuronBuilder:
    """A Builder (compile/build/build.py) for trn2 and trn3.

    versions: of the installed packages, as returned by check_native()
    """

    workers = 1  # all ranks compile one graph at a time

    def __init__(
        self,
        spec: CompileSpec,
        checkpoint: Path,
        *,
        versions: Mapping[str, str],
        machine: Machine = TRAINIUM,
    ) -> None:
        self._spec, self._checkpoint = spec, checkpoint
        self._versions, self._machine = versions, machine
        self._config = read_config(checkpoint)
        self._sharded = parallel_config(self._config, spec.tensor_parallel, spec.vocabulary)
        self._ranks: Ranks | None = None

    def prepare(self, directory: Path) -> list[str]:
        """Write each rank's weights, and the config of the sharded model."""
        decoder = load_whole(self._spec, self._checkpoint)
        ranks = self._spec.tensor_parallel
        tensors = parallel_tensors(
            decoder.named_parameters(), self._config, ranks, self._spec.vocabulary
        )
        for rank in range(ranks):  # one at a time, to free each share before the next
            share = {name: cut(name, tensor, rank, ranks) for name, tensor in tensors.items()}
            save_file(share, directory / rank_weights(rank))
        sharded = read_raw_config(self._checkpoint) | sharded_fields(self._sharded)
        write_whole(directory / SHARDED / "config.json", json.dumps(sharded, indent=1) + "\n")
        return [f"{SHARDED}/config.json", *(rank_weights(rank) for rank in range(ranks))]

    def build(self, bucket: Bucket, directory: Path) -> list[str]:
        """Compile one graph by an idle call, and write a record of its inputs."""
        return self._compiled(bucket.name, example_inputs(bucket), directory)

    def finish(self, directory: Path, buckets: Sequence[Bucket]) -> list[str]:
        """Compile the graph that copies a row, if there are several, and the one that computes
        noise, if any graph is sampled. Shuts down the ranks. Returns all compiled graphs, including
        those of an interrupted build.
        """
        records = list[str]()
        for name, inputs in calls_between(self._spec).items():
            records += self._compiled(name, inputs, directory)[:1]
        self._let_go()
        return [*records, *_named(compiled_files(directory / GRAPHS), directory)]

    def made_with(self) -> MadeWith:
        host = {
            "family": self._spec.target,
            "logical_cores": str(logical_cores(self._spec.target)),
            "interface": "torch.compile",
        }
        line = self._flags()
        return MadeWith(self._versions, host, {FLAGS: line} if line else {})

    def _flags(self) -> str:
        flags = self._spec.compiler_flags.items()
        return shlex.join(f"{name}={value}" if value else name for name, value in flags)

    def _compiled(self, name: str, inputs: dict[str, Tensor], directory: Path) -> list[str]:
        """Call a graph for the first time. Return its new files, preceded by its record."""
        before = compiled_files(directory / GRAPHS)
        once_more(lambda: self._call(name, inputs, directory))
        new = compiled_files(directory / GRAPHS) - before
        return [write_record(directory, name, inputs), *_named(new, directory)]

    def _call(self, name: str, inputs: dict[str, Tensor], directory: Path) -> None:
        """Call a graph. If the call fails, stop the ranks, since they accept no further call."""
        try:
            self._program(directory)(name, inputs)
        except OutriderError:
            raise
        except RuntimeError as error:
            self._let_go()
            raise _failed(name, error) from error

    def _let_go(self) -> None:
        if self._ranks is not None:
            self._ranks.close()
            self._ranks = None

    def _program(self, directory: Path) -> Program:
        """Return the ranks; start them for the first graph to be built."""
        if self._ranks is None:
            spec = self._spec
            configure(directory / GRAPHS, self._flags())
            plan = RankPlan(directory, spec, self._machine)
            try:
                self._ranks = Ranks(plan)
            except RuntimeError as error:
                raise runtime_error(error) from error
        return self._ranks


def sharded_fields(sharded: ModelConfig) -> dict[str, Any]:
    """Return the fields of config.json that differ in the sharded model."""
    return {
        "num_key_value_heads": sharded.kv_heads,
        "vocab_size": sharded.vocab_size,
        "tie_word_embeddings": sharded.tied,
        "head_dim": sharded.head_dim,
    }


def cut(name: str, tensor: Tensor, rank: int, ranks: int) -> Tensor:
    """Return one rank's share of a parameter, as sharded by inference/backends/native/program.py:
    norms are whole, layers whose results are summed over ranks are cut by inputs, others by
    outputs.
    """
    if name.endswith(_WHOLE) or ".q_norm." in name or ".k_norm." in name:
        return tensor.detach().contiguous()
    axis = 1 if name.endswith(_CUT_BY_INPUT) else 0
    return tensor.detach().chunk(ranks, axis)[rank].contiguous()


def _named(paths: Iterable[Path], directory: Path) -> list[str]:
    return sorted(path.relative_to(directory).as_posix() for path in paths)


def _failed(name: str, error: RuntimeError) -> BadArtifact:
    text = str(error)
    died = "neuronx-cc" in text and not gave_reason(text)
    return (CompilerDied if died else BadArtifact)(
        f"graph {name} could not be compiled: {first_error(text)}. "
        "TORCH_NEURONX_PRESERVE_COMPILATION_ARTIFACTS=1 keeps the compiler's files where "
        "TORCH_NEURONX_DEBUG_DIR says"
    )
