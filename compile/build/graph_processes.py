"""Builds graphs in several processes at once, for a builder that builds one at a time."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from compile.build.build import Builder, MadeWith
from compile.plan.memory import processors
from inference.errors import BadArtifact
from inference.files.artifact import Bucket

_TALKATIVE = ("torch", "absl", "jax", "Neuron", "neuronx_distributed", "libneuronxla")

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
    import torch

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if quiet:
        quiet_libraries()
    torch.set_num_threads(threads)
    _BUILDERS.append(make())


def _build(bucket: Bucket, directory: Path) -> list[str]:
    return _BUILDERS[0].build(bucket, directory)


def quiet_libraries() -> None:
    """Hide warnings, and log messages below errors, of this process and those it starts, to keep
    the output of libraries out of the build's.
    """
    warnings.simplefilter("ignore")
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("GLOG_minloglevel", "2")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.ERROR)
