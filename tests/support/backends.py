"""Every backend of a Model with rows of its own. One joins the contract by a line of BACKENDS."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from compile.build.cpu import CpuBuilder
from inference.backends import Model
from inference.backends.cuda.model import CudaModel
from inference.backends.eager import EagerModel
from inference.backends.gguf.library import SEQUENCES
from inference.backends.gguf.states import GgufStates
from inference.backends.gguf.trees import GgufTrees
from inference.backends.graphs.compiled import load_compiled, read_compiled
from inference.backends.libraries.transformers_loading import CudaLibraryModel, load_transformers
from inference.backends.libraries.transformers_model import TransformersModel
from inference.backends.native.program import GRAPHS, RankPlan
from inference.backends.native.ranks import Ranks
from inference.backends.neuron.legacy import load_legacy_neuron
from inference.backends.neuron.model import NeuronModel
from inference.backends.sequence import ModelSequence
from inference.backends.wrappers import DynamicBatcher, TimedModel
from inference.engine.sessions.local_session import LocalSession
from inference.model.checkpoints.config import read_config
from inference.model.checkpoints.library_config import read_library_config
from inference.model.decoder import Decoder
from inference.model.layers import FUSED
from inference.sampling import SamplingParams
from inference.times_file import Profile
from inference.tree.token_tree import TokenTree
from tests.support import heads
from tests.support.equality import NearTies, Produce, assert_same_text
from tests.support.fake_cuda import Reruns
from tests.support.fake_neuron import Neuron, install_tnx
from tests.support.gguf_models import Cells, StateCells, model_of, own_text
from tests.support.models import by_id, sequence_after, write_checkpoint
from tests.support.neuron_artifacts import (
    CPU,
    FEW,
    JUNK,
    LENGTH,
    MASKED,
    ROWS,
    TREE,
    VOCABULARY,
    build,
    built_model,
    eager_of,
    engine_of,
    native_spec,
    prepared,
    spec_of,
    whole,
)
from tests.support.pairs import alone


class Machine(NamedTuple):
    """A place to make a model in.

    folder: an empty one
    shared: of all workers of the run
    native: the model on native PyTorch, of all files of a worker: its ranks trace their graphs for
        half a minute
    """

    checkpoint: Path
    folder: Path
    shared: Path
    patch: pytest.MonkeyPatch
    native: Callable[[], Model]


def eager_model(decoder: Decoder) -> EagerModel:
    return EagerModel(decoder, rows=ROWS, capacity=JUNK, max_nodes=16)


def recorded(machine: Machine) -> Model:
    """As on a GPU, its layers included, but that a recording runs its function again."""
    weights = whole(machine.checkpoint)
    decoder = Decoder(weights.config, LENGTH, VOCABULARY, FUSED).requires_grad_(False)
    decoder.load_state_dict(weights.state_dict())
    return CudaModel(decoder, rows=ROWS, capacity=JUNK, max_nodes=16, recorder=Reruns())


INSTANT = Profile("instant", "a test", "nothing", ((ROWS, 2, 1e-9), (ROWS, 16, 1e-9)))


def compiled(machine: Machine) -> Model:
    """Its noise reaches three levels: deeper trees take two calls. It is built once in a run."""
    machine.patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(machine.folder / "inductor"))
    shallow = [replace(bucket, levels=3) if bucket.sampled else bucket for bucket in (*FEW, MASKED)]
    spec = spec_of(1, shallow, target="cpu", features=heads.KEPT)
    directory = machine.shared / "compiled"
    with (machine.shared / "compiled.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.exists():
            build(directory, machine.checkpoint, spec, CpuBuilder)
    return load_compiled(directory, read_compiled(directory))


def neuron(machine: Machine) -> Model:
    Neuron().install(machine.patch, machine.folder / "packages")
    spec = spec_of(2, (*FEW, MASKED), features=heads.KEPT)
    return built_model(machine.folder / "artifact", machine.checkpoint, spec)


def native_model(directory: Path, after: ExitStack) -> Model:
    """Of the checkpoint that write_checkpoint writes. Its masked graph serves texts without rules,
    too.
    """
    spec = replace(native_spec(2, (MASKED, FEW[1])), features=heads.KEPT)
    manifest = prepared(directory / "artifact", write_checkpoint(directory / "model"), spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_NEURONX_NEFF_CACHE_DIR", str(directory / "artifact" / GRAPHS))
        ranks = Ranks(RankPlan(directory / "artifact", spec, CPU))
    after.callback(ranks.close)
    return NeuronModel(ranks, manifest, lambda line: None)


def legacy(machine: Machine, **host: str) -> Model:
    install_tnx(machine.patch, machine.folder / "packages", **host)
    return load_legacy_neuron(
        machine.checkpoint,
        read_config(machine.checkpoint),
        sequence_length=LENGTH,
        vocabulary=VOCABULARY,
        chain=TREE,
        tensor_parallel=2,
        dtype=torch.float32,
        say=lambda line: None,
    )


def cells(machine: Machine) -> Model:
    return model_of(GgufTrees(Cells(), rows=ROWS, capacity=JUNK, batch=256))


def few_cells(machine: Machine) -> Model:
    """Keys are given up while they are needed, and computed again."""
    return model_of(GgufTrees(Cells(sequences=24), rows=ROWS, capacity=JUNK, batch=256))


def states(machine: Machine) -> Model:
    sizes = GgufStates.sizes(ROWS, JUNK, 16, SEQUENCES)
    context = StateCells(room=sizes.cells, sequences=sizes.sequences)
    return model_of(GgufStates(context, rows=ROWS, capacity=JUNK, batch=24))


def library(machine: Machine) -> TransformersModel:
    return load_transformers(
        machine.checkpoint,
        read_library_config(machine.checkpoint),
        rows=ROWS,
        capacity=JUNK,
        max_nodes=16,
        vocabulary=VOCABULARY,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )


def recorded_library(machine: Machine) -> Model:
    made, sizes = library(machine), {"rows": ROWS, "capacity": JUNK, "max_nodes": 16}
    return CudaLibraryModel(
        made.library, made.reaches, vocabulary=VOCABULARY, recorder=Reruns(), **sizes
    )


class Backend(NamedTuple):
    """How a backend joins.

    make: makes its model, with up to ROWS rows of JUNK slots at least
    decoder: what it computes of a checkpoint; None for the stand-in of llama.cpp
    drafts: whether it ranks
    trees: whether it takes trees, rules and several rows; else chains of one row only
    """

    make: Callable[[Machine], Model]
    decoder: Callable[[Path], Decoder] | None = whole
    drafts: bool = False
    trees: bool = True
    marks: tuple[pytest.MarkDecorator, ...] = ()


SLOW = (pytest.mark.slow,)
NO_COMPILER = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
BACKENDS = {
    "eager": Backend(lambda machine: eager_of(machine.checkpoint), drafts=True),
    "transformers": Backend(library, drafts=True),
    "recorded": Backend(recorded, drafts=True, marks=SLOW),
    "transformers, recorded": Backend(recorded_library, drafts=True, marks=SLOW),
    "timed": Backend(
        lambda machine: TimedModel(eager_of(machine.checkpoint), INSTANT), drafts=True, marks=SLOW
    ),
    "batched": Backend(
        lambda machine: DynamicBatcher(eager_of(machine.checkpoint)), drafts=True, marks=SLOW
    ),
    "compiled": Backend(compiled, marks=(pytest.mark.extended, NO_COMPILER)),
    "neuron": Backend(neuron, marks=SLOW),
    "native PyTorch": Backend(lambda machine: machine.native(), marks=SLOW),
    "transformers-neuronx": Backend(legacy, trees=False, marks=SLOW),
    "llama.cpp": Backend(cells, None, drafts=True),
    "llama.cpp with states": Backend(states, None, drafts=True),
    "llama.cpp with few sequences": Backend(few_cells, None, drafts=True, marks=SLOW),
}


def takes_trees(subject: str) -> bool:
    return BACKENDS[subject].trees


def ranks(subject: str) -> bool:
    return BACKENDS[subject].drafts


def is_of_a_checkpoint(subject: str) -> bool:
    """Whether it computes what our decoder does."""
    return takes_trees(subject) and BACKENDS[subject].decoder is not None


@cache
def _text_of(
    read: Callable[[Path], Decoder],
    checkpoint: Path,
    prompt: tuple[int, ...],
    params: SamplingParams,
    tokens: int,
) -> list[int]:
    """The eager model's text, generated once for all backends that compute the same."""
    session = LocalSession(engine_of(eager_model(read(checkpoint))))
    return alone(session, prompt, params, tokens)


