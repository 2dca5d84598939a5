"""Prints the digest of an artefact on this host: `python -m deploy.host.artifact_digest DIR`."""

from __future__ import annotations

import sys
from pathlib import Path

from inference.artifact import read_manifest

if __name__ == "__main__":
    print(read_manifest(Path(sys.argv[1])).digest())
