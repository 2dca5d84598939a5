"""The systemd units: systemd's own check, and what they promise about their service."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from outrider.options.roles import TargetRole
from tests.support.host_files import read_unit
from tests.support.repository import ROOT

UNITS = sorted((ROOT / "deploy" / "systemd").iterdir())


@pytest.fixture
def placed(tmp_path: Path) -> Path:
    """The units in a directory, with programs that exist here in place of the host's."""
    for unit in UNITS:
        text = unit.read_text()
        for program in ("outrider", "python"):
            text = text.replace(f"/opt/outrider/venv/bin/{program}", "/bin/true")
        (tmp_path / unit.name).write_text(text)
    return tmp_path


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_has_nothing_to_say_of_a_unit(unit: Path, placed: Path) -> None:
    """The exit code is 0 for most faults, but systemd says what is wrong."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed (Debian's package systemd)")
    verify = ["systemd-analyze", "verify", "--man=no", str(placed / unit.name)]
    assert subprocess.run(verify, capture_output=True, text=True).stderr == ""


def test_the_service_outlasts_its_sessions_and_reaches_no_metadata_of_the_instance() -> None:
    service = read_unit(ROOT / "deploy" / "systemd" / "outrider-target.service")
    assert float(service.one("TimeoutStopSec")) > 2 * TargetRole().sessions.grace
    assert service.one("Type") == "notify"
    assert service.one("User") != "root"
    assert service.one("IPAddressDeny").split() == ["169.254.169.254", "fd00:ec2::254"]
    assert service.one("MemoryMax").endswith("%")
