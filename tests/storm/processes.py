"""The processes of a storm: targets that can be killed and restarted, clients that can
be killed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import urllib.request
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from inference.errors import Unavailable
from outrider.target.spawn import role_command, role_environment
from outrider.target.target import READY as LISTENING
from tests.storm.client import GO, READY, Job
from tests.support.repository import ROOT

_METRICS = "metrics on "


class TargetProcess:
    """A target of the embedded pair that keeps its port when it is restarted."""

    def __init__(self, flags: Sequence[str]) -> None:
        self._flags = flags
        self.address = self._metrics = ""
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Returns once it listens; raises Unavailable when it does not come to that."""
        port = self.address.rpartition(":")[2] or "0"
        command = role_command("target", "--port", port, "--metrics_port", "0", *self._flags)
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=role_environment(),
        )
        self._process = process
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if line.startswith(_METRICS):
                self._metrics = line.removeprefix(_METRICS).partition(",")[0]
            if line.startswith(LISTENING):
                self.address = line.removeprefix(LISTENING).split()[0]
                threading.Thread(
                    target=deque, args=(process.stderr, 0), daemon=True
                ).start()  # a full pipe would stop it
                return
        raise Unavailable(f"the target did not start: {''.join(said)}")

    def kill(self) -> None:
        """Whether or not it was started."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def drain(self, seconds: float) -> int:
        """SIGTERM, and after so many seconds SIGKILL; the exit status."""
        assert self._process is not None
        self._process.terminate()
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._process.returncode

    def held(self) -> dict[str, float]:
        """Things that it holds: rows, places in line, sessions by state."""
        with urllib.request.urlopen(self._metrics, timeout=10) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        held = {
            "vllm:num_requests_running": "rows",
            "vllm:num_requests_waiting": "in line",
            "outrider_sessions": "sessions",
        }
        samples = [
            sample for family in families if family.name in held for sample in family.samples
        ]
        return {
            f"{held[sample.name]} {sample.labels.get('state', '')}".strip(): sample.value
            for sample in samples
        }


@dataclass
class Told:
    """Jobs of a client process, and what it has said. texts: what came, endings: how it ended;
    both by session.
    """

    jobs: Sequence[Job]
    texts: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    endings: dict[int, dict[str, Any]] = field(default_factory=dict)
    killed: bool = False


class ClientProcess:
    """A process with some of the sessions."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.told = Told(jobs)
        self.ready = threading.Event()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.storm.client"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=role_environment(),
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._say(json.dumps([asdict(job) for job in jobs]))

    def go(self) -> None:
        self._say(GO)

    def kill(self) -> None:
        self.told.killed = True
        self._process.kill()

    @property
    def done(self) -> bool:
        """It has ended, and all that it said was read."""
        return self._process.poll() is not None and not self._reader.is_alive()

    @property
    def status(self) -> int | None:
        return self._process.poll()

    def end(self) -> None:
        """Whatever it does."""
        self._process.kill()
        self._process.wait()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.endswith("\n"):
                return  # it was killed in the middle of a line
            told = json.loads(line)
            if "tokens" in told:
                self.told.texts[told["session"]] += told["tokens"]
            elif "ended" in told:
                self.told.endings[told["session"]] = told
            elif told["state"] == READY:
                self.ready.set()
