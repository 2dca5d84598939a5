"""The systemd units: systemd's own check, and what they promise about their service."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from outrider.options.roles import TargetRole
from tests.support.repository import ROOT
from tests.support.scratch_host import read_unit

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
