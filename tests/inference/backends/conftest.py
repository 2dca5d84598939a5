"""Every backend as a fixture, for contracts of a Model."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from inference.backends import Model
from tests.support.backends import BACKENDS, Machine, Subject, native_model
from tests.support.equality import NearTies
from tests.support.models import write_checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("contract") / "model")


@pytest.fixture(scope="session")
def native(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Model]]:
    with ExitStack() as after:
        yield cache(lambda: native_model(tmp_path_factory.mktemp("native"), after))


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=BACKENDS[name].marks) for name in BACKENDS]
)
def subject(
    request: pytest.FixtureRequest,
    checkpoint: Path,
    native: Callable[[], Model],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Subject]:
    backend = BACKENDS[request.param]
    with pytest.MonkeyPatch.context() as patch:
        folder, run = tmp_path_factory.mktemp("backend"), tmp_path_factory.getbasetemp()
        shared = run.parent if "PYTEST_XDIST_WORKER" in os.environ else run
        machine = Machine(checkpoint, folder, shared, patch, native)
        decoder, ties = backend.decoder and backend.decoder(checkpoint), NearTies()
        yield Subject(backend, machine, backend.make(machine), decoder, ties)
        ties.check()
