"""Stand-ins for recordings of calls, and for torch.cuda's graphs with PyTorch 2.13's rules."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from inference.backends.cuda.model import Outputs, Run


@dataclass
class Reruns:
    """Runs the function again. Outputs keep their place."""

    eager: int = 0
    recorded: int = 0
    replayed: int = 0

    def run(self, run: Run) -> Outputs:
        self.eager += 1
        return run()

    def record(self, run: Run) -> Run:
        outputs = tuple(torch.full_like(output, -1) for output in run())
        self.recorded += 1

        def replay() -> Outputs:
            self.replayed += 1
            for kept, made in zip(outputs, run(), strict=True):
                kept.copy_(made)
            return outputs

        return replay


class Traced(Reruns):
    """It refuses what a GPU cannot record: what depends on a tensor's values. It is run once with
    shapes alone.
    """

    def record(self, run: Run) -> Run:
        with FakeTensorMode(allow_non_fake_inputs=True):
            run()
        return super().record(run)


class Refused(RuntimeError):
    """CUDA or its allocator refuses a call."""


@dataclass(eq=False)
class Stream:
    """A stream. `capture` is the graph that is being captured on it."""

    device: Any
    capture: Graph | None = None

    def wait_stream(self, other: Stream) -> None:
        if other.capture is not self.capture:
            raise Refused("a stream waits across a capture")


@dataclass
class Cuda:
    """The state of a process: pools that allocations of captures go to, and their users."""

    recording: dict[int, int] = field(default_factory=dict)  # pool -> captures under way
    users: dict[int, int] = field(default_factory=dict)  # pool -> graphs that have its memory
    captures: int = 0
    replays: int = 0
    pools: int = 0
    handles: set[int] = field(default_factory=set)  # threads with a cuBLAS handle
    local: threading.local = field(default_factory=threading.local)

    def __post_init__(self) -> None:
        self.default = Stream(SimpleNamespace(index=0))

    @property
    def stream(self) -> Stream:
        stream: Stream = getattr(self.local, "stream", self.default)
        return stream

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self.local.stream = self.stream, stream
        try:
            yield
        finally:
            self.local.stream = before

    def synchronize(self) -> None:
        """Wait for the device. It invalidates the capture of this thread's stream."""
        if self.stream.capture is not None:
            self.stream.capture.valid = False
        if self.captures:
            raise Refused("operation not permitted when stream is capturing")

    def empty_cache(self) -> None:
        if self.recording:
            raise Refused("captures_underway.empty() INTERNAL ASSERT FAILED")

    def new_pool(self) -> int:
        self.pools += 1
        return self.pools

    def create_handle(self) -> None:
        if self.stream.capture is not None and threading.get_ident() not in self.handles:
            raise Refused("a cuBLAS handle cannot be created during a capture")
        self.handles.add(threading.get_ident())

    def end_allocate(self, device: int, pool: int) -> None:
        if not self.recording.pop(pool, 0):
            raise Refused("endAllocatePool: not currently recording to mempool_id")

    def release(self, device: int, pool: int) -> None:
        self.users[pool] -= 1
        assert self.users[pool] >= 0, "a pool is released more often than it was taken"


class Graph:
    """torch.cuda.CUDAGraph. `cuda` is the process's."""

    cuda: Cuda

    def __init__(self) -> None:
        self.valid = self.ended = False

    def capture_begin(self, pool: int, capture_error_mode: str) -> None:
        assert capture_error_mode == "thread_local", "other threads go on meanwhile"
        cuda = self.cuda
        if pool in cuda.recording:
            raise Refused("beginAllocateToPool: already recording to mempool_id")
        cuda.recording[pool] = 1
        cuda.users[pool] = cuda.users.get(pool, 0) + 1
        cuda.captures += 1
        self.valid, self.pool, cuda.stream.capture = True, pool, self

    def capture_end(self) -> None:
        cuda = self.cuda
        if cuda.stream.capture is not self:
            raise Refused("cudaErrorIllegalState: the stream is not capturing")
        cuda.stream.capture = None
        cuda.captures -= 1
        if not self.valid:  # raised before the pool's part has ended
            raise Refused("operation failed due to a previous error during capture")
        cuda.end_allocate(0, self.pool)
        self.ended = True

    def replay(self) -> None:
        assert self.ended, "a graph that was not captured is replayed"
        self.cuda.replays += 1


def install(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    """Put the stand-in in torch's place; return the state of the process."""
    cuda = Cuda()
    graph = type("BoundGraph", (Graph,), {"cuda": cuda})
    for name, what in {
        "CUDAGraph": graph,
        "Stream": Stream,
        "current_stream": lambda device=None: cuda.stream,
        "device": lambda device: cuda.on(cuda.stream),
        "empty_cache": cuda.empty_cache,
        "graph_pool_handle": cuda.new_pool,
        "stream": cuda.on,
        "synchronize": cuda.synchronize,
    }.items():
        monkeypatch.setattr(torch.cuda, name, what)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", cuda.end_allocate)
    monkeypatch.setattr(torch._C, "_cuda_releasePool", cuda.release)
    return cuda
