"""Records functions over tensors as CUDA graphs. Not yet run on a GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import torch
from torch import Tensor

Outputs = tuple[Tensor, ...]
Run = Callable[[], Outputs]

_CAPTURES = threading.Lock()
"""Held by a capture: CUDA forbids some calls of a capture's start while another one is under way in
the process, such as that of a draft beside its target.
"""


class Recorder(Protocol):
    """Runs a function over tensors with fixed addresses: at once, or recorded and repeated."""

    def run(self, run: Run) -> Outputs:
        """Run it once."""
        ...

    def record(self, run: Run) -> Run:
        """Run it once, then return a function that repeats it, with its outputs in fixed tensors.

        The next repetition of any recording may overwrite these tensors. Raises RuntimeError where
        it cannot be recorded or memory is full; later recordings are not affected.
        """
        ...


class CudaGraphs:
    """A Recorder with torch.cuda.CUDAGraph.

    All recordings share a stream and a memory pool, so only one at a time may run.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._pool = device, torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def run(self, run: Run) -> Outputs:
        """Run on the recordings' stream, where libraries set themselves up."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            outputs = run()
        current.wait_stream(self._stream)
        return outputs

    def record(self, run: Run) -> Run:
        self.run(run)  # creates the libraries' handles of this thread, which a capture cannot
        graph = torch.cuda.CUDAGraph()
        with _CAPTURES, torch.cuda.device(self._device):
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            with torch.cuda.stream(self._stream):
                outputs = self._capture(graph, run)

        def replay() -> Outputs:
            graph.replay()
            return outputs

        return replay

    def _capture(self, graph: torch.cuda.CUDAGraph, run: Run) -> Outputs:
        try:
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            outputs = run()
            graph.capture_end()
        except BaseException:
            self._end_failed(graph)
            raise
        return outputs

    def _end_failed(self, graph: torch.cuda.CUDAGraph) -> None:
        """End a capture that failed.

        torch.cuda.graph() does not: where `run` waited for the device, capture_end() raises before
        the pool's part of the capture has ended, and every later capture would fail.
        """
        with suppress(RuntimeError):
            graph.capture_end()
        index = self._stream.device.index
        with suppress(RuntimeError):  # of a pool whose part has ended
            torch._C._cuda_endAllocateToPool(index, self._pool)
            torch._C._cuda_releasePool(index, self._pool)
            self._pool = torch.cuda.graph_pool_handle()
