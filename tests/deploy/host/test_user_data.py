"""What a host runs: scripts and units as text, what their checkers say, and when it is idle."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from deploy.host.idle import Activity, Idleness, idleness, main
from deploy.host.user_data import MAX_BYTES, HostSettings, job_script, user_data
from grpc_comm.observability.endpoint import serve_metrics
from grpc_comm.observability.metrics import Metrics
from grpc_comm.transport import Address
from outrider.options.roles import ROLES, TargetRole
from tests.support.hand_streams import counted
from tests.support.refusals import assert_refused
from tests.support.repository import ROOT, tool
from tests.support.scratch_host import DIGEST, JOB, read_unit, settings
from tests.support.wire_fixtures import connected, eventually, opened, successor_engine

EVERYTHING = settings(
    artifact_store="s3://bucket/artefacts",
    digest=DIGEST,
    flags={"batch": 8, "usd_per_hour": 1.34, "log": "json", "share_prefixes": True},
    host="0.0.0.0",
    venv="/opt/aws_neuronx_venv_pytorch_2_9",
)
SMALLEST = settings()
SCRIPTS = {
    "everything": user_data(EVERYTHING),
    "smallest": user_data(SMALLEST),
    "job": job_script(replace(JOB, venv="/opt/v")),
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_a_script_is_as_bash_cloud_init_and_ec2_take_it_and_traces_no_secret(
    script: str, tmp_path: Path
) -> None:
    (tmp_path / "script.sh").write_text(script)
    checked = subprocess.run([tool("shellcheck"), tmp_path / "script.sh"], capture_output=True)
    assert checked.stdout == b""
    assert script.startswith("#!/bin/bash\n")
    assert len(script.encode()) < 0.75 * MAX_BYTES
    assert not {"-x", "xtrace", "-eux", "--debug"} & {*script.split()}


def test_user_data_that_ec2_would_not_take_is_refused() -> None:
    assert_refused(lambda: user_data(settings(flags={"model_name": "x" * MAX_BYTES})), ["16384"])


@pytest.mark.parametrize("of", [EVERYTHING, SMALLEST], ids=["everything", "smallest"])
def test_the_targets_options_are_taken_by_its_role(of: HostSettings) -> None:
    before_setup = user_data(of).partition("\n# Installs Outrider")[0]  # nothing of it acts
    command = ["bash", "-c", f"{before_setup}\ntarget_options"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    read = yaml.safe_load(printed)
    assert read == of.target_options
    assert ROLES[read["role"]](**read).model_dump()["tls_key"] == "/etc/outrider/key.pem"


def test_the_end_of_a_jobs_lifetime_is_armed_before_anything_is_installed() -> None:
    script = job_script(replace(JOB, lifetime_hours=1.5))
    assert "lifetime_minutes=90\n" in script
    assert script.index('shutdown -P "+$lifetime_minutes"') < script.index("\ninstall_tools\n")


def test_a_value_and_a_word_of_a_command_stay_one_word_of_the_shell() -> None:
    words = ("--flag=-O2 --x", "--model=$(reboot)")
    script = job_script(replace(JOB, commands=(("compile", *words),), reports="s3://b/; reboot"))
    assert "-m compile '--flag=-O2 --x' '--model=$(reboot)' || failed=$?\n" in script
    assert "\nreports='s3://b/; reboot'\n" in script


SEEN = Idleness(100.0, ended=3)


@pytest.mark.parametrize(
    ("before", "activity", "after"),
    [
        (None, Activity(open=0, ended=3), Idleness(160.0, 3)),
        (SEEN, Activity(open=0, ended=3), SEEN),
        (SEEN, Activity(open=2, ended=3), Idleness(160.0, 3)),
        (SEEN, Activity(open=0, ended=4), Idleness(160.0, 4)),  # a session between two looks
        (SEEN, None, SEEN),
        (SEEN, Activity(open=0, ended=0), Idleness(100.0, 0)),  # the target restarted
    ],
)
def test_idle_time_begins_when_the_last_session_is_seen(
    before: Idleness | None, activity: Activity | None, after: Idleness
) -> None:
    assert idleness(before, activity, 160.0) == after


def test_a_host_is_idle_before_and_after_a_session_and_not_while_it_is_open(tmp_path: Path) -> None:
    target, state = Metrics(), tmp_path / "idle"
    state.write_text("{")  # spoilt: the time starts anew
    with (
        connected(successor_engine(), metrics=target) as connection,
        serve_metrics(target, Address("127.0.0.1", 0)) as metrics,
    ):
        at_the_second_look = ["1e-9", str(metrics.port), str(state)]
        assert [main(at_the_second_look) for _ in range(2)] == [1, 0]
        session = opened(connection)
        assert [main(at_the_second_look) for _ in range(2)] == [1, 1]
        session.close()
        eventually(lambda: counted(target, "outrider_sessions_ended_total", reason="closed") == 1)
        assert [main(at_the_second_look) for _ in range(2)] == [1, 0]
    assert main(at_the_second_look) == 0, "a target that does not answer has no sessions"


UNITS = sorted((ROOT / "deploy" / "systemd").iterdir())
SERVICE = ROOT / "deploy/systemd/outrider-target.service"
ANALYZES = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None,
    reason="systemd-analyze is not installed (Debian's package systemd)",
)


@ANALYZES
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_has_nothing_to_say_of_a_unit(unit: Path, tmp_path: Path) -> None:
    """The exit code is 0 for most faults, but systemd says what is wrong."""
    for path in UNITS:  # with a program that exists here in place of the host's
        text = re.sub("/opt/outrider/venv/bin/(outrider|python)", "/bin/true", path.read_text())
        (tmp_path / path.name).write_text(text)
    verify = ["systemd-analyze", "verify", "--man=no", str(tmp_path / unit.name)]
    assert subprocess.run(verify, capture_output=True, text=True).stderr == ""


def test_the_service_outlasts_its_sessions_and_reaches_no_metadata_of_the_instance() -> None:
    service = read_unit(SERVICE)
    assert float(service["TimeoutStopSec"][0]) > 2 * TargetRole().grace
    assert service["Type"] == ["notify"]
    assert service["User"] != ["root"]
    assert service["IPAddressDeny"] == ["169.254.169.254 fd00:ec2::254"]
    assert service["MemoryMax"][0].endswith("%")


def calls_in(name: str) -> set[str]:
    """The system calls in a set of them, expanded by systemd."""
    if not name.startswith("@"):
        return {name}
    listing = ["systemd-analyze", "syscall-filter", "--no-pager", name]
    lines = subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split("\n")
    members = [line.strip() for line in lines[1:] if line.strip() and "#" not in line]
    return {call for member in members for call in calls_in(member)}


@ANALYZES
def test_the_service_may_compute_and_serve_but_not_change_its_host() -> None:
    service = read_unit(SERVICE)
    allowed = set[str]()
    for words in service["SystemCallFilter"]:
        named = calls_in(words.removeprefix("~"))
        allowed = allowed - named if words.startswith("~") else allowed | named
    serving = {"epoll_wait", "accept4", "sendmsg", "futex", "clone3", "execve", "pidfd_open"}
    computing = {"mmap", "mprotect", "mlock", "ioctl", "memfd_create", "process_vm_readv"}
    pinning = {"sched_setaffinity", "mbind", "set_mempolicy", "prlimit64"}
    assert allowed >= serving | computing | pinning
    assert not allowed & {"mount", "ptrace", "reboot", "bpf", "init_module", "kexec_load", "chown"}
    assert not allowed & {"setuid", "settimeofday", "swapon", "perf_event_open"}
    assert service["SystemCallErrorNumber"] == ["EPERM"], "a library may fall back, not die"


@ANALYZES
def test_systemd_rates_the_service_as_well_confined() -> None:
    rating = ["systemd-analyze", "security", "--offline=yes", "--threshold=25", "--no-pager"]
    rated = subprocess.run([*rating, str(SERVICE)], capture_output=True, text=True)
    assert rated.returncode == 0, rated.stdout
