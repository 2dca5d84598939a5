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
"""Held during a capture: starting a capture makes CUDA calls that are forbidden during another
capture in the process, for example that of a draft in its target's process.
"""


class Recorder(Protocol):
    """Runs a function over tensors with fixed addresses, directly or from a recording."""

    def run(self, run: Run) -> Outputs:
        """Run the function directly."""
        ...

    def record(self, run: Run) -> Run:
        """Run the function once and record it. Returns a function that replays the recording.

        Any replay may overwrite the outputs of earlier ones. Raises RuntimeError if the function
        cannot be recorded or memory is full, without effect on other recordings.
        """
        ...


class CudaGraphs:
    """A Recorder that uses torch.cuda.CUDAGraph.

    All recordings share a stream and a memory pool, so only one may run at a time.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._pool = device, torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def run(self, run: Run) -> Outputs:
        """Run on the stream of the recordings, so that libraries initialise on this stream."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            outputs = run()
        current.wait_stream(self._stream)
        return outputs

    def record(self, run: Run) -> Run:
        self.run(run)  # creates this thread's library handles, which is forbidden in a capture
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
        """End a failed capture.

        torch.cuda.graph() does not suffice: if `run` waited for the device, capture_end() raises
        before it releases the memory pool, and all later captures would fail.
        """
        with suppress(RuntimeError):
            graph.capture_end()
        index = self._stream.device.index
        with suppress(RuntimeError):  # raised if the pool was released already
            torch._C._cuda_endAllocateToPool(index, self._pool)
            torch._C._cuda_releasePool(index, self._pool)
            self._pool = torch.cuda.graph_pool_handle()
