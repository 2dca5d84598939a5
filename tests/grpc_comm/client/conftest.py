"""Replicas of a test share a machine that may be busy: a client waits for all before it begins."""

from __future__ import annotations

import pytest

from grpc_comm.client import replicas
from tests.support.wire_fixtures import WAIT


@pytest.fixture(autouse=True)
def all_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "GATHER_SECONDS", WAIT)
