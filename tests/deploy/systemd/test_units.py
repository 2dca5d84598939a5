"""The systemd units: systemd's own check, and what they promise about their service."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from outrider.options.roles import TargetRole
from tests.support.repository import ROOT
from tests.support.scratch_host import UnitFile, read_unit

UNITS = sorted((ROOT / "deploy" / "systemd").iterdir())
SERVICE = ROOT / "deploy/systemd/outrider-target.service"
ANALYZES = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None,
    reason="systemd-analyze is not installed (Debian's package systemd)",
)


@pytest.fixture
def placed(tmp_path: Path) -> Path:
    """The units in a directory, with programs that exist here in place of the host's."""
    for unit in UNITS:
        text = unit.read_text()
        for program in ("outrider", "python"):
            text = text.replace(f"/opt/outrider/venv/bin/{program}", "/bin/true")
        (tmp_path / unit.name).write_text(text)
    return tmp_path


@ANALYZES
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_has_nothing_to_say_of_a_unit(unit: Path, placed: Path) -> None:
    """The exit code is 0 for most faults, but systemd says what is wrong."""
    verify = ["systemd-analyze", "verify", "--man=no", str(placed / unit.name)]
    assert subprocess.run(verify, capture_output=True, text=True).stderr == ""


def test_the_service_outlasts_its_sessions_and_reaches_no_metadata_of_the_instance() -> None:
    service = read_unit(SERVICE)
    assert float(service.one("TimeoutStopSec")) > 2 * TargetRole().grace
    assert service.one("Type") == "notify"
    assert service.one("User") != "root"
    assert service.one("IPAddressDeny").split() == ["169.254.169.254", "fd00:ec2::254"]
    assert service.one("MemoryMax").endswith("%")


def filtered_calls(service: UnitFile) -> set[str]:
    """The system calls that the service may make, its sets expanded by systemd."""
    allowed = set[str]()
    for words in service.all("SystemCallFilter"):
        expanded = _expand(words.removeprefix("~"))
        allowed = allowed - expanded if words.startswith("~") else allowed | expanded
    return allowed


def _expand(name: str) -> set[str]:
    if not name.startswith("@"):
        return {name}
    listing = ["systemd-analyze", "syscall-filter", "--no-pager", name]
    lines = subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split("\n")
    members = [line.strip() for line in lines[1:] if line.strip() and "#" not in line]
    return {call for member in members for call in _expand(member)}


@ANALYZES
def test_the_service_may_compute_and_serve_but_not_change_its_host() -> None:
    service = read_unit(SERVICE)
    calls = filtered_calls(service)
    serving = {"epoll_wait", "accept4", "sendmsg", "futex", "clone3", "execve", "pidfd_open"}
    computing = {"mmap", "mprotect", "mlock", "ioctl", "memfd_create", "process_vm_readv"}
    pinning = {"sched_setaffinity", "mbind", "set_mempolicy", "prlimit64"}
    assert calls >= serving | computing | pinning
    assert not calls & {"mount", "ptrace", "reboot", "bpf", "init_module", "kexec_load", "chown"}
    assert not calls & {"setuid", "settimeofday", "swapon", "perf_event_open"}
    assert service.one("SystemCallErrorNumber") == "EPERM", "a library may fall back, not die"


@ANALYZES
def test_systemd_rates_the_service_as_well_confined() -> None:
    rating = ["systemd-analyze", "security", "--offline=yes", "--threshold=25", "--no-pager"]
    rated = subprocess.run([*rating, str(SERVICE)], capture_output=True, text=True)
    assert rated.returncode == 0, rated.stdout
