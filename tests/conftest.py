"""Options of the test run, and fixtures of several files.

torch, when a test imports it, and child processes compute with one thread: on shared cores several
threads wait for each other far longer than they compute.

Profiles, prices and artefacts are kept in a directory of the test run, not in the user's: a target
measures itself once in a run.
"""

from __future__ import annotations

import gc
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import tiers

if TYPE_CHECKING:
    from grpc_comm.server.server import BackgroundServer
    from inference.engine.engine import Engine
    from inference.model.decoder import Decoder
    from tests.support.commands import Run
    from tests.support.equality import NearTies
    from tests.support.fake_neuron import Neuron

for threads in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(threads, "1")  # nothing above imports torch, which reads them once
tiers.load_profile()
os.environ["AWS_EC2_METADATA_DISABLED"] = "true"  # nobody's account: prices are the bundled ones
os.environ["AWS_SHARED_CREDENTIALS_FILE"] = os.environ["AWS_CONFIG_FILE"] = os.devnull


def pytest_addoption(parser: pytest.Parser) -> None:
    tiers.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # imports leave no garbage, and the collector would look at all of them each time
    if config.getoption("--measure"):
        config.pluginmanager.register(tiers.Meter(config))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out, unread, files of which no test would run."""
    if collection_path.suffix != ".py":
        return None
    is_left_out = tiers.is_dear(collection_path, config) or tiers.is_of_slower_tier(
        collection_path, config
    )
    return is_left_out or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tiers.drop_impossible(items)
    tiers.thin_products(items)
    seed = config.getoption("--shuffle")
    if seed is not None:
        tiers.shuffle(items, seed)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def user_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    """What a command in this process sets up for logging ends with its test."""
    handlers = logging.getLogger().handlers[:]
    levels = {
        name: logging.getLogger(name).level for name in ("", "inference", "grpc_comm", "outrider")
    }
    yield
    logging.getLogger().handlers[:] = handlers
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `outrider` with the words that it is called with, in this process."""
    from tests.support.commands import runner

    return runner(capsys)


@pytest.fixture
def aws_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials that stand-ins of AWS take."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")


@pytest.fixture
def server() -> Iterator[BackgroundServer]:
    """A server of tests/support/wire_fixtures.py's target, on a free port."""
    from tests.support.wire_fixtures import background, successor_engine

    with background(successor_engine()) as served:
        yield served


@pytest.fixture(scope="module")
def target() -> Decoder:
    """The random target of tests/support/pairs.py, where a file has no `target` of its own."""
    from tests.support.pairs import decoder

    return decoder(1)


@pytest.fixture(scope="module")
def served(target: Decoder) -> Engine:
    """The engine of that target."""
    from tests.support.pairs import engine

    return engine(target)


@pytest.fixture(scope="module")
def ties() -> Iterator[NearTies]:
    """The near-ties of all texts of a file, which may not be many."""
    from tests.support.equality import NearTies

    count = NearTies()
    yield count
    count.check()


@pytest.fixture
def artifact(built: Path, tmp_path: Path) -> Path:
    """A copy, which a test may spoil, of the artefact that the file's own fixture `built` is."""
    return Path(shutil.copytree(built, tmp_path / "artifact"))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A tiny random model."""
    from tests.support.models import write_checkpoint

    return write_checkpoint(tmp_path / "model")


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """Where a stand-in machine lies: what is installed, its device, its product name."""
    return tmp_path / "packages"


@pytest.fixture
def neuron(monkeypatch: pytest.MonkeyPatch, packages: Path) -> Neuron:
    """A stand-in machine that has a Neuron device and all packages."""
    from tests.support.fake_neuron import Neuron

    return Neuron().install(monkeypatch, packages)
