"""The ranks of a target on native PyTorch, each in its own process, and the loading of a compiled
target on the NeuronCores of trn2 and trn3. Not yet run on hardware: see docs/neuron-reference.md.

The serving process is not a
rank: it sends the inputs of each call to all ranks, and receives the answer of rank 0. Features of
a large call are megabytes, so they are passed in shared memory, not in the answer.

So the serving process never blocks in a device call, and learns at once that a rank has ended. All
ranks must make every call together, so a target cannot continue after losing a rank.
"""

from __future__ import annotations

import atexit
import math
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inference.backends.native.program import GRAPHS, RankPlan, load_rank, room_for_features
from inference.backends.native.sdk import (
    FLAGS,
    TRAINIUM,
    Machine,
    check_native,
    check_same_versions,
    configure,
    cores_of,
    rank_environment,
)
from inference.backends.neuron.loading import check_logical_cores
from inference.backends.neuron.model import PACKAGE, NeuronModel, Say, innermost, runtime_error
from inference.errors import BadArtifact, OutriderError, Unavailable
from inference.files.artifact import Manifest

_LEAVING = 5.0
"""Seconds for which a rank may take to end by itself."""

Lost = Callable[[str], None]
"""A function called with the reason when the target cannot continue, on a separate thread."""

_Outputs = tuple[NDArray[np.int32] | NDArray[np.float32], tuple[int, ...]]
"""Chosen tokens of a call, and the shape of its features in shared memory; () without features."""

_Answer = _Outputs | OutriderError | RuntimeError | None
"""A rank's message: None once it is loaded, the outputs of a call, or the error that ends it."""


def end_process(why: str) -> NoReturn:
    """Print the reason and end this process at once."""
    print(f"error: {why}", file=sys.stderr, flush=True)
    os._exit(1)


class _RankProcess(NamedTuple):
    process: BaseProcess
    calls: Connection


class Ranks:
    """A Program (inference.backends.neuron.model) of one or more ranks. One call at a time.

    lost: called if a rank ends, also between calls; None: the next call raises the error
    """

    def __init__(self, plan: RankPlan, lost: Lost | None = None) -> None:
        self._closing, self._ended = threading.Event(), ""
        self._room = room_for_features(plan)
        cores, waited = cores_of(plan.ranks), set(range(plan.ranks))
        with tempfile.TemporaryDirectory(prefix="outrider-ranks-") as folder:
            meeting = Path(folder) / "meeting"
            self._ranks = [
                _started(plan, rank, meeting, cores, None if rank else self._room)
                for rank in range(plan.ranks)
            ]
            atexit.register(self.close)  # first, or multiprocessing's exit would look like a loss
            try:
                while waited:
                    waited.discard(self._next()[0])
            except BaseException:
                self.close()
                raise
        if lost is not None:
            threading.Thread(target=self._watch, args=(lost,), daemon=True).start()

    def __call__(self, graph: str, inputs: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """Call a graph on every rank. Return the chosen tokens and features of rank 0, which the
        next call overwrites.

        Raises Unavailable if a rank has ended, and RuntimeError for an error of the device. After
        either, no further call is possible.
        """
        arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
        for rank in self._ranks:
            try:
                rank.calls.send((graph, arrays))
            except OSError as error:
                raise Unavailable(self._why()) from error
        _, outputs = self._next()
        assert outputs is not None, "a loaded rank 0 answers with what it chose"
        chosen, shape = outputs
        if self._room is None or not shape:
            return (torch.from_numpy(chosen),)
        return torch.from_numpy(chosen), self._room[: math.prod(shape)].view(shape)

    def close(self) -> None:
        """Stop the ranks. Idempotent."""
        if self._closing.is_set():
            return
        self._closing.set()
        atexit.unregister(self.close)
        for rank in self._ranks:
            rank.calls.close()
        for rank in self._ranks:
            rank.process.join(_LEAVING / len(self._ranks))
            rank.process.kill()

    def _next(self) -> tuple[int, _Outputs | None]:
        """Wait for an answer; return the rank's number and its answer. Raise the error with which a
        rank failed, or Unavailable if a rank has ended.
        """
        readable = wait([rank.calls for rank in self._ranks])[0]
        number = next(n for n, rank in enumerate(self._ranks) if rank.calls is readable)
        try:
            answer: _Answer = self._ranks[number].calls.recv()
        except (EOFError, OSError) as error:
            raise Unavailable(self._why()) from error
        if isinstance(answer, Exception):
            raise answer
        return number, answer

    def _watch(self, lost: Lost) -> None:
        """Wait until any rank ends, then end the others, which might wait for it forever."""
        wait([rank.process.sentinel for rank in self._ranks])
        if self._closing.is_set():
            return
        why = self._why()
        for rank in self._ranks:
            rank.process.kill()
        lost(why)

    def _why(self) -> str:
        """Return which rank ended and how. Waits up to _LEAVING seconds for a rank to end."""
        ended = wait([rank.process.sentinel for rank in self._ranks], _LEAVING)
        lost = [number for number, rank in enumerate(self._ranks) if rank.process.sentinel in ended]
        if lost and not self._ended:
            process = self._ranks[lost[0]].process
            process.join(_LEAVING)  # the pipe may close before the exit code is available
            self._ended = (
                f"rank {lost[0]} of the target ended (exit code {process.exitcode}), and the "
                "others cannot continue without it; its own message is above"
            )
        return self._ended or "the ranks of the target were ended"


def _started(
    plan: RankPlan, rank: int, meeting: Path, cores: list[int], room: Tensor | None
) -> _RankProcess:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_serve, args=(theirs, plan, rank, meeting, room), name=f"rank {rank}", daemon=True
    )
    with _environment(rank_environment(rank, cores)):
        process.start()
    theirs.close()  # so that reading from `ours` fails once the process has ended
    return _RankProcess(process, ours)


