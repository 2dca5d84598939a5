"""The wheel of this very Outrider, which a host installs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from deploy.bucket import HostBucket
from inference.artifact import hash_file
from inference.errors import InvalidRequest

_SOURCE = Path(__file__).parents[1]


def build_wheel(directory: Path) -> Path:
    """Build the wheel of the checkout that this runs from, by pip. Raises InvalidRequest where this
    is no checkout, or pip fails.
    """
    if not (_SOURCE / "pyproject.toml").is_file():
        raise InvalidRequest(
            f"a host installs the same Outrider as runs here, and {_SOURCE} is no checkout that a "
            "wheel could be built from: name one with --wheel FILE"
        )
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet"]
    built = subprocess.run(  # noqa: S603 (this Python's own pip)
        [*command, "--wheel-dir", str(directory), str(_SOURCE)], capture_output=True, text=True
    )
    wheels = sorted(directory.glob("*.whl"))
    if built.returncode or not wheels:
        reason = (built.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise InvalidRequest(
            f"pip could not build Outrider's wheel ({reason}): name one by --wheel"
        )
    return wheels[0]


def put_wheel(bucket: HostBucket, wheel: Path) -> tuple[str, str]:
    """Upload a wheel under its digest; returns its URL and SHA-256. Raises InvalidRequest for what
    is no wheel.
    """
    if wheel.suffix != ".whl" or not wheel.is_file():
        raise InvalidRequest(f"--wheel {wheel}: a file NAME.whl is needed")
    sha256 = hash_file(wheel)
    return bucket.put(f"wheels/{sha256[:16]}/{wheel.name}", wheel), sha256
