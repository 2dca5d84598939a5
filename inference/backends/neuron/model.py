"""A compiled target on NeuronCores. It runs one graph call at a time.

The caches are the graphs' state on the device, and a graph writes the slots that its inputs name.
Between calls, the device makes the noise of the next positions. Not yet run on hardware: see
docs/trainium.md.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from inference.backends import Chosen, Segment
from inference.backends.graphs.compiled import CompiledModel, form_of
from inference.backends.graphs.fused import fill_round, fused_part, in_rounds
from inference.backends.graphs.graph_calls import inputs_of, picked
from inference.errors import Busy, OutriderError, Unavailable
from inference.files.artifact import Bucket, CompiledTarget, Manifest, RoundBucket
from inference.model.cache import KeysValues, empty_cache
from inference.model.checkpoints.checkpoint import DTYPES
from inference.model.checkpoints.config import parse_config
from inference.model.choice.graph_choice import FILLED, WINDOW, NoisePlace, fill_inputs
from inference.model.graphs.round_graph import idle_inputs, under_draft_names
from inference.model.graphs.verify_graph import copy_inputs
from inference.tree.token_tree import IntArray

PACKAGE = "graphs/nxd_model.pt"
"""File with all graphs, an NxDModel."""

COPY = "copy_rows"
"""Name of the graph that copies rows of the caches. Artefacts with several rows have this graph."""

FILL = "fill_noise"
"""Name of the graph that makes noise. Artefacts with graphs that sample have this graph."""

SHARD = "weights/tp{}_sharded_checkpoint.safetensors"
"""File with the weights of one tensor-parallel rank, as NxD names it."""

Say = Callable[[str], None]


class _RuntimeFailure(NamedTuple):
    """A failure of the Neuron runtime, recognised by the runtime's output."""

    printed: re.Pattern[str]
    what: str
    remedy: str
    kind: type[Unavailable] = Unavailable


def _printed(words: str) -> re.Pattern[str]:
    return re.compile(rf".*({words}).*", re.IGNORECASE)


_FAILURES = (
    _RuntimeFailure(
        _printed(r"nrt_allocate_neuron_cores|cores?\(s\) not available|resource busy|in use\b"),
        "the NeuronCores are not available",
        "another process has reserved them until it ends. "
        "neuron-ls shows which; or share them out with NEURON_RT_VISIBLE_CORES",
        Busy,
    ),
    _RuntimeFailure(
        _printed(r"status\W{0,2}1003\b|numerical error|subtype_numerical"),
        "the device met a NaN or an infinity and aborted the call",
        "the row is lost, and this is a defect to report",
    ),
    _RuntimeFailure(
        _printed("failed to alloc|allocation failure|nrt_resource|out of memory|mempool"),
        "the memory of a core is full",
        "build fewer graphs (--tree_sizes, --sampling), --rows 1, or a shorter --sequence_length",
    ),
    _RuntimeFailure(
        _printed("driver version|aws-neuronx?-dkms"),
        "the driver does not fit the runtime",
        "apt-get install --only-upgrade aws-neuronx-dkms, then reboot",
    ),
    _RuntimeFailure(
        _printed("libnccom"),
        "the ranks cannot communicate",
        "apt-get install aws-neuronx-collectives",
    ),
    _RuntimeFailure(
        _printed("not (be )?initialized|failed to initialize"),
        "the device did not start",
        "dmesg says why; `sudo rmmod neuron && sudo modprobe neuron` restarts it",
    ),
    _RuntimeFailure(
        _printed("timed out|timeout"),
        "a call or a load took too long",
        "set NEURON_RT_EXEC_TIMEOUT=120, and look at neuron-top",
    ),
)
"""The first match is used. Messages: aws-neuron-sdk, neuron-runtime/nrt-troubleshoot.rst."""


class Program(Protocol):
    """Calls a graph on the device by name, and returns its outputs on the host.

    The outputs are the chosen tokens, followed by any features.
    """

    def __call__(self, graph: str, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]: ...


