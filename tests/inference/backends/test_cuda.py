"""Recordings of calls on the CPU, and captures of graphs by CUDA's rules. Not yet run on a GPU."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from inference.backends import Segment
from inference.backends.cuda.model import CudaGraphs, CudaModel, Outputs, Run
from inference.model.decoder import Decoder
from inference.sampling import SamplingParams
from tests.support.fake_cuda import Cuda, Reruns, install
from tests.support.models import segment
from tests.support.pairs import SEQUENCE_LENGTH, decoder

GREEDY, WARM, OPEN = (
    SamplingParams(),
    SamplingParams(0.7, top_p=0.9, seed=5).on_the_wire(),
    SamplingParams(1.0, seed=2**40 + 3),
)


def recorded(target: Decoder, rows: int = 2, max_nodes: int = 64) -> tuple[CudaModel, Reruns]:
    reruns = Reruns()
    return CudaModel(
        target, rows=rows, capacity=SEQUENCE_LENGTH + 512, max_nodes=max_nodes, recorder=reruns
    ), reruns


def test_a_shape_is_run_once_recorded_once_and_replayed_from_then_on(target: Decoder) -> None:
    model, reruns = recorded(target)
    counts = []
    for nodes in (5, 8, 6, 7):  # one shape: eight nodes
        model.choose([segment(0, nodes)])
        counts.append((reruns.eager, reruns.recorded, reruns.replayed))
    assert counts == [(1, 0, 0), (1, 1, 1), (1, 1, 2), (1, 1, 3)]


def test_a_shape_that_was_recorded_before_features_are_kept_is_recorded_again(
    target: Decoder,
) -> None:
    model, reruns = recorded(target)
    for layers in ((), (0, 2)):
        if layers:
            model.keep_features(layers)
        for _ in range(2):
            model.choose([segment(0, 8)])
    assert model.features(0, segment(0, 8).slots).any()
    assert (reruns.eager, reruns.recorded) == (2, 2)


@pytest.mark.parametrize(
    ("call", "shape"),
    [
        ([segment(0, 1)], (1, 2, 1, 1, 64)),  # in float32 one node runs as two
        ([segment(0, 5), segment(1, 3)], (2, 8, 8, 1, 64)),
        ([segment(0, 5, context=65)], (1, 8, 8, 1, 128)),
        ([segment(0, 5, context=193)], (1, 8, 8, 1, 256)),
        ([segment(0, 40)._replace(pick=np.array([39], dtype=np.int32))], (1, 50, 1, 1, 64)),
        ([segment(0, 3)._replace(context=np.zeros((3, 900), dtype=np.bool_))], (1, 4, 4, 4, 1000)),
    ],
)
def test_calls_are_padded_to_powers_of_two_within_the_models_limits(
    target: Decoder, call: list[Segment], shape: tuple[int, ...]
) -> None:
    model = CudaModel(target, rows=3, capacity=999, max_nodes=50, recorder=Reruns())
    shapes = []

    def note(decoder: Decoder, inputs: tuple[torch.Tensor, ...]) -> None:
        tokens, _, _, context_mask, _, pick = inputs[:6]
        shapes.append((*tokens.shape, pick.shape[1], *context_mask.shape[1:]))

    with target.register_forward_pre_hook(note):
        model.choose(call)
    assert shapes == [shape]
    assert model.padded(len(call), len(call[0].tokens)) == shape[:2]


def test_shapes_beyond_the_most_run_as_they_are(
    target: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference.backends.cuda.model.MAX_RECORDINGS", 1)
    model, reruns = recorded(target)
    for _ in range(3):
        model.choose([segment(0, 2)])
        model.choose([segment(0, 4)])
    assert (reruns.eager, reruns.recorded, reruns.replayed) == (4, 1, 2)


def test_planned_calls_are_recorded_before_they_are_made(target: Decoder) -> None:
    """Every choice of the shapes that clients ask for; the smallest come first."""
    model, reruns = recorded(target)
    kept = [tensor[:, : model.capacity].clone() for tensor in model.cache.tensors]
    model.plan(2, 8)
    for _ in range(24):
        assert model.record_next()
    for before, tensor in zip(kept, model.cache.tensors, strict=True):
        assert torch.equal(before, tensor[:, : model.capacity])
    for nodes in (1, 4, 8):
        for params in (GREEDY, WARM, OPEN):
            model.choose([segment(0, nodes, params, context=70)])
    assert (reruns.eager, reruns.recorded, reruns.replayed) == (0, 24, 9)
    model.choose([segment(0, 4), segment(1, 4)])  # planned, and not recorded yet
    assert reruns.eager == 1
    rest = sum(iter(model.record_next, False))
    assert rest == 3 * 2 * 4 * 5 - 24  # choices, rows, nodes (one is computed as two), slots


def test_a_call_that_was_made_once_is_recorded_when_nobody_waits(target: Decoder) -> None:
    """Its last inputs are not written again: their slots may hold another text by then."""
    model, reruns = recorded(target)
    model.plan(1, 8)  # smaller calls, too, which can wait
    model.choose([segment(0, 4, WARM)])
    model.choose([segment(0, 8)])
    kept = model.cache.keys[0][0].clone()
    assert model.record_next()
    assert torch.equal(kept[: model.capacity], model.cache.keys[0][0, : model.capacity])
    model.choose([segment(0, 4, WARM)])
    assert (reruns.eager, reruns.recorded, reruns.replayed) == (2, 1, 1)


class Full(Reruns):
    """A recorder without memory for calls of several nodes."""

    def record(self, run: Run) -> Run:
        if run()[0].shape[1] > 4:
            raise torch.OutOfMemoryError("CUDA out of memory\nand details")
        return super().record(run)


def test_a_call_that_cannot_be_recorded_runs_eagerly_and_others_are_recorded(
    target: Decoder, capsys: pytest.CaptureFixture[str]
) -> None:
    full = Full()
    model = CudaModel(target, rows=1, capacity=999, max_nodes=8, recorder=full)
    made = [model.choose([segment(0, 8)])[0].tokens.tolist() for _ in range(4)]
    assert made[0] == made[1] == made[3]
    for _ in range(3):
        model.choose([segment(0, 4)])
    assert (full.eager, full.recorded, full.replayed) == (5, 1, 2)
    (line,) = capsys.readouterr().err.splitlines()
    for fact in ("1 x 8", "CUDA out of memory"):
        assert fact in line


def test_results_are_not_written_over_by_later_calls(target: Decoder) -> None:
    model, _ = recorded(target)
    calls = [
        model.choose([segment(0, 4, SamplingParams(1.0, seed=seed))])[0].tokens
        for seed in (1, 1, 1, 2, 3)
    ]
    assert calls[0].tolist() == calls[1].tolist() == calls[2].tolist()
    assert calls[2].tolist() != calls[4].tolist()


class Seen(Exception):
    """Ends a call whose outputs were seen. They are on no device, so nobody could read them."""


class OnNoDevice(Reruns):
    """A recorder of a model without memory: only shapes and devices are computed."""

    def run(self, run: Run) -> Outputs:
        raise Seen(run())


@pytest.mark.parametrize(
    ("params", "rank"), [(GREEDY, 0), (WARM, 0), (OPEN, 0), (GREEDY, 3), (OPEN, 3)]
)
@pytest.mark.parametrize("contexts", [1, 4])
def test_what_is_recorded_stays_on_the_device_and_waits_for_nothing(
    params: SamplingParams, rank: int, contexts: int
) -> None:
    """By shapes and devices alone: a value that is asked for, or a tensor of the host, fails."""
    context = np.zeros((contexts, 5), dtype=np.bool_)
    calls = [segment(row, 4, params)._replace(context=context) for row in (0, 1)]
    no_device = decoder(1).to(torch.device("meta"))
    model = CudaModel(no_device, rows=2, capacity=100, max_nodes=8, recorder=OnNoDevice())
    with pytest.raises(Seen) as seen:
        _ = model.rank(calls, rank) if rank else model.choose(calls)
    outputs: Outputs = seen.value.args[0]
    assert {output.device.type for output in outputs} == {"meta"}
    assert outputs[0].shape[:2] == (2, 4)


DEVICE: Any = SimpleNamespace(index=0)
ONES = torch.ones(4)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    return install(monkeypatch)


def double() -> Outputs:
    return (ONES * 2,)


def run_out(cuda: Cuda) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize(
    ("fault", "users"), [(Cuda.synchronize, {1: 1, 2: 1, 3: 1}), (run_out, {1: 5})]
)
def test_a_failed_capture_costs_that_recording_alone(
    cuda: Cuda, fault: Callable[[Cuda], None], users: dict[int, int]
) -> None:
    """Recordings share a pool. One that waits for the device ends it, and frees its memory; one
    whose memory is full does not.
    """
    graphs, stream = CudaGraphs(DEVICE), cuda.stream

    def fail() -> Outputs:
        if cuda.captures:
            fault(cuda)
        return double()

    graphs.record(double)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"not permitted when|out of memory"):
            graphs.record(fail)
        assert (cuda.stream, cuda.recording, cuda.captures) == (stream, {}, 0)
        assert torch.equal(graphs.record(double)()[0], ONES * 2)
        torch.cuda.empty_cache()
    assert (cuda.users, cuda.replays) == (users, 2)


def test_threads_capture_one_after_the_other(cuda: Cuda) -> None:
    """Such as a target's and its draft's. Each has its cuBLAS handle before it captures."""
    meet = threading.Barrier(2)

    def multiply() -> Outputs:
        cuda.create_handle()
        time.sleep(0.002)  # lets the other thread begin, unless it waits
        return double()

    def work() -> None:
        graphs = CudaGraphs(DEVICE)
        for _ in range(4):
            meet.wait(30)
            graphs.record(multiply)

    with ThreadPoolExecutor(2) as pool:
        for thread in [pool.submit(work) for _ in range(2)]:
            thread.result()
