"""The text that the embedded models are trained on: the Python standard library's own source.

A list of its files with their digests, some of them held out, lies beside the models.
"""

from __future__ import annotations

import json
import sysconfig
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import Flags
from inference.command import say

STANDARD_LIBRARY = Path(sysconfig.get_paths()["stdlib"])
"""Folder of the running interpreter's standard library."""


def read_texts(listing: dict[str, Any], split: str) -> list[str]:
    """Contents of the listed files of one split that exist here."""
    names = [entry["path"] for entry in listing["files"] if entry["split"] == split]
    paths = [STANDARD_LIBRARY / name for name in names if (STANDARD_LIBRARY / name).is_file()]
    return [path.read_bytes().decode("utf-8", errors="replace") for path in paths]


class TrainingFlags(Flags):
    """Flags of every training."""

    seed: int = 0
    threads: int = 1


def prepared(given: TrainingFlags, pair: Path) -> dict[str, Any]:
    """Prepare torch for a training with these flags, and return the list of the pair's files.

    Prints how many of them differ here.
    """
    torch.set_num_threads(given.threads)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(given.seed)
    path = pair / "training_files.json"
    listing: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    differ = 0
    for one in listing["files"]:
        file = STANDARD_LIBRARY / one["path"]
        same = file.is_file() and sha256(file.read_bytes()).hexdigest() == one["sha256"]
        differ += not same
    if differ:
        say(f"{differ} of {len(listing['files'])} files differ from {path}: another Python's text")
    return listing
