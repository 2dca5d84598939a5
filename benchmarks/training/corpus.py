"""The text that the embedded models are trained on: the Python standard library's own source.

A list of its files with their digests, some of them held out, is kept beside the models.
"""

from __future__ import annotations

import hashlib
import json
import platform
import random
import sysconfig
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import Flags

HELD_OUT_SHARE = 0.05
# Tests are not on every installation; the others are generated tables, build leftovers or grammar
# dumps.
SKIPPED_NAMES = {
    "test",
    "tests",
    "idle_test",
    "site-packages",
    "dist-packages",
    "encodings",
    "entities.py",
}
SKIPPED_PREFIXES = ("_sysconfigdata", "config-", "lib2to3", "pydoc_data")


def standard_library() -> Path:
    """Folder of the running interpreter's standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


def is_training_file(relative: Path) -> bool:
    """Whether a library file is hand-written source that belongs to the corpus."""
    skipped = SKIPPED_NAMES & set(relative.parts)
    return not skipped and not any(part.startswith(SKIPPED_PREFIXES) for part in relative.parts)


def digest(path: Path) -> str:
    """SHA-256 of a file, or an empty string where there is none."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def make_file_list(seed: int) -> dict[str, Any]:
    """List the corpus with digests; a seeded shuffle of the sorted paths picks the held-out
    files.
    """
    root = standard_library()
    paths = sorted(path.relative_to(root) for path in root.rglob("*.py"))
    names = [path.as_posix() for path in paths if is_training_file(path)]
    shuffled = names[:]
    random.Random(seed).shuffle(shuffled)  # noqa: S311
    held_out = set(shuffled[: round(len(names) * HELD_OUT_SHARE)])
    splits = {name: "held-out" if name in held_out else "train" for name in names}
    files = [
        {"path": name, "sha256": digest(root / name), "split": split}
        for name, split in splits.items()
    ]
    return {"python": platform.python_version(), "seed": seed, "files": files}


def different_files(listing: dict[str, Any]) -> list[str]:
    """Listed files that are missing from, or differ in, the local standard library."""
    root = standard_library()
    return [
        entry["path"]
        for entry in listing["files"]
        if digest(root / entry["path"]) != entry["sha256"]
    ]


def read_texts(listing: dict[str, Any], split: str) -> list[str]:
    """Contents of the listed files of one split that exist locally."""
    paths = [
        standard_library() / entry["path"] for entry in listing["files"] if entry["split"] == split
    ]
    return [path.read_bytes().decode("utf-8", errors="replace") for path in paths if path.is_file()]


def checked_listing(path: Path, allow_different: bool) -> dict[str, Any]:
    """Read the file list and compare the local standard library with it."""
    listing: dict[str, Any] = json.loads(path.read_text())
    different = different_files(listing)
    if different:
        print(
            f"{len(different)} of {len(listing['files'])} files differ from {path} (Python "
            f"{listing['python']}):"
        )
        print("\n".join(f"  {name}" for name in different))
        if not allow_different:
            raise SystemExit("stopped; --allow-different-files trains on what is here")
    return listing


class TrainingFlags(Flags):
    """Flags of every training."""

    seed: int = 0
    threads: int = 1
    allow_different_files: bool = False
    """go on where local files differ"""


def prepared(given: TrainingFlags, pair: Path) -> dict[str, Any]:
    """Prepare torch for a training with these flags, and return the list of the pair's files."""
    torch.set_num_threads(given.threads)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(given.seed)
    return checked_listing(pair / "training_files.json", given.allow_different_files)
