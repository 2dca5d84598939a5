"""A fleet on Ray Serve makes the target's own texts, while replicas die, come and go. Keys are
asked for behind the ingress.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any, NamedTuple

import grpc
import pytest

import outrider
from grpc_comm import keys
from grpc_comm.transport import parse_address
from outrider.target.spawn import role_environment
from tests.support.repository import ROOT
from tests.support.wire_fixtures import opening, raw_stub, status

pytestmark = pytest.mark.extended
pytest.importorskip("ray", reason="a fleet needs pip install '.[ray]'")

PROMPTS = ["def main():", "import os\n", "class Reader:\n", "for name in"]
TEMPERATURES = [0.0, 0.7, 1.0]
TOKENS, SESSIONS, PATIENCE = 160, 16, 120.0
STOP_SECONDS = 60.0
_REPLICA = "ray::ServeReplica"

IMPATIENT = """
import sys
from outrider.__main__ import main
from outrider.target import ray_fleet
ray_fleet.SCALE_UP_SECONDS, ray_fleet.SCALE_DOWN_SECONDS = 1.0, 2.0
sys.exit(main())
"""


class RunningFleet(NamedTuple):
    """A fleet that serves. Its cluster is this process's own."""

    address: str
    process: subprocess.Popen[str]

    @property
    def replicas(self) -> list[int]:
        return [pid for pid in _descendants(self.process.pid) if _title(pid).startswith(_REPLICA)]


@contextmanager
def running_fleet(*flags: str) -> Iterator[RunningFleet]:
    """`outrider deploy ray` with these flags, which scales within seconds, until the block ends.

    One fleet at a time: Ray's proxy listens on a port that is always the same.
    """
    port = 20_000 + os.getpid() % 10_000  # a free one of the system's may be taken until Ray is up
    words = ["-c", IMPATIENT, "deploy", "ray", "--port", str(port), *flags]
    with (Path(tempfile.gettempdir()) / "outrider-ray.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = subprocess.Popen(
            [sys.executable, *words], cwd=ROOT, env=role_environment(), stderr=PIPE, text=True
        )
        try:
            assert process.stderr is not None
            said = list[str]()
            while not (said and said[-1].startswith("listening on")):
                said.append(next(process.stderr, ""))
                assert said[-1], "".join(said[-20:])
            yield RunningFleet(f"127.0.0.1:{port}", process)
        finally:
            _stop(process)


def _stop(process: subprocess.Popen[str]) -> None:
    """Ask it to end; what is left of it and its cluster after a while is killed."""
    started = _descendants(process.pid)
    process.send_signal(signal.SIGINT)
    try:
        process.communicate(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
    for pid in started:
        if _title(pid).startswith("ray::") or "/ray" in _title(pid):
            os.kill(pid, signal.SIGKILL)


def _descendants(pid: int) -> list[int]:
    below: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            after_name = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        below.setdefault(int(after_name[1]), []).append(int(stat.parent.name))
    found, left = list[int](), [pid]
    while left:
        children = below.get(left.pop(), [])
        found += children
        left += children
    return found


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


class Order(NamedTuple):
    """A text that is to be made."""

    prompt: str
    temperature: float
    seed: int


ORDERS = [Order(PROMPTS[i % 4], TEMPERATURES[i % 3], i % 5) for i in range(SESSIONS)]


class Texts:
    """Makes texts on threads, and counts the pieces that have come."""

    def __init__(self, engine: outrider.Engine) -> None:
        self._engine, self.pieces = engine, 0
        self._counting = threading.Lock()

    def make(self, order: Order) -> list[int]:
        """The tokens of a text."""
        with self._engine.stream(
            order.prompt, max_tokens=TOKENS, temperature=order.temperature, seed=order.seed
        ) as stream:
            for _ in stream:
                with self._counting:
                    self.pieces += 1
        return list(stream.result.token_ids)


@pytest.fixture(scope="module")
def own() -> dict[Order, list[int]]:
    """The target's own texts, without draft, ingress or fleet."""
    with outrider.serve(port=0) as target, outrider.connect(target.address, draft=False) as engine:
        texts = Texts(engine)
        return {order: texts.make(order) for order in dict.fromkeys(ORDERS)}


def wait_until(holds: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.1)


def test_a_fleet_grows_under_load_and_shrinks_after_it_and_no_text_is_lost(
    own: dict[Order, list[int]],
) -> None:
    """It stands first: two fleets on one machine would share the ports of their replicas."""
    flags = ["--replicas", "1,2", "--batch", "2", "--grace", "5"]
    with (
        running_fleet(*flags, "--insecure") as fleet,
        outrider.connect(fleet.address, patience=PATIENCE, batch=2) as engine,
        ThreadPoolExecutor(6) as pool,
    ):
        texts, enough, calm = Texts(engine), threading.Event(), threading.Event()

        def until(done: threading.Event, mine: Sequence[Order]) -> bool:
            """Make texts one after the other; whether each was the target's own."""
            right = True
            while not done.is_set():
                for order in mine:
                    right = right and texts.make(order) == own[order]
            return right

        assert len(fleet.replicas) == 1
        steady = pool.submit(until, calm, ORDERS[:2])
        crowd = [pool.submit(until, enough, ORDERS[2 + n : 4 + n]) for n in range(5)]
        wait_until(lambda: len(fleet.replicas) == 2)
        enough.set()
        assert all(one.result(PATIENCE) for one in crowd)
        wait_until(lambda: len(fleet.replicas) == 1)
        calm.set()
        assert steady.result(PATIENCE)


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A keys file, and a token file of its one key."""
    directory = tmp_path_factory.mktemp("keys")
    token = directory / "token"
    token.touch(mode=0o600)
    token.write_text(keys.make_key(directory / "keys.json", "alice"))
    return directory / "keys.json", token


@pytest.fixture(scope="module")
def fleet(key: tuple[Path, Path]) -> Iterator[RunningFleet]:
    with running_fleet(
        "--replicas", "2", "--batch", "8", "--grace", "5", "--keys_file", str(key[0])
    ) as running:
        yield running


def test_who_has_no_key_is_refused_behind_the_ingress(fleet: RunningFleet) -> None:
    with raw_stub(parse_address(fleet.address)) as stub:
        code, details = status(stub.Session(iter([opening()])))
    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert "token" in details
    with pytest.raises(outrider.InvalidRequest, match="token is missing or wrong"):
        outrider.connect(fleet.address, draft=False)


def test_sixteen_texts_are_the_targets_own_when_one_of_two_replicas_is_killed(
    fleet: RunningFleet, key: tuple[Path, Path], own: dict[Order, list[int]]
) -> None:
    options: dict[str, Any] = {"token_file": str(key[1]), "patience": PATIENCE, "batch": 4}
    engine = outrider.connect(fleet.address, measure_first=False, **options)
    with engine, ThreadPoolExecutor(SESSIONS) as pool:
        texts = Texts(engine)
        made = [pool.submit(texts.make, order) for order in ORDERS]
        wait_until(lambda: texts.pieces > 20 * SESSIONS)
        before = fleet.replicas
        assert len(before) == 2
        os.kill(before[0], signal.SIGKILL)
        assert any(not text.done() for text in made)
        assert [text.result(2 * PATIENCE) for text in made] == [own[order] for order in ORDERS]
