"""Verb doctor: checks this machine, its draft, the target, the link, and AWS credentials. Each
finding is printed at once, with a remedy; a fault makes the exit code 1.

The health check, for containers and Kubernetes, uses gRPC's health protocol, which needs no key,
and loads no torch and no model.
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from grpc_comm.client.channel import Channel
from grpc_comm.client.connection import Connection, list_models
from grpc_comm.security import SecurityOptions
from inference.command import FAILED, printable, say
from inference.errors import MissingExtra, OutriderError, is_installed
from inference.planner.profiling import survey_draft
from inference.times import Times
from outrider.client.connecting import connect_target, measure_round_trip, target_tokenizer
from outrider.draft_methods import FoundDraft, find_draft
from outrider.installation import outrider_version
from outrider.models.found_model import Capacity
from outrider.models.loading import PREFILL_NODES, find_tokenizer
from outrider.models.machine import memory_size
from outrider.options.network import ConnectionOptions
from outrider.options.roles import DoctorRole
from outrider.text.limits import arithmetic_reason


@dataclass(frozen=True)
class Finding:
    """A fact about this machine or the target, with a remedy if it is a fault."""

    subject: str
    text: str
    severity: Literal["fine", "warning", "fault"] = "fine"
    remedy: str = ""


_SECONDS, _WIDTH = 5.0, 12


def show(findings: Iterable[Finding], *, as_json: bool) -> int:
    """Print each finding as soon as it is known. Returns 1 if any is a fault, else 0."""
    shown = []
    for finding in findings:
        shown.append(finding)
        if not as_json:
            print(*_lines(finding), sep="\n", flush=True)
    faults = sum(finding.severity == "fault" for finding in shown)
    if as_json:
        print(
            json.dumps(
                {"faults": faults, "findings": [asdict(finding) for finding in shown]}, indent=1
            )
        )
    return FAILED if faults else 0


def _lines(finding: Finding) -> Iterator[str]:
    mark = "" if finding.severity == "fine" else f"{finding.severity.upper()}: "
    yield f"{finding.subject:{_WIDTH}}{mark}{finding.text}"
    if finding.remedy:
        yield f"{'':{_WIDTH}}remedy: {finding.remedy}"


def doctor(options: DoctorRole) -> int:
    """Run the checks and print their findings. Returns 1 if any is a fault, else 0."""
    findings = check_health(options) if options.health else check_all(options)
    return show(findings, as_json=options.as_json)


def check_health(options: ConnectionOptions) -> Iterator[Finding]:
    """Check the health of the first target of --target_host."""
    address, name = options.endpoints[0].address, ""
    system = options.trusts_system
    trusted = Path(options.tls_ca) if options.tls_ca and not system else None
    if options.tls_cert and options.tls_ca is None:
        from grpc_comm.certificate import certificate_hosts

        trusted = Path(options.tls_cert)
        name = certificate_hosts(trusted)[0]  # a trusted certificate may have any name
    try:
        channel = Channel(address, SecurityOptions(tls_ca=trusted, tls=system), name)
        with closing(channel):
            channel.check_health(_SECONDS)
    except OutriderError as error:
        remedy = "wait while it loads or drains; else see its log"
        yield Finding("health", printable(str(error)), "fault", remedy)
    else:
        yield Finding("health", f"{address} accepts sessions")


def check_all(options: DoctorRole) -> Iterator[Finding]:
    """Check the local draft, the target, the link, whether drafting pays, and AWS."""
    yield Finding("outrider", f"{outrider_version()}, Python {platform.python_version()}")
    yield Finding("machine", machine())
    yield from _check_draft_and_link(options)
    yield check_credentials()


def _check_draft_and_link(options: DoctorRole) -> Iterator[Finding]:
    draft: FoundDraft | None = None
    call = 0.0  # seconds; 0 without a draft
    try:
        draft = find_draft(options)
        call = _draft_call(options, draft)
        speed = f"{_ms(call)} ms per call, {1 / call:.0f} tokens/s alone"
        yield Finding("draft", f"{draft.name}: {speed}")
    except MissingExtra as error:
        yield Finding("draft", printable(str(error)))
    except OutriderError as error:
        yield Finding("draft", printable(str(error)), "fault")
        return
    try:
        tokenizer = draft.tokenizer if draft else find_tokenizer(options.draft_name, "draft")
        name = draft.name if draft else "the tokenizer here"
        with connect_target(options) as target:
            target_tokenizer(target, tokenizer, name)
            yield from _of_target(target, options, call)
    except OutriderError as error:
        yield Finding("target", printable(str(error)), "fault")


def check_credentials() -> Finding:
    """Report the AWS account. A missing one is only a warning: `outrider deploy` alone needs it."""
    from compile.aws import Aws

    try:
        aws = Aws()
        return Finding("cloud", f"AWS account {aws.account}, region {aws.region}")
    except OutriderError as error:
        remedy = "only `outrider deploy` needs them: docs/deploy.md"
        return Finding("cloud", printable(str(error)), "warning", remedy)


def machine() -> str:
    """Return the cores, memory and accelerators of this machine in words."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    facts = [platform.platform(terse=True), f"{cores} cores"]
    if size := memory_size():
        facts.append(f"{size / 2**30:.0f} GiB of memory")
    return ", ".join([*facts, *(_gpus() or ["no CUDA GPU"])])


def _gpus() -> list[str]:
    if not is_installed("torch"):
        return ["without torch"]
    import torch

    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def _draft_call(options: DoctorRole, draft: FoundDraft) -> float:
    """Measure the seconds of a draft's forward pass of one node."""
    length = draft.model.sequence_length(options.sequence_length)
    loaded = draft.settled(options).load(options, Capacity(1, length, 1, PREFILL_NODES))
    assert loaded.model is not None, "a draft that is called has a model"
    return survey_draft(loaded.model, length, 1).run(say)[1, 1]


def _of_target(target: Connection, options: ConnectionOptions, call: float) -> Iterator[Finding]:
    """Report the target and its models, the link, and whether drafting pays.

    call: seconds of the draft's forward pass; 0 without a draft
    """
    description = target.description
    trip = measure_round_trip(target.probe, say)
    where = f"{description.model} on {description.device}, {description.rows} rows"
    yield Finding("target", where)
    models = list_models(options.addresses, security=options.security)
    yield Finding("models", ", ".join(map(printable, models)))
    yield Finding("link", f"round trip {_ms(trip)} ms")
    if call:
        yield from plan(Times(dict(description.times)), call, trip)


def plan(times: Times, call: float, round_trip: float) -> Iterator[Finding]:
    """Report whether drafting pays on a target with these times.

    call: seconds of the draft's forward pass
    round_trip: seconds of the link's round trip
    """
    forward = times.seconds(1, 1)
    if not forward:
        yield Finding("plan", "the target has not reported forward-pass times yet")
        return
    share = f"a draft call takes {call / forward:.2f} of a forward pass"
    yield Finding("plan", f"target-only makes {1 / forward:.1f} tokens/s; {share}")
    if reason := arithmetic_reason(times):
        costly = f"hardly any draft gives a speed-up: {reason}"
        remedy = "at the target: more --threads, another --dtype or a GPU"
        yield Finding("plan", costly, "warning", remedy)
    elif call < forward:
        ahead = math.ceil(round_trip / forward) + 1
        yield Finding("plan", f"the draft runs ahead: {ahead} tokens hide the round trip")
    else:
        slow = "the draft cannot run ahead: its calls take longer than a forward pass"
        yield Finding("plan", slow, "warning", "use a smaller draft (--draft_model)")


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}"
