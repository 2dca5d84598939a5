"""Builds a target for trn2 or trn3 by native PyTorch: weights divided among ranks, and graphs that
TorchNeuron compiles when the ranks first call them.

It runs on an instance of the type that it builds for. The artefact contains TorchNeuron's cache of
compiled graphs, which loading reads again.
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
from compile.parallel import calls_between, described, parallel_config, parallel_tensors
from compile.spec import CompileSpec
from inference.backends.native.loading import compiled_files
from inference.backends.native.program import DEALT, GRAPHS, RankPlan, rank_weights
from inference.backends.native.ranks import Ranks
from inference.backends.native.sdk import FLAGS, TRAINIUM, Machine, configure
from inference.backends.neuron.model import Program, runtime_error
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

    versions: of the packages here, as check_native() found them
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
        self._dealt = parallel_config(self._config, spec.tensor_parallel, spec.vocabulary)
        self._ranks: Ranks | None = None

    def prepare(self, directory: Path) -> list[str]:
        """Write each rank's weights, and the config of the model as it is dealt out."""
        whole = load_whole(self._spec, self._checkpoint)
        ranks = self._spec.tensor_parallel
        tensors = parallel_tensors(
            whole.named_parameters(), self._config, ranks, self._spec.vocabulary
        )
        for rank in range(ranks):  # one at a time: a rank's share is let go before the next is cut
            share = {name: cut(name, tensor, rank, ranks) for name, tensor in tensors.items()}
            save_file(share, directory / rank_weights(rank))
        dealt = read_raw_config(self._checkpoint) | dealt_fields(self._dealt)
        write_whole(directory / DEALT / "config.json", json.dumps(dealt, indent=1) + "\n")
        return [f"{DEALT}/config.json", *(rank_weights(rank) for rank in range(ranks))]

    def build(self, bucket: Bucket, directory: Path) -> list[str]:
        """Compile one graph by an idle call of it, and write what it takes."""
        return self._compiled(bucket.name, example_inputs(bucket), directory)

    def finish(self, directory: Path, buckets: Sequence[Bucket]) -> list[str]:
        """Compile what copies a row, where there are several, and what makes noise, where a graph
        is sampled. Let the ranks end. Returns every compiled graph: one that was compiled before a
        build was broken off is in no other list.
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
        """Make the first call of a graph. Returns the files that it left, and its record."""
        graphs, record = directory / GRAPHS, f"graphs/{name}.json"
        before = compiled_files(graphs)
        once_more(lambda: self._call(name, inputs, directory))
        write_whole(directory / record, json.dumps({"inputs": described(inputs)}, indent=1) + "\n")
        return [record, *_named(compiled_files(graphs) - before, directory)]

    def _call(self, name: str, inputs: dict[str, Tensor], directory: Path) -> None:
        """Call a graph. Ranks whose call failed are stopped, since they accept no further call."""
        try:
            self._program(directory)(name, inputs)
        except OutriderError:
            raise
        except RuntimeError as error:
            self._let_go()
            raise _failed(name, error) from error

    def _let_go(self) -> None:
        """Let the ranks end, if there are some."""
        if self._ranks is not None:
            self._ranks.close()
            self._ranks = None

    def _program(self, directory: Path) -> Program:
        """The ranks, which are started for the first graph that is built."""
        if self._ranks is None:
            spec = self._spec
            configure(directory / GRAPHS, self._flags())
            plan = RankPlan(directory, spec, self._machine)
            try:
                self._ranks = Ranks(plan)
            except RuntimeError as error:
                raise runtime_error(error) from error
        return self._ranks


def dealt_fields(dealt: ModelConfig) -> dict[str, Any]:
    """The fields of config.json that differ for a model that is dealt out."""
    return {
        "num_key_value_heads": dealt.kv_heads,
        "vocab_size": dealt.vocab_size,
        "tie_word_embeddings": dealt.tied,
        "head_dim": dealt.head_dim,
    }


def cut(name: str, tensor: Tensor, rank: int, ranks: int) -> Tensor:
    """One rank's share of a parameter, as inference/backends/native/graph.py deals layers out:
    norms are whole, what a sum over ranks follows is cut by its inputs, all else by its outputs.
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
