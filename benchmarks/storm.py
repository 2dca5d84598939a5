"""Many clients at targets that are killed, drained and restarted, over links that break; every text must be the target's own.

    python -m benchmarks.storm [--sessions 64] [--processes 64] [--rows 16] [--tokens 60] [--seed N] [--json FILE]

Two targets of the embedded pair, each behind a link that is cut at random. Clients are processes without torch that draft the text with
mistakes, at temperatures 0, 0.7 and 1, or let the target decode alone; some leave, some are killed. While they decode, the first target
is killed and restarted, then drained and restarted. At the end every finished text is compared with the one that the target makes alone in
this process, what others got must begin it, and the targets must hold no session and no row. Exits with 1 if anything is amiss.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.link import Shape, ShapedLink, shaped_link
from benchmarks.storm_client import BEYOND, CANCELLED, FINISHED, GO, READY, Job
from inference.errors import InvalidRequest, Unavailable
from inference.local import LocalVerifier
from inference.sampling import SamplingParams
from outrider import serve
from outrider.options import parse
from outrider.spawn import role_command, role_environment

TEMPERATURES = (0.0, 0.7, 1.0)
SEQUENCE_LENGTH = 256
POLL_SECONDS = 0.02
_METRICS = "metrics on "


@dataclass(frozen=True)
class Plan:
    """waiting: places in line at a target; more are refused and come again.  cut_every: mean seconds from a cut of a link to the next.
    deadline: seconds after which what still runs counts as hanging.
    """

    sessions: int = 64
    processes: int = 64
    rows: int = 16
    tokens: int = 60
    seed: int = 0
    waiting: int = 24
    lease: float = 3.0
    cut_every: float = 0.3
    deadline: float = 300.0

    def __post_init__(self) -> None:
        if not 1 <= self.processes <= self.sessions:
            raise InvalidRequest(f"--processes {self.processes}: 1 to {self.sessions}, the sessions")
        if not 1 <= self.tokens <= SEQUENCE_LENGTH // 2:
            raise InvalidRequest(f"--tokens {self.tokens}: 1 to {SEQUENCE_LENGTH // 2}")

    def target_flags(self) -> list[str]:
        limits = {"batch": self.rows, "waiting": self.waiting, "lease": self.lease, "sequence_length": SEQUENCE_LENGTH}
        return [part for name, value in limits.items() for part in (f"--{name}", str(value))]


@dataclass
class Report:
    """What became of the sessions, and what was done to them. problems: everything that should not have been."""

    finished: int = 0
    cancelled: int = 0
    killed: int = 0
    tokens: int = 0
    resumes: int = 0
    reopenings: int = 0
    cuts: int = 0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)


class TargetProcess:
    """A target of the embedded pair that keeps its port when it is restarted."""

    def __init__(self, flags: Sequence[str]) -> None:
        self._flags = flags
        self.address = self._metrics = ""
        self.start()

    def start(self) -> None:
        """Returns once it listens; raises Unavailable when it does not come to that."""
        port = self.address.rpartition(":")[2] or "0"
        command = role_command("target", "--port", port, "--metrics_port", "0", *self._flags)
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=role_environment())
        assert self._process.stderr is not None
        said = []
        for line in self._process.stderr:
            said.append(line)
            if line.startswith(_METRICS):
                self._metrics = line.removeprefix(_METRICS).partition(",")[0]
            if line.startswith(serve.READY):
                self.address = line.removeprefix(serve.READY).split()[0]
                threading.Thread(target=deque, args=(self._process.stderr, 0), daemon=True).start()  # a full pipe would stop it
                return
        raise Unavailable(f"the target did not start: {''.join(said)}")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def drain(self, seconds: float) -> int:
        """SIGTERM; the exit status."""
        self._process.terminate()
        return self._process.wait(seconds)

    def held(self) -> dict[str, float]:
        """What it holds: rows, places in line, sessions by state."""
        with urllib.request.urlopen(self._metrics, timeout=10) as answer:  # noqa: S310  # our own target
            families = text_string_to_metric_families(answer.read().decode())
        held = {"vllm:num_requests_running": "rows", "vllm:num_requests_waiting": "in line", "outrider_sessions": "sessions"}
        samples = [sample for family in families if family.name in held for sample in family.samples]
        return {f"{held[sample.name]} {sample.labels.get('state', '')}".strip(): sample.value for sample in samples}


class ClientProcess:
    """A process with some of the sessions. texts: what they said to have got; endings: how they ended; both by session."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs, self.killed = jobs, False
        self.texts: dict[int, list[int]] = {job.session: [] for job in jobs}
        self.endings: dict[int, dict[str, Any]] = {}
        self.ready = threading.Event()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.storm_client"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
            env=role_environment(),
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._say(json.dumps([asdict(job) for job in jobs]))

    def go(self) -> None:
        self._say(GO)

    def kill(self) -> None:
        self.killed = True
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
                self.texts[told["session"]] += told["tokens"]
            elif "ended" in told:
                self.endings[told["session"]] = told
            elif told["state"] == READY:
                self.ready.set()


