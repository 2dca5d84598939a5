"""Captures of CUDA graphs, with a stand-in that has CUDA's rules. Not yet run on a GPU."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from inference.backends.cuda.model import CudaGraphs, Outputs
from tests.support.fake_cuda import Cuda, Refused, install

DEVICE: Any = SimpleNamespace(index=0)
ONES = torch.ones(4)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    return install(monkeypatch)


def double() -> Outputs:
    return (ONES * 2,)


def test_recordings_share_a_pool_and_leave_the_current_stream(cuda: Cuda) -> None:
    graphs, stream = CudaGraphs(DEVICE), cuda.stream
    for _ in range(3):
        assert torch.equal(graphs.record(double)()[0], ONES * 2)
    assert cuda.users == {1: 3}
    assert (cuda.stream, cuda.recording) == (stream, {})


def test_a_capture_that_waits_for_the_device_leaves_the_next_ones_recordable(cuda: Cuda) -> None:
    graphs, stream = CudaGraphs(DEVICE), cuda.stream

    def wait() -> Outputs:
        if cuda.captures:
            cuda.synchronize()
        return double()

    graphs.record(double)
    for _ in range(2):
        with pytest.raises(Refused, match="not permitted when stream is capturing"):
            graphs.record(wait)
        assert (cuda.stream, cuda.recording, cuda.captures) == (stream, {}, 0)
        graphs.record(double)
        torch.cuda.empty_cache()
    assert cuda.users == {1: 1, 2: 1, 3: 1}  # memory of the failed captures is free


def test_memory_that_is_full_during_a_capture_costs_that_recording_alone(cuda: Cuda) -> None:
    """The capture stays valid, so the pool and what it has free serve the next recordings."""
    graphs = CudaGraphs(DEVICE)

    def fill() -> Outputs:
        if cuda.captures:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return double()

    with pytest.raises(torch.OutOfMemoryError):
        graphs.record(fill)
    graphs.record(double)
    assert list(cuda.users) == [1]


def test_threads_capture_one_after_the_other(cuda: Cuda) -> None:
    """Such as a target's and its draft's. Each has its cuBLAS handle before it captures."""
    meet, errors = threading.Barrier(2), list[BaseException]()

    def multiply() -> Outputs:
        cuda.create_handle()
        time.sleep(0.002)  # lets the other thread begin, unless it waits
        return double()

    def work() -> None:
        try:
            graphs = CudaGraphs(DEVICE)
            for _ in range(4):
                meet.wait()
                graphs.record(multiply)
        except BaseException as error:
            errors.append(error)
            meet.abort()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
