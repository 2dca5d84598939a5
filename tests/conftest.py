"""One thread: on shared cores several threads wait for each other far longer than they compute. And fixtures of several files.

Profiles, prices and artefacts are kept in a directory of the test run, not in the user's: a target measures itself once in a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from grpc_comm.server import BackgroundServer

torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def user_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def server() -> Iterator[BackgroundServer]:
    """A server of tests/wire_fixtures.py's target, on a free port."""
    from tests.wire_fixtures import background, successor_engine

    with background(successor_engine()) as served:
        yield served