class Subject(NamedTuple):
    """A backend's model, and what it computes."""

    backend: Backend
    machine: Machine
    model: Model
    decoder: Decoder | None
    ties: NearTies

    def writes_its_own(
        self, prompt: Sequence[int], params: SamplingParams, tokens: int, made: Produce
    ) -> None:
        """Fail unless so many tokens of the checkpoint's own text are made behind the prompt."""
        read = self.backend.decoder
        if read is None or self.decoder is None:
            assert made(prompt, tokens) == own_text(prompt, params, tokens)
        else:
            own = _text_of(read, self.machine.checkpoint, tuple(prompt), params, tokens)
            assert_same_text(self.decoder, prompt, params, own, made, self.ties)

    def after(
        self, tokens: Sequence[int], row: int = 0, params: SamplingParams | None = None
    ) -> ModelSequence:
        return sequence_after(self.model, tokens, row, params or SamplingParams(1.0, seed=8))

    @property
    def trees(self) -> tuple[TokenTree, TokenTree, list[list[int]]]:
        """A tree of TREE nodes, one that may follow it, and paths below the root of the first.

        The first is 7 -> 1 -> 1 and 7 -> 2 -> (3, 4 -> (5, 9)), or a chain of the same tokens.
        """
        tokens, then = [7, 1, 2, 3, 4, 5, 1, 9], [11, 12, 13, 14]
        if not self.backend.trees:
            paths = [[], [1], [1, 2], [1, 2, 3]]
            return TokenTree.chain(tokens), TokenTree.chain(then), paths
        tree = TokenTree(*np.array([tokens, [-1, 0, 0, 2, 2, 4, 1, 4]]))
        return tree, TokenTree(*np.array([then, [-1, 0, 0, 1]])), [[], [1], [2, 4], [2, 4, 7]]

    def answers(
        self, sequence: ModelSequence, tree: TokenTree
    ) -> NDArray[np.float64]:  # [n, 1 or 1 + VOCABULARY]
        """The choice at each node, and the scores of all tokens where the model ranks."""
        chosen = sequence.choose(tree)
        sequence.abandon()
        if not self.backend.drafts:
            return chosen[:, None].astype(np.float64)
        scores = by_id(sequence.rank(tree, range(len(tree)), VOCABULARY))
        sequence.abandon()
        return np.column_stack((chosen, scores))