class NeuronModel(CompiledModel):
    """A compiled target whose caches are on the device, where only the graphs write them.

    The noise graph makes the noise that a call with sampling needs. It runs in advance, after the
    previous call has returned. Noise that is still missing is made before the call.
    """

    def __init__(self, program: Program, manifest: Manifest, say: Say) -> None:
        graphs: dict[Bucket, Any] = {
            bucket: partial(program, bucket.name) for bucket in manifest.buckets
        }
        cache = shape_of_cache(manifest, manifest.config)
        super().__init__(graphs, cache, form_of(manifest))
        self.device = torch.device("xla")
        self._noise = NoiseAhead(self._fill)
        self._program = program
        self._one_call = threading.Lock()
        self._warm(manifest, say)

    def _copy_cache(self, source: int, target: int, slots: int) -> None:
        """Copy a whole row, junk slot included, by one call of the graph that copies rows."""
        self.run(COPY, copy_inputs(source, target))

    def _call(self, bucket: Bucket, segments: Sequence[Segment]) -> list[Chosen]:
        draws = draws_of(segments)
        inputs = inputs_of(bucket, segments)
        chosen, *features = self._drawing(draws, bucket.name, inputs)
        self._keep(inputs, features)
        return picked(bucket, chosen, segments)

    def _drawing(
        self, draws: Sequence[Draw], graph: str, inputs: dict[str, Tensor]
    ) -> tuple[Tensor, ...]:
        """Call a graph that needs this noise."""
        self._noise.before(draws)
        answer = self.run(graph, inputs)
        self._noise.after(draws)
        return answer

    def _fill(self, places: Sequence[NoisePlace]) -> None:
        self.run(FILL, fill_inputs(places))

    def run(self, graph: str, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """Call a graph while no other call is running: all graphs share the device's state."""
        with self._one_call:
            try:
                return self._program(graph, inputs)
            except RuntimeError as error:
                raise runtime_error(error) from error

    def _warm(self, manifest: Manifest, say: Say) -> None:
        """Call every graph once with idle inputs, which initialises the graph."""
        idle = {bucket.name: idle_inputs(bucket) for bucket in manifest.graphs}
        idle |= calls_between(manifest)
        for index, (graph, inputs) in enumerate(idle.items(), 1):
            start = time.perf_counter()
            self.run(graph, inputs)
            say(
                f"[{index}/{len(idle)}] {graph} ran in {(time.perf_counter() - start) * 1000:.1f} "
                "ms"
            )


class NeuronFusedModel(NeuronModel):
    """A RoundModel (inference/engine/colocated/graph_rounds.py) with caches on the device.

    The graphs of target, draft and rounds are in one package and share their state.
    """

    def __init__(self, program: Program, manifest: Manifest, say: Say) -> None:
        fused = fused_part(manifest)
        self._round_buckets, self.shape = fused.rounds, fused.shape
        self.draft = _NeuronDraft(self, manifest)
        super().__init__(program, manifest, say)

    def rounds(self, segments: Sequence[Segment]) -> list[IntArray]:
        """Run a round for each segment; see RoundModel.rounds()."""
        return in_rounds(self._round_buckets, segments, self._round)

    def _round(self, bucket: RoundBucket, segments: Sequence[Segment]) -> list[IntArray]:
        drawn = [segment for segment in segments if not segment.params.greedy]
        firsts = [int(segment.positions[0]) + 1 for segment in drawn]
        draws = [
            Draw(segment.row, segment.params.seed, first, first + bucket.shape.depth)
            for segment, first in zip(drawn, firsts, strict=True)
        ]
        (answers,) = self._drawing(draws, bucket.name, fill_round(bucket, segments))
        return list(answers[: len(segments)].numpy().astype(np.int32))


class _NeuronDraft(CompiledModel):
    """The draft as a separate Model, with its graphs in the target's package."""

    def __init__(self, beside: NeuronFusedModel, manifest: Manifest) -> None:
        draft = fused_part(manifest)
        graphs: dict[Bucket, Any] = {
            bucket: partial(beside.run, bucket.name) for bucket in draft.prefill
        }
        super().__init__(graphs, shape_of_cache(manifest, draft.config))
        self._beside = beside

    def _call(self, bucket: Bucket, segments: Sequence[Segment]) -> list[Chosen]:
        inputs = under_draft_names(inputs_of(bucket, segments))
        (chosen,) = self._beside.run(bucket.name, inputs)
        return picked(bucket, chosen, segments)


def needs_noise(target: CompiledTarget) -> bool:
    """Return whether any graph of the target samples."""
    return any(bucket.sampled for bucket in target.graphs)


def calls_between(target: CompiledTarget) -> dict[str, dict[str, Tensor]]:
    """Return the idle inputs, by name, of the small graphs that are called between a target's: one
    copies rows, if there are several, and one computes noise, if any graph is sampled.
    """
    calls = {COPY: copy_inputs()} if target.rows > 1 else {}
    if needs_noise(target):
        calls[FILL] = fill_inputs([NoisePlace(0, 0, 0)])
    return calls


def shape_of_cache(manifest: Manifest, config: Mapping[str, Any]) -> KeysValues:
    """Return caches without memory, for their shapes only.

    config: config of the model that owns the caches
    """
    return empty_cache(
        parse_config(config), manifest.rows, manifest.capacity, DTYPES[manifest.dtype], "meta"
    )


def runtime_error(error: Exception) -> OutriderError:
    """Return an error that explains a Neuron runtime error to the user."""
    text = str(error)
    for failure in _FAILURES:
        if match := failure.printed.search(text):
            return failure.kind(f"{failure.what} ({match[0].strip()}): {failure.remedy}")
    line = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    return Unavailable(f"the Neuron runtime failed: {line}")


def innermost(error: BaseException) -> str:
    """Return the message of the first cause, which is an error of the compiler or the device."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).strip() or type(error).__name__


class Draw(NamedTuple):
    """The noise that a row needs for a call, of positions `first` to `last`."""

    row: int
    seed: int
    first: int
    last: int

    def ahead(self) -> Draw:
        """Return the noise that the row's next call may need: its root is a token chosen now."""
        return self._replace(first=self.first + 1, last=self.last + FILLED)

    def whole(self) -> Draw:
        """Return the noise of a whole window from `first` on."""
        return self._replace(last=self.first + WINDOW - 1)


def draws_of(segments: Iterable[Segment]) -> list[Draw]:
    """Return the noise that choosing at the picked nodes of these segments needs."""
    drawn = [segment for segment in segments if not segment.params.greedy]
    after = [segment.positions[segment.pick] + 1 for segment in drawn]
    return [
        Draw(segment.row, segment.params.seed, int(positions.min()), int(positions.max()))
        for segment, positions in zip(drawn, after, strict=True)
    ]


class NoiseAhead:
    """Tracks which noise is in the windows, and adds missing noise.

    fill: makes the noise of 1 to FILLED places by one call on the device
    """

    def __init__(self, fill: Callable[[Sequence[NoisePlace]], None]) -> None:
        self._fill = fill
        self._held: dict[tuple[int, int], NoisePlace] = {}  # by row and index in the row's window
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="noise")
        self._later: Future[None] | None = None

    def before(self, draws: Sequence[Draw]) -> None:
        """Wait until the windows contain this noise: at most WINDOW positions per row. Raises any
        error of the device, also from filling in advance.
        """
        if draws and self._later is not None:
            later, self._later = self._later, None
            later.result()
        self._make([place for draw in draws for place in self._lacking(draw)])

    def after(self, draws: Sequence[Draw]) -> None:
        """Start making the noise that the next call of these rows may need. Returns at once."""
        near = [draw.ahead() for draw in draws]
        short = [draw for draw in near if any(self._lacking(draw))]
        places = [place for draw in short for place in self._lacking(draw.whole())]
        if places:
            self._later = self._thread.submit(self._make, places)

    def _lacking(self, draw: Draw) -> Iterator[NoisePlace]:
        for position in range(draw.first, draw.last + 1):
            place = NoisePlace(draw.row, position, draw.seed)
            if self._held.get((draw.row, position % WINDOW)) != place:
                yield place

    def _make(self, places: Sequence[NoisePlace]) -> None:
        for first in range(0, len(places), FILLED):
            some = places[first : first + FILLED]
            self._fill(some)
            self._held |= {(place.row, place.position % WINDOW): place for place in some}
