"""Has graphs built by several processes at once, where a builder can make one at a time."""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from compile.build.build import Builder
from compile.plan.memory import processors
from inference.artifact import Bucket
from inference.errors import BadArtifact, OutriderError

_TALKATIVE = ("torch", "absl", "jax", "Neuron", "neuronx_distributed", "libneuronxla")

MakeBuilder = Callable[[], Builder]


class InProcesses:
    """A Builder (compile/build/build.py) that passes each graph to a process of its own. The rest
    is done by one builder in this process.

    make: makes the builder of a process; it is sent there, so it must be picklable.
    """

    def __init__(self, make: MakeBuilder, workers: int, *, quiet: bool) -> None:
        self._make, self._quiet, self.workers = make, quiet, workers
        self._here = make()
        self.target = self._here.target
        self._idle: list[Connection] = []
        self._lock = threading.Lock()

    def prepare(self, directory: Path) -> list[str]:
        return self._here.prepare(directory)

    def build(self, bucket: Bucket, directory: Path) -> list[str]:
        """Build one graph in another process. Raises what its builder raised."""
        with self._lock:
            worker = self._idle.pop() if self._idle else self._start()
        try:
            worker.send((bucket, directory))
            made: list[str] | OutriderError = worker.recv()
        except (EOFError, OSError) as error:
            raise BadArtifact(
                f"graph {bucket.name}: the process that built it ended. With too little memory, "
                "--workers 1 builds one graph at a time"
            ) from error
        with self._lock:
            self._idle.append(worker)
        if isinstance(made, OutriderError):
            raise made
        return made

    def finish(self, directory: Path, buckets: Sequence[Bucket]) -> list[str]:
        """Let the processes end."""
        while self._idle:
            self._idle.pop().close()
        return self._here.finish(directory, buckets)

    def versions(self) -> Mapping[str, str]:
        return self._here.versions()

    def host(self) -> Mapping[str, str]:
        return self._here.host()

    def flags(self) -> Mapping[str, str]:
        return self._here.flags()

    def _start(self) -> Connection:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        threads = max(1, processors() // self.workers)
        arguments = (theirs, self._make, threads, self._quiet)
        context.Process(target=_serve, args=arguments, daemon=True).start()
        theirs.close()  # so that the end of the process ends our waiting
        return ours


def _serve(requests: Connection, make: MakeBuilder, threads: int, quiet: bool) -> None:
    """Build graphs as they are asked for, until nobody can ask any more."""
    import torch

    if quiet:
        quiet_libraries()
    torch.set_num_threads(threads)
    try:
        builder = make()
        while True:
            bucket, directory = requests.recv()
            try:
                made: list[str] | OutriderError = builder.build(bucket, directory)
            except OutriderError as error:
                made = error
            requests.send(made)
    except (EOFError, KeyboardInterrupt):
        return


def quiet_libraries() -> None:
    """Hide warnings, and log messages below errors, of this process and of those it starts, so that
    libraries write no notes between the lines of a build.
    """
    warnings.simplefilter("ignore")
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("GLOG_minloglevel", "2")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.ERROR)
