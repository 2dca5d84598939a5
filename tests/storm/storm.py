"""Many clients at targets that are killed, drained and restarted, over links that break; every text
must be the target's own.

Two targets of the embedded pair, each behind a link that is cut at random. Clients are processes
without torch that draft the text with mistakes, at temperatures 0, 0.7 and 1, with targets that go
on or wait, or that let the target decode alone; some leave, some are killed. While they decode, the
first target is killed and restarted, then drained and restarted. At the end every finished text is
compared with the one that the target makes alone in this process, what others got must begin it,
and the targets must hold no session and no row.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

from inference.decode import decode
from inference.engine.local_session import LocalSession
from inference.errors import Unavailable
from inference.order import Decode
from inference.sampling import SamplingParams
from outrider.link.emulated_link import LinkShape, ShapedLink, shaped_link
from outrider.options.roles import TargetRole
from outrider.target.target import load_target
from tests.storm.client import BEYOND, CANCELLED, FINISHED, Job
from tests.storm.processes import ClientProcess, TargetProcess, Told

TEMPERATURES = (0.0, 0.7, 1.0)
SEQUENCE_LENGTH = 256
POLL_SECONDS = 0.02


@dataclass(frozen=True)
class Plan:
    """waiting: places in line at a target; more are refused and come again.  cut_every: mean
    seconds from a cut of a link to the next. deadline: seconds after which what still runs counts
    as hanging.
    """

    sessions: int = 16
    processes: int = 4
    rows: int = 4
    tokens: int = 24
    seed: int = 0
    waiting: int = 6
    lease: float = 2.0
    cut_every: float = 0.3
    deadline: float = 180.0

    def target_flags(self) -> list[str]:
        limits = {
            "batch": self.rows,
            "waiting": self.waiting,
            "lease": self.lease,
            "sequence_length": SEQUENCE_LENGTH,
        }
        return [part for name, value in limits.items() for part in (f"--{name}", str(value))]


@dataclass
class Report:
    """Ends of the sessions, and what was done to them. problems: everything that should
    not have been.
    """

    finished: int = 0
    cancelled: int = 0
    killed: int = 0
    tokens: int = 0
    resumes: int = 0
    reopenings: int = 0
    cuts: int = 0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)


def make_jobs(plan: Plan) -> list[Job]:
    """Sessions and the texts that the target makes of them in this process; where the targets
    are is still to be said.
    """
    chance = random.Random(plan.seed)
    options = TargetRole(batch=1, sequence_length=SEQUENCE_LENGTH)
    engine = load_target(options).engine
    alone, jobs = LocalSession(engine), []
    for session in range(plan.sessions):
        prompt = [chance.randrange(engine.vocabulary) for _ in range(chance.randint(4, 60))]
        temperature, seed = TEMPERATURES[session % 3], chance.randrange(2**63)
        order = Decode(len(prompt) + plan.tokens + BEYOND)
        params = SamplingParams(temperature, seed=seed)
        text = [token for step in decode(prompt, params, alone, order) for token in step.tokens]
        jobs.append(
            Job(
                session=session,
                addresses="",
                prompt=prompt,
                text=text,
                tokens=plan.tokens,
                temperature=temperature,
                seed=seed,
                alone=session % 5 == 4,
                waits=session % 4 == 1,
                leave_at=chance.randrange(1, plan.tokens) if session % 6 == 5 else None,
                abruptly=chance.random() < 0.5,
                patience=plan.deadline,
            )
        )
    alone.close()
    return jobs


class Storm:
    """Events of clients and targets, by the share of all tokens that have come."""

    def __init__(
        self,
        plan: Plan,
        targets: Sequence[TargetProcess],
        links: Sequence[ShapedLink],
        clients: Sequence[ClientProcess],
    ) -> None:
        self.report, self._plan = Report(), plan
        self._targets, self._links, self._clients = targets, links, clients
        self._chance = random.Random(plan.seed + 1)
        self._over = threading.Event()

    def rage(self, until: float) -> None:
        """Until every client has ended, or the moment `until` has come."""
        for client in self._clients:
            client.go()
        trouble = threading.Thread(target=self._trouble)
        trouble.start()
        kills = sorted(
            self._chance.uniform(0.05, 0.6) for _ in range(max(1, len(self._clients) // 8))
        )
        next_cut = 0.0
        while time.monotonic() < until and not all(client.done for client in self._clients):
            if time.monotonic() > next_cut:
                self._chance.choice(self._links).cut()
                self.report.cuts += 1
                next_cut = time.monotonic() + self._chance.expovariate(1 / self._plan.cut_every)
            if kills and self._share >= kills[0]:
                kills.pop(0)
                victims = [client for client in self._clients if not client.done]
                self._chance.choice(victims or self._clients).kill()
            time.sleep(POLL_SECONDS)
        self._over.set()
        trouble.join()
        self.report.problems += [
            f"still at work: sessions {[job.session for job in client.told.jobs]}"
            for client in self._clients
            if not client.done
        ]

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
        self.report.problems += [
            f"the storm was over before {share:.0%} of the tokens had come"
        ] * self._over.is_set()

    @property
    def _share(self) -> float:
        """Share of tokens that have come, of those that come if nobody is killed."""
        made = sum(
            len(text) for client in self._clients for text in list(client.told.texts.values())
        )
        return made / sum(
            job.leave_at or job.tokens for client in self._clients for job in client.told.jobs
        )


def judge(report: Report, told: Told, status: int | None) -> None:
    """Count a process's sessions, and compare what they got with what they should have got.
    status: of its exit, if it has ended.
    """
    if status not in (0, -signal.SIGKILL if told.killed else 0):
        report.problems.append(f"a client process exited with {status}")
    for job in told.jobs:
        text, ending = told.texts[job.session], told.endings.get(job.session)
        due = job.text[: job.tokens]
        report.tokens += len(text)
        if text != due[: len(text)]:
            at = next(
                index
                for index, token in enumerate(text)
                if index >= len(due) or token != due[index]
            )
            report.problems.append(
                f"session {job.session} at temperature {job.temperature} differs at token {at} of "
                f"{len(text)}"
            )
        if ending is None:
            report.killed += 1
            report.problems += [f"session {job.session} did not end"] * (not told.killed)
            continue
        report.resumes += ending["resumes"]
        report.reopenings += ending["reopenings"]
        report.finished += ending["ended"] == FINISHED
        report.cancelled += ending["ended"] == CANCELLED
        if ending["ended"] == FINISHED and len(text) != job.tokens:
            report.problems.append(
                f"session {job.session} finished after {len(text)} of {job.tokens} tokens"
            )
        if ending["said"]:
            report.problems.append(f"session {job.session} failed: {ending['said']}")


def await_empty(target: TargetProcess, seconds: float) -> dict[str, float]:
    """Things that it still holds after at most so many seconds, in which leases run out."""
    until = time.monotonic() + seconds
    while any((held := target.held()).values()) and time.monotonic() < until:
        time.sleep(0.1)
    return {what: count for what, count in held.items() if count}


@contextmanager
def started(plan: Plan) -> Iterator[tuple[list[TargetProcess], list[ShapedLink]]]:
    """Two targets and a link to each; they end with the context."""
    with ExitStack() as stack:
        targets = [TargetProcess(plan.target_flags()) for _ in range(2)]
        for target in targets:
            stack.callback(target.kill)
        with ThreadPoolExecutor() as pool:
            list(pool.map(TargetProcess.start, targets))
        yield (
            targets,
            [stack.enter_context(shaped_link(target.address, LinkShape())) for target in targets],
        )


def storm(plan: Plan) -> Report:
    """Everything; `seconds` count from the first session to the last."""
    with ExitStack() as stack:
        texts = stack.enter_context(ThreadPoolExecutor(1)).submit(make_jobs, plan)
        targets, links = stack.enter_context(started(plan))
        first, second = (link.address for link in links)
        ways = (first, f"{first},{second}", first, f"{second},{first}")
        jobs = [replace(job, addresses=ways[job.session % 4]) for job in texts.result()]
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
            judge(report, client.told, client.status)
        for target in targets:
            held = await_empty(target, 3 * plan.lease + 10)
            report.problems += [f"the target at {target.address} still holds {held}"] * bool(held)
    return report
