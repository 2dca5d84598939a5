"""A campaign of messages that no honest client sends, to a target with honest clients beside.

The target is a process of its own with the embedded pair, the draft beside it. First honest
clients call every method, and what they say is written down; then it is played again with changes:
other values in any field of any message, damaged bytes, wrong orders, other methods, clients that
leave. Every call has to end in time with a code that the protocol lists. A neighbour's texts, and
afterwards every way to ask for a text, must bring what they brought before; the target must hold no
session, log no error and need no more memory.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from grpc_comm.client.connection import connect
from grpc_comm.client.patience import Patience
from grpc_comm.proto import verifier_pb2
from inference.errors import OutriderError, Unavailable
from outrider.target.spawn import StartedTarget, started
from tests.storm.honest import (
    PATIENCE_SECONDS,
    TOKENS,
    Neighbour,
    Text,
    every_call,
    first_texts,
)
from tests.storm.hostile_calls import Author, Outcome, wage
from tests.storm.recorder import Conversation, recording

SERVICE = verifier_pb2.DESCRIPTOR.services_by_name["Target"]
SEQUENCE_LENGTH, ROWS, LEASE_SECONDS = 32, 16, 2.0
RECORDED_TOKENS = 3  # so that a call played again is cheap
GROWTH_MEGABYTES = 128.0
"""By which the target's memory may grow once it is warm."""

SAID = 20  # lines of the target's that are shown

WARM = 0.1
"""Share of all messages; memory is compared with what it was then."""

FLAGS = {
    "batch": ROWS,
    "sequence_length": SEQUENCE_LENGTH,
    "lease": LEASE_SECONDS,
    "waiting": 64,
    "log": "text",
    "log_level": "error",
}


@dataclass
class Report:
    """codes: how the calls ended.  texts: of the neighbour meanwhile.  problems: what is amiss."""

    messages: int = 0
    calls: int = 0
    seconds: float = 0.0
    codes: dict[str, int] = field(default_factory=dict)
    texts: int = 0
    warm_megabytes: float = 0.0
    final_megabytes: float = 0.0
    problems: list[str] = field(default_factory=list)


def campaign(messages: int, at_once: int = 8, seed: int = 0) -> Report:
    """So many hostile messages, some calls at once; `seconds` are those of the hostile calls."""
    flags = [part for name, value in FLAGS.items() for part in (f"--{name}", str(value))]
    flags.append("--measure_first")  # a target that measures while it is idle says so
    with started("fused_target", flags) as target:
        texts, heard = _listen(target.address)
        author = Author(heard, SERVICE, _near(target.address), seed)
        report, begun = Report(), time.monotonic()
        neighbour = Neighbour(target.address, texts)
        target.said.clear()  # of its start
        neighbour.start()
        try:
            outcome = _attack(target, author, messages, at_once, report)
        finally:
            neighbour.stop()
        report.seconds = round(time.monotonic() - begun, 1)
        report.messages, report.calls = outcome.messages, outcome.calls
        report.codes = dict(outcome.codes.most_common())
        report.texts = neighbour.texts
        report.problems += [f"{what} ({count} times)" for what, count in outcome.problems.items()]
        report.problems += neighbour.problems
        _look_after(target, texts, report)
    report.problems += [f"it said: {line.strip()}" for line in list(target.said)[:SAID]]
    return report


def _listen(address: str) -> tuple[list[Text], list[Conversation]]:
    """Texts that honest clients get, and what they said for them."""
    with connect(address) as connection:
        texts = first_texts(connection)
    patience = Patience(PATIENCE_SECONDS)
    with recording(address) as (relay, heard), connect(relay, patience=patience) as connection:
        for text in texts:
            due, ways = text.tokens[:RECORDED_TOKENS], every_call(connection, text, RECORDED_TOKENS)
            if any(made != due for made in ways):
                raise Unavailable("the target makes different texts before anything has happened")
    return texts, [Conversation(one.method, list(one.messages)) for one in heard if one.messages]


def _near(address: str) -> list[int]:
    """Numbers that the target says of itself."""
    with connect(address) as connection:
        return [value for value in vars(connection.description).values() if type(value) is int]


def _attack(
    target: StartedTarget, author: Author, messages: int, at_once: int, report: Report
) -> Outcome:
    def warm(outcome: Outcome) -> None:
        if not report.warm_megabytes and outcome.messages >= WARM * messages:
            report.warm_megabytes = memory(target.pid)

    return wage(target.address, author, messages, at_once, warm)


def _look_after(target: StartedTarget, texts: Sequence[Text], report: Report) -> None:
    """The target still is what it was."""
    try:
        patience = Patience(PATIENCE_SECONDS)
        with connect(target.address, timeout=30, patience=patience) as connection:
            for text in texts:
                for number, made in enumerate(every_call(connection, text)):
                    if made != text.tokens[:TOKENS]:
                        temperature = text.params.temperature
                        words = f"way {number} to a text at temperature {temperature}"
                        report.problems.append(f"{words} brings another than before")
        held = _held(target.address)
        report.problems += [f"{held} sessions are still held"] * bool(held)
    except OutriderError as error:
        report.problems.append(f"no honest client is served: {type(error).__name__}: {error}")
    report.final_megabytes = memory(target.pid)
    report.warm_megabytes = report.warm_megabytes or report.final_megabytes
    grown = report.final_megabytes - report.warm_megabytes
    report.problems += [f"memory grew by {grown:.0f} MB"] * (grown > GROWTH_MEGABYTES)


def _held(address: str) -> int:
    """Sessions that are open when leases have run out."""
    until = time.monotonic() + 3 * LEASE_SECONDS + 10
    while True:
        with connect(address) as connection:
            if not connection.description.sessions or time.monotonic() > until:
                return connection.description.sessions
        time.sleep(0.2)


def memory(pid: int) -> float:
    """Megabytes that a process has in memory; 0 when it is no more."""
    command = ["ps", "-o", "rss=", "-p", str(pid)]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return int(said) / 1024 if said.strip() else 0.0
