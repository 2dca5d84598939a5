"""Models on CUDA graphs, one for each padded shape: forward, cache writes and choice.

Calls are padded to few shapes. The first call of a shape runs eagerly, the second is recorded, and
later ones replay the recording over the same buffers. Only `Recorder` needs CUDA; all else runs on
any device. Not yet run on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from inference.backends import Chosen, Ranked, Segment
from inference.backends.batch import Batch, BatchShape, pad
from inference.backends.choices import choose_at, rank_at, ranked_rows
from inference.backends.eager import SLOT_STEP, BatchTensors, EagerModel, SlotModel
from inference.model.sampler import (
    Sampling,
    choose_greedy,
    choose_mixed,
    choose_truncated,
    rank,
    rank_greedy,
)
from inference.sampling import SamplingParams

Outputs = tuple[Tensor, ...]
Replay = Callable[[], Outputs]

MOST_GRAPHS = 256
"""Recordings that are kept. Shapes met after them run eagerly."""


class Recorder(Protocol):
    """Runs a function over tensors with fixed addresses: at once, or recorded and repeated."""

    def warm(self, run: Replay) -> Outputs:
        """Run it once, as is required before recording it."""
        ...

    def record(self, run: Replay) -> tuple[Callable[[], None], Outputs]:
        """Return a function that repeats `run`, and the tensors that hold its outputs.

        The next repetition of any recording may overwrite these tensors.
        """
        ...


class CudaGraphs:
    """A Recorder with torch.cuda.CUDAGraph.

    All recordings share a stream and a memory pool, so only one at a time may run.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._pool = device, torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def warm(self, run: Replay) -> Outputs:
        """Run on the recordings' stream, where libraries set themselves up."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            outputs = run()
        current.wait_stream(self._stream)
        return outputs

    def record(self, run: Replay) -> tuple[Callable[[], None], Outputs]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        ):
            outputs = run()
        return graph.replay, outputs


class ChoiceFunction(NamedTuple):
    """A way to make tokens of logits [B, P, V]: function(logits, sampling, positions, size)."""

    function: Callable[[Tensor, Sampling, Tensor, int], Tensor | Outputs]
    size: int  # positions that noise is made for when choosing, children when ranking


class _RecordingKey(NamedTuple):
    """Identifies one recording."""

    shape: BatchShape
    choice: ChoiceFunction


class _Buffers:
    """The input tensors of one shape on the device."""

    def __init__(self, shape: BatchShape, junk: int, device: torch.device) -> None:
        self.inputs = BatchTensors.of(Batch(shape, junk), device)
        self.sampling = Sampling.of([SamplingParams()] * shape.rows, device)

    def fill(self, batch: Batch, params: Sequence[SamplingParams]) -> None:
        """Copy a call's inputs into the buffers."""
        cpu = torch.device("cpu")
        given = (*BatchTensors.of(batch, cpu), *Sampling.of(params, cpu))
        for held, one in zip((*self.inputs, *self.sampling), given, strict=True):
            held.copy_(one)


class _Recorded(NamedTuple):
    replay: Callable[[], None]
    outputs: Outputs


