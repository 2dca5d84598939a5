"""Models with a CUDA graph for each padded shape, of which there are few. Planned shapes are
recorded in advance, others the second time that they occur. Only the Recorder needs CUDA. Not yet
run on a GPU.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from inference.backends import Chosen, Ranked, Segment
from inference.backends.batch import Batch, BatchShape, pad
from inference.backends.eager import (
    SLOT_STEP,
    BatchTensors,
    EagerModel,
    SlotModel,
    choose_at,
    rank_at,
    ranked_rows,
)
from inference.command import say
from inference.model.choice.sampler import (
    Sampling,
    choose_greedy,
    choose_mixed,
    choose_truncated,
    rank,
    rank_greedy,
)
from inference.sampling import SamplingParams

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


MAX_RECORDINGS = 256
"""Maximum number of recordings. Further shapes run eagerly."""

MIN_LEVELS = 8
"""Minimum number of positions with noise, unless there are fewer nodes. It lets trees of different
depths share recordings.
"""


class ChoiceFunction(NamedTuple):
    """A function that chooses or ranks tokens: (logits [B, P, V], sampling, positions, size)."""

    function: Callable[[Tensor, Sampling, Tensor, int], Tensor | Outputs]
    size: int  # number of positions with noise (choosing), or of children (ranking)


class _RecordingKey(NamedTuple):
    shape: BatchShape
    choice: ChoiceFunction


class _Buffers:
    """The device inputs of a shape, as views of one buffer that a single copy fills."""

    def __init__(self, shape: BatchShape, junk: int, device: torch.device) -> None:
        self._idle = Batch(shape, junk)
        cpu = _inputs(self._idle, [SamplingParams()] * shape.rows)
        sizes = [tensor.numel() for tensor in cpu]
        buffer = torch.empty(sum(sizes), dtype=torch.int32, device=device)
        self._host = torch.empty_like(buffer, device="cpu", pin_memory=device.type == "cuda")
        self._whole = buffer
        views = [
            piece.view(like.dtype).view(like.shape)
            for piece, like in zip(torch.split(buffer, sizes), cpu, strict=True)
        ]
        batch = len(BatchTensors._fields)
        self.inputs, self.sampling = BatchTensors(*views[:batch]), Sampling(*views[batch:])
        self.clear()

    def fill(self, batch: Batch, params: Sequence[SamplingParams]) -> None:
        """Copy the inputs of a batch to the device."""
        flat = [x.contiguous().view(torch.int32).flatten() for x in _inputs(batch, params)]
        torch.cat(flat, out=self._host)
        self._whole.copy_(self._host)

    def clear(self) -> None:
        """Copy an idle batch to the device, which only writes to the junk slot."""
        self.fill(self._idle, [SamplingParams()] * len(self._idle.rows))


def _inputs(batch: Batch, params: Sequence[SamplingParams]) -> tuple[Tensor, ...]:
    """Return all inputs of a batch on the host, in four-byte types."""
    cpu = torch.device("cpu")
    return *BatchTensors.of(batch, cpu), *Sampling.of(params, cpu)


class RecordedModel(SlotModel):
    """A mixin (first base class) that records and replays forward passes: a RecordingModel."""

    def __init__(self, *what: Any, recorder: Recorder, **sizes: Any) -> None:
        super().__init__(*what, **sizes)
        self._recorder = recorder
        self._buffers: dict[BatchShape, _Buffers] = {}
        self._calls: dict[_RecordingKey, Run] = {}
        self._waiting: dict[_RecordingKey, bool] = {}  # unrecorded keys: whether they have occurred

    @torch.no_grad()
    def choose(self, segments: Sequence[Segment]) -> list[Chosen]:
        shape = self._shape(segments)
        if any(segment.masked for segment in segments):
            return choose_at(*self._logits(segments, shape), segments)
        (table,) = self._call(segments, shape, _chooser(segments, shape.nodes))
        return [Chosen(table[row, : len(segment.pick)]) for row, segment in enumerate(segments)]

    @torch.no_grad()
    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        shape = self._shape(segments)
        if any(segment.masked for segment in segments):
            return rank_at(*self._logits(segments, shape), segments, k)
        greedy = all(segment.params.greedy for segment in segments)
        choice = ChoiceFunction(_rank_greedy if greedy else rank, k)
        return ranked_rows(segments, *self._call(segments, shape, choice))

    def padded(self, rows: int, nodes: int) -> tuple[int, int]:
        nodes = max(min(_step(nodes), self.max_nodes), self._min_nodes)
        return min(_step(rows), self.rows), nodes

    def plan(self, rows: int, nodes: int) -> None:
        """See RecordingModel.plan(). The smallest shapes are recorded first."""
        shapes = {
            self._rounded(BatchShape(row, node, node, 1, SLOT_STEP * steps))
            for row in _doublings(rows)
            for node in _doublings(nodes)
            for steps in _doublings(-(-self.capacity // SLOT_STEP))
        }
        keys = [
            _RecordingKey(shape, choice)
            for shape in sorted(shapes, key=lambda shape: (shape.rows, shape.slots, shape.nodes))
            for choice in (_GREEDY, _TRUNCATED, _open_choice(1, shape.nodes))
        ]
        self._waiting |= dict.fromkeys(keys[: MAX_RECORDINGS // 2], False)

    @torch.no_grad()
    def record_next(self) -> bool:
        """See RecordingModel.record_next()."""
        if not self._waiting:
            return False
        key = max(self._waiting, key=lambda key: self._waiting[key])  # prefer shapes that occurred
        self._buffers_of(key.shape).clear()
        self._record(key)
        return True

    def _shape(self, segments: Sequence[Segment]) -> BatchShape:
        return self._rounded(super()._shape(segments))

    def _rounded(self, shape: BatchShape) -> BatchShape:
        """Round sizes up to powers of two, and picks to one node or all nodes."""
        rows, nodes = self.padded(shape.rows, shape.nodes)
        picks, contexts = (1 if size == 1 else nodes for size in (shape.picks, shape.contexts))
        slots = min(SLOT_STEP * _step(-(-shape.slots // SLOT_STEP)), self.capacity + 1)
        return BatchShape(rows, nodes, picks, contexts, slots)

    def _call(
        self, segments: Sequence[Segment], shape: BatchShape, choice: ChoiceFunction
    ) -> list[np.ndarray]:
        """Return copies of the outputs on the host, since a replay may overwrite the originals."""
        return [
            output.to("cpu", copy=True).numpy() for output in self._run(segments, shape, choice)
        ]

    def _logits(self, segments: Sequence[Segment], shape: BatchShape) -> tuple[Tensor, Tensor]:
        """Return logits [B, P, V] on the device, and positions [B, P] of the tokens to choose.

        Rules are evaluated on the host while the device computes, so they are not recorded. The
        next forward pass may overwrite both results.
        """
        logits, positions = self._run(segments, shape, _LOGITS)
        return logits[: len(segments)], positions[: len(segments)]

    def _run(
        self, segments: Sequence[Segment], shape: BatchShape, choice: ChoiceFunction
    ) -> Outputs:
        """Replay the forward pass, or run it eagerly if its shape is new."""
        idle = [SamplingParams()] * (shape.rows - len(segments))
        params = [*(segment.params for segment in segments), *idle]
        self._buffers_of(shape).fill(pad(segments, shape, junk=self.capacity), params)
        key = _RecordingKey(shape, choice)
        if self._waiting.get(key):
            self._record(key)
        if key in self._calls:
            return self._calls[key]()
        if key in self._waiting or len(self._calls) + len(self._waiting) < MAX_RECORDINGS:
            self._waiting[key] = True
        return self._recorder.run(partial(self._compute, key))

    def _record(self, key: _RecordingKey) -> None:
        """Record a shape. If recording fails, the shape always runs eagerly."""
        del self._waiting[key]
        run = partial(self._compute, key)
        try:
            self._calls[key] = self._recorder.record(run)
        except RuntimeError as error:
            self._calls[key] = partial(self._recorder.run, run)
            rows, nodes, *_, slots = key.shape
            why = str(error).strip().partition("\n")[0]
            say(
                f"calls of {rows} x {nodes} nodes over {slots} slots run without a CUDA graph, "
                f"which is slower: {why}"
            )

    def _buffers_of(self, shape: BatchShape) -> _Buffers:
        if shape not in self._buffers:
            self._buffers[shape] = _Buffers(shape, self.capacity, self.device)
        return self._buffers[shape]

    def _compute(self, key: _RecordingKey) -> Outputs:
        """Run the computation that is recorded. It must not wait for the device, and may depend on
        inputs only through tensors of fixed shapes.
        """
        choice, buffers = key.choice, self._buffers[key.shape]
        logits, positions = self._write(buffers.inputs)
        outputs = choice.function(logits, buffers.sampling, positions, choice.size)
        return (outputs,) if isinstance(outputs, Tensor) else outputs


class CudaModel(RecordedModel, EagerModel):
    """An EagerModel whose forward passes are recorded and replayed."""

    def keep_features(self, layers: Sequence[int]) -> None:
        super().keep_features(layers)
        self._waiting = dict.fromkeys((*self._calls, *self._waiting), False)  # record again
        self._calls.clear()


def _step(size: int) -> int:
    """Return the smallest power of two that is at least `size`."""
    return 1 << (size - 1).bit_length()


def _doublings(size: int) -> list[int]:
    """Return the powers of two up to `size`, which is rounded up to a power of two."""
    return [1 << power for power in range(_step(size).bit_length())]


def _chooser(segments: Sequence[Segment], nodes: int) -> ChoiceFunction:
    """Return the cheapest choice function that suits all rows. Its size is one of few values."""
    if all(segment.params.greedy for segment in segments):
        return _GREEDY
    if all(segment.params.truncated for segment in segments):
        return _TRUNCATED
    spread = int(max(np.ptp(segment.positions[segment.pick]) for segment in segments))
    return _open_choice(1 + spread, nodes)


def _open_choice(levels: int, nodes: int) -> ChoiceFunction:
    return ChoiceFunction(choose_mixed, min(_step(max(levels, MIN_LEVELS)), nodes))


def _rank_greedy(logits: Tensor, sampling: Sampling, positions: Tensor, size: int) -> Outputs:
    return rank_greedy(logits, size)


_GREEDY = ChoiceFunction(lambda logits, *_: choose_greedy(logits), 0)
_TRUNCATED = ChoiceFunction(lambda logits, by, at, _: choose_truncated(logits, by, at), 0)
_LOGITS = ChoiceFunction(lambda logits, _, positions, size: (logits, positions), 0)