def make_jobs(plan: Plan, first: str, second: str) -> list[Job]:
    """Sessions and the texts that the target makes of them in this process; every second one knows both targets."""
    chance = random.Random(plan.seed)  # noqa: S311
    options = parse(["--role", "target", "--batch", "1", "--sequence_length", str(SEQUENCE_LENGTH)])
    engine = serve.load_target(options).engine
    verifier, jobs = LocalVerifier(engine), []
    for session in range(plan.sessions):
        prompt = [chance.randrange(engine.vocabulary) for _ in range(chance.randint(4, 60))]
        temperature, seed = TEMPERATURES[session % 3], chance.randrange(2**63)
        verifier.open(prompt, SamplingParams(temperature, seed=seed)).result()
        text = list(verifier.generate(plan.tokens + BEYOND, frozenset()))
        jobs.append(
            Job(
                session=session,
                addresses=(first, f"{first},{second}", first, f"{second},{first}")[session % 4],
                prompt=prompt,
                text=text,
                tokens=plan.tokens,
                temperature=temperature,
                seed=seed,
                alone=session % 5 == 4,
                leave_at=chance.randrange(1, plan.tokens) if session % 6 == 5 else None,
                abruptly=chance.random() < 0.5,
                patience=plan.deadline,
            )
        )
    verifier.close()
    return jobs


