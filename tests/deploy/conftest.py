"""Fixtures of this room."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cloud import IMAGE, SERVING, AwsServer, aws_server
from tests.support.scratch_host import build_wheel


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Outrider's wheel, which takes seconds to build."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def aws_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsServer]:
    with aws_server(tmp_path_factory.mktemp("home")) as running:
        yield running


@pytest.fixture
def aws(aws_process: AwsServer, monkeypatch: pytest.MonkeyPatch) -> AwsServer:
    """The stand-in of AWS without faults, also for commands that run in this process."""
    aws_process.control(faults=[], host=SERVING, takes_secrets=True)
    for name, value in aws_process.environment.items():
        monkeypatch.setenv(name, value)
    return aws_process


@pytest.fixture
def installed(tmp_path: Path) -> list[str]:
    """Flags of a command that starts a host: what it runs, and Outrider for it."""
    wheel = tmp_path / "outrider-0.1.0-py3-none-any.whl"
    wheel.write_bytes(b"a wheel")
    return ["--image", IMAGE, "--wheel", str(wheel)]