class RecordedModel(SlotModel):
    """A SlotModel whose calls are recorded and replayed. One call at a time, as for every Model.

    It stands before the class that computes, among the bases of a class of both.
    """

    def __init__(self, *what: Any, recorder: Recorder, **sizes: Any) -> None:
        super().__init__(*what, **sizes)
        self._recorder = recorder
        self._buffers: dict[BatchShape, _Buffers] = {}
        self._recorded: dict[_RecordingKey, _Recorded | None] = {}  # None: met once

    @torch.no_grad()
    def choose(self, segments: Sequence[Segment]) -> list[Chosen]:
        shape = self._shape(segments)
        if _need_logits(segments):
            return choose_at(*self._logits(segments, shape), segments)
        (table,) = self._call(segments, shape, _chooser(segments, shape.nodes))
        return [Chosen(table[row, : len(segment.pick)]) for row, segment in enumerate(segments)]

    @torch.no_grad()
    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        shape = self._shape(segments)
        if _need_logits(segments):
            return rank_at(*self._logits(segments, shape), segments, k)
        greedy = all(segment.params.greedy for segment in segments)
        choice = ChoiceFunction(_rank_greedy if greedy else rank, k)
        return ranked_rows(segments, *self._call(segments, shape, choice))

    def padded(self, rows: int, nodes: int) -> tuple[int, int]:
        nodes = max(min(_step(nodes), self.max_nodes), self._least_nodes)
        return min(_step(rows), self.rows), nodes

    def _shape(self, segments: Sequence[Segment]) -> BatchShape:
        """Round sizes up to powers of two. Either one node or every node is picked."""
        least = super()._shape(segments)
        rows, nodes = self.padded(least.rows, least.nodes)
        picks, contexts = (1 if size == 1 else nodes for size in (least.picks, least.contexts))
        slots = min(SLOT_STEP * _step(-(-least.slots // SLOT_STEP)), self.capacity + 1)
        return BatchShape(rows, nodes, picks, contexts, slots)

    def _call(
        self, segments: Sequence[Segment], shape: BatchShape, choice: ChoiceFunction
    ) -> list[np.ndarray]:
        """Return the outputs on the host, copied before another recording may overwrite them."""
        return [
            output.to("cpu", copy=True).numpy() for output in self._run(segments, shape, choice)
        ]

    def _logits(self, segments: Sequence[Segment], shape: BatchShape) -> tuple[Tensor, Tensor]:
        """Return logits [B, P, V] on the device, and positions [B, P] of the tokens to be chosen.

        What a rule says is known when the device computes already, so it is no part of what is
        recorded. The next call may overwrite both.
        """
        logits, positions = self._run(segments, shape, ChoiceFunction(_keep_logits, 0))
        return logits[: len(segments)], positions[: len(segments)]

    def _run(
        self, segments: Sequence[Segment], shape: BatchShape, choice: ChoiceFunction
    ) -> Outputs:
        buffers = self._buffers.get(shape)
        if buffers is None:
            buffers = self._buffers[shape] = _Buffers(shape, self.capacity, self.device)
        idle = [SamplingParams()] * (shape.rows - len(segments))
        buffers.fill(
            pad(segments, shape, junk=self.capacity),
            [*(segment.params for segment in segments), *idle],
        )
        return self._outputs(_RecordingKey(shape, choice), buffers)

    def _outputs(self, key: _RecordingKey, buffers: _Buffers) -> Outputs:
        def run() -> Outputs:
            return self._compute(key.choice, buffers)

        if key not in self._recorded:
            if len(self._recorded) < MOST_GRAPHS:
                self._recorded[key] = None
            return self._recorder.warm(run)
        recorded = self._recorded[key]
        if recorded is None:
            recorded = self._recorded[key] = _Recorded(*self._recorder.record(run))
        recorded.replay()
        return recorded.outputs

    def _compute(self, choice: ChoiceFunction, buffers: _Buffers) -> Outputs:
        """The computation that is recorded.

        It must not wait for the device, and may depend on values only through tensors of fixed
        shapes.
        """
        logits, positions = self._write(buffers.inputs)
        outputs = choice.function(logits, buffers.sampling, positions, choice.size)
        return (outputs,) if isinstance(outputs, Tensor) else outputs


class CudaModel(RecordedModel, EagerModel):
    """An EagerModel whose calls are recorded and replayed."""

    def keep_features(self, layers: Sequence[int]) -> None:
        super().keep_features(layers)
        self._recorded.clear()  # what was recorded before keeps none


def _step(size: int) -> int:
    """Return the least power of two that is at least `size`."""
    return 1 << (size - 1).bit_length()


def _need_logits(segments: Sequence[Segment]) -> bool:
    return any(one.rule is not None or one.scoring is not None for one in segments)


def _chooser(segments: Sequence[Segment], nodes: int) -> ChoiceFunction:
    """Return the cheapest choice that serves every row. Few distinct sizes occur."""
    if all(segment.params.greedy for segment in segments):
        return ChoiceFunction(_choose_greedy, 0)
    if all(segment.params.truncated for segment in segments):
        return ChoiceFunction(_choose_truncated, 0)
    spread = 1 + int(max(np.ptp(segment.positions[segment.pick]) for segment in segments))
    return ChoiceFunction(choose_mixed, min(_step(spread), nodes))


def _keep_logits(logits: Tensor, sampling: Sampling, positions: Tensor, size: int) -> Outputs:
    return logits, positions


def _choose_greedy(logits: Tensor, sampling: Sampling, positions: Tensor, size: int) -> Tensor:
    return choose_greedy(logits)


def _choose_truncated(logits: Tensor, sampling: Sampling, positions: Tensor, size: int) -> Tensor:
    return choose_truncated(logits, sampling, positions)


def _rank_greedy(logits: Tensor, sampling: Sampling, positions: Tensor, size: int) -> Outputs:
    return rank_greedy(logits, size)
