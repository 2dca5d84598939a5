"""Another package with a top-level name of ours is named, and nothing else runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.repository import ROOT


def test_a_package_of_another_project_is_named(tmp_path: Path) -> None:
    (tmp_path / "inference").mkdir()
    (tmp_path / "inference" / "__init__.py").write_text("raise AssertionError('imported')\n")
    metadata = tmp_path / "vision-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: vision\nVersion: 1.0\n")
    (metadata / "top_level.txt").write_text("inference\n")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    process = subprocess.run(
        [sys.executable, "-c", "import outrider"],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 1
    last = process.stderr.splitlines()[-1]
    assert last.startswith("ImportError: vision replaces Outrider's package `inference`")