class Storm:
    """What happens to clients and targets, by the share of all tokens that have come."""

    def __init__(self, plan: Plan, targets: Sequence[TargetProcess], links: Sequence[ShapedLink], clients: Sequence[ClientProcess]) -> None:
        self.report, self._plan = Report(), plan
        self._targets, self._links, self._clients = targets, links, clients
        self._chance = random.Random(plan.seed + 1)  # noqa: S311
        self._over = threading.Event()

    def rage(self, until: float) -> None:
        """Until every client has ended, or the moment `until` has come."""
        for client in self._clients:
            client.go()
        trouble = threading.Thread(target=self._trouble)
        trouble.start()
        kills = sorted(self._chance.uniform(0.05, 0.6) for _ in range(max(1, len(self._clients) // 8)))
        next_cut = 0.0
        while time.monotonic() < until and not all(client.done for client in self._clients):
            if time.monotonic() > next_cut:
                self._chance.choice(self._links).cut()
                self.report.cuts += 1
                next_cut = time.monotonic() + self._chance.expovariate(1 / self._plan.cut_every)
            if kills and self._share >= kills[0]:
                kills.pop(0)
                self._chance.choice([client for client in self._clients if not client.done]).kill()
            time.sleep(POLL_SECONDS)
        self._over.set()
        trouble.join()
        self.report.problems += [f"still at work: {client.texts}" for client in self._clients if not client.done]

    def _trouble(self) -> None:
        """The first target is killed and restarted, then drained and restarted."""
        target = self._targets[0]
        self._await(0.2)
        target.kill()
        target.start()
        self._await(0.7)
        status = target.drain(self._plan.deadline)
        self.report.problems += [f"a drained target exited with {status}"] * (status != 0)
        target.start()

    def _await(self, share: float) -> None:
        while self._share < share and not self._over.wait(POLL_SECONDS):
            pass
        self.report.problems += [f"the storm was over before {share:.0%} of the tokens had come"] * self._over.is_set()

    @property
    def _share(self) -> float:
        """Of those that will come if nobody is killed."""
        made = sum(len(text) for client in self._clients for text in client.texts.values())
        return made / sum(job.leave_at or job.tokens for client in self._clients for job in client.jobs)


def judge(report: Report, client: ClientProcess) -> None:
    """Count a process's sessions, and compare what they got with what they should have got."""
    if client.status not in (0, -signal.SIGKILL if client.killed else 0):
        report.problems.append(f"a client process exited with {client.status}")
    for job in client.jobs:
        text, ending = client.texts[job.session], client.endings.get(job.session)
        due = job.text[: job.tokens]
        report.tokens += len(text)
        if text != due[: len(text)]:
            at = next(index for index, token in enumerate(text) if index >= len(due) or token != due[index])
            report.problems.append(f"session {job.session} at temperature {job.temperature} differs at token {at} of {len(text)}")
        if ending is None:
            report.killed += 1
            report.problems += [f"session {job.session} did not end"] * (not client.killed)
            continue
        report.resumes += ending["resumes"]
        report.reopenings += ending["reopenings"]
        report.finished += ending["ended"] == FINISHED
        report.cancelled += ending["ended"] == CANCELLED
        if ending["ended"] == FINISHED and len(text) != job.tokens:
            report.problems.append(f"session {job.session} finished after {len(text)} of {job.tokens} tokens")
        if ending["said"]:
            report.problems.append(f"session {job.session} failed: {ending['said']}")


def await_empty(target: TargetProcess, seconds: float) -> dict[str, float]:
    """What it still holds after at most so many seconds, in which leases run out."""
    until = time.monotonic() + seconds
    while any((held := target.held()).values()) and time.monotonic() < until:
        time.sleep(0.1)
    return {what: count for what, count in held.items() if count}


@contextmanager
def started(plan: Plan) -> Iterator[tuple[list[TargetProcess], list[ShapedLink]]]:
    """Two targets and a link to each; they end with the context."""
    with ExitStack() as stack:
        targets = []
        for _ in range(2):
            targets.append(TargetProcess(plan.target_flags()))
            stack.callback(targets[-1].kill)
        yield targets, [stack.enter_context(shaped_link(target.address, Shape())) for target in targets]


def storm(plan: Plan) -> Report:
    """Everything; `seconds` count from the first session to the last."""
    with started(plan) as (targets, links), ExitStack() as stack:
        jobs = make_jobs(plan, *(link.address for link in links))
        clients = [ClientProcess(jobs[index :: plan.processes]) for index in range(plan.processes)]
        for client in clients:
            stack.callback(client.end)
        for client in clients:
            if not client.ready.wait(plan.deadline):
                raise Unavailable(f"a client did not get ready: exit status {client.status}")
        raging, begun = Storm(plan, targets, links, clients), time.monotonic()
        raging.rage(begun + plan.deadline)
        report = raging.report
        report.seconds = round(time.monotonic() - begun, 1)
        for client in clients:
            judge(report, client)
        for target in targets:
            held = await_empty(target, 3 * plan.lease + 10)
            report.problems += [f"the target at {target.address} still holds {held}"] * bool(held)
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a storm and say what became of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    for name, text in {
        "sessions": "sessions at once",
        "processes": "client processes that share them",
        "rows": "rows of each target",
        "tokens": "tokens of a text",
        "seed": "of prompts, texts and what happens",
        "deadline": "seconds after which what still runs counts as hanging",
    }.items():
        default = getattr(Plan, name)
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"{text} (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write plan and report there")
    given = vars(parser.parse_args(arguments))
    file = given.pop("json")
    try:
        plan = Plan(**given)
        report = storm(plan)
    except (InvalidRequest, Unavailable) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print("\n".join(f"{name:14} {value}" for name, value in asdict(report).items() if name != "problems"))
    print("\n".join(report.problems) or "every text is the target's own; nothing is left behind")
    if file:
        file.write_text(json.dumps({"plan": asdict(plan), "report": asdict(report)}, indent=1) + "\n")
    return int(bool(report.problems))


if __name__ == "__main__":
    sys.exit(main())
