"""Verb doctor: what this machine can do, how far the target is, and what that means together."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterator

import torch

from grpc_comm.client.connection import Connection
from inference.command import FAILED, printable, say
from inference.errors import OutriderError
from inference.planner.profiling import profile_draft
from inference.times import TargetTimes
from outrider.connecting import connect_target
from outrider.models import PREFILL_NODES, Checkpoint, find_draft, load_model
from outrider.options.roles import DoctorRole
from outrider.probing import link_times, probe_link
from outrider.version import outrider_version


def doctor(options: DoctorRole) -> int:
    """Print the findings. Returns 1 where the draft or the target cannot be used."""
    print(f"outrider   {outrider_version()}, Python {platform.python_version()}")
    print(f"machine    {machine()}")
    try:
        checkpoint = find_draft(options)
        call = _draft_call(options, checkpoint)
    except OutriderError as error:
        print(f"draft      cannot be used: {printable(str(error))}")
        return FAILED
    print(f"draft      {checkpoint.name}: {_ms(call)} ms a call, {1 / call:.0f} tokens/s alone")
    try:
        with connect_target(options, checkpoint.tokenizer, checkpoint.name) as target:
            print(*_of_target(target, call), sep="\n")
    except OutriderError as error:
        print(f"target     cannot be used: {printable(str(error))}")
        return FAILED
    return 0


def machine() -> str:
    """Cores, memory and accelerators of this machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    parts = [platform.platform(terse=True), f"{cores} cores"]
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        parts.append(f"{size / 2**30:.0f} GiB of memory")
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return ", ".join([*parts, *(gpus or ["no CUDA GPU"])])


def _draft_call(options: DoctorRole, checkpoint: Checkpoint) -> float:
    """Seconds of a call of the draft that ranks one node, measured now."""
    length = checkpoint.sequence_length(options.sequence_length)
    model = load_model(
        options, checkpoint, rows=1, sequence_length=length, spare=1, max_nodes=PREFILL_NODES
    )
    return profile_draft(model, length, 1, say)[1]


def _of_target(target: Connection, call: float) -> Iterator[str]:
    """What the target is, how far it is, and whether a draft with such calls runs ahead of it."""
    description = target.description
    trip = link_times(probe_link(target.probe, say)).round_trip
    yield f"target     {description.model} on {description.device}, {description.rows} rows"
    yield f"link       round trip {_ms(trip.seconds)} ms, give or take {_ms(trip.spread)}"
    forward = TargetTimes(dict(description.times)).seconds(1, 1)
    if not forward:
        yield "plan       the target does not say what its forwards take yet"
        return
    ahead = math.ceil(trip.seconds / forward) + 1
    yield (
        f"plan       target-only makes {1 / forward:.1f} tokens/s; a draft call takes "
        f"{call / forward:.2f} of a forward"
    )
    yield (
        f"           the draft runs ahead: {ahead} tokens hide the round trip"
        if call < forward
        else "           the draft cannot run ahead: its calls take longer than a forward; take a "
        "smaller one"
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}"