def _serve(
    calls: Connection, plan: RankPlan, rank: int, meeting: Path, room: Tensor | None
) -> None:
    """Run the received calls until the pipe closes. The first failure ends the rank, since
    the ranks may no longer be at the same call.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the serving process handles Ctrl-C
    torch.set_num_threads(max(1, torch.get_num_threads() // plan.ranks))
    try:
        program = load_rank(plan, rank, meeting, room)
        calls.send(None)
        while True:
            graph, arrays = calls.recv()
            inputs = {name: torch.from_numpy(array) for name, array in arrays.items()}
            chosen, *features = program(graph, inputs)
            if rank == 0:
                calls.send((chosen.numpy(), tuple(features[0].shape) if features else ()))
    except EOFError:
        return
    except OutriderError as error:
        _tell(calls, error)
    except RuntimeError as error:  # the serving process may not have the class of the error
        _tell(calls, RuntimeError(innermost(error)))


def _tell(calls: Connection, why: OutriderError | RuntimeError) -> None:
    """Send the reason why this rank ends. If another rank failed first, nobody reads the reason."""
    with suppress(OSError):
        calls.send(why)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for a process that is started within this context."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def check_native_machine(manifest: Manifest) -> None:
    """Raise an error that names the remedy unless this machine can run the artefact."""
    if PACKAGE in manifest.files:
        raise BadArtifact(
            f"the artefact was built for {manifest.target} with PyTorch/XLA (Neuron SDK 2.31 or "
            "earlier): build it again with Neuron SDK 2.33 or later"
        )
    check_same_versions(manifest.versions, check_native(manifest.target))
    check_logical_cores(manifest, manifest.host.get("logical_cores"))


def load_native(
    directory: Path,
    manifest: Manifest,
    say: Say,
    machine: Machine = TRAINIUM,
    lost: Lost = end_process,
) -> NeuronModel:
    """Load an artefact whose files were checked. Takes minutes, and reports its progress to `say`.

    lost: called with the reason if a rank ends
    """
    graphs = directory / GRAPHS
    configure(graphs, manifest.compiler_flags.get(FLAGS, ""))
    say(f"loading {manifest.model} on {manifest.tensor_parallel} {manifest.target} cores")
    before = compiled_files(graphs)
    try:
        program = Ranks(RankPlan(directory, manifest, machine), lost)
    except OutriderError:
        raise
    except (RuntimeError, OSError, ValueError) as error:
        raise runtime_error(error) from error
    model = NeuronModel(program, manifest, say)
    again = len(compiled_files(graphs) - before)
    if again:
        say(
            f"warning: {again} graphs were compiled here again, which the artefact should have "
            "held: build it again on this machine"
        )
    return model


def compiled_files(graphs: Path) -> set[Path]:
    """Return the files of compiled graphs in an artefact."""
    return {path for path in graphs.rglob("*") if path.is_file()}
