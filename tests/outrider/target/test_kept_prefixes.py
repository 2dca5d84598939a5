"""--prefix_dir from the command line: a target that is started again computes less of a prompt."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

from outrider.target.spawn import started
from tests.support.commands import Run

PROMPT = "def walk(top):\n    for name in sorted(os.listdir(top)):\n        print(name)\n" * 6


def made_by_a_new_target(run: Run, *flags: object) -> dict[str, Any]:
    """The record of the same text, made by a target that is started for it and stopped."""
    with started("target", ["--batch", "1", *map(str, flags)]) as target:
        client = ("--target_host", target.address, "--draft", "copy")
        text = ("--max_new_tokens", "8", "--temperature", "0", "--json")
        (record,) = run("run", PROMPT, *client, *text).records
    return record


def test_a_target_that_is_started_again_computes_no_prompt_twice(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    first, second = (made_by_a_new_target(run, "--prefix_dir", folder) for _ in range(2))
    assert first["prompt_tokens"] > 64
    assert (first["reused_tokens"], second["reused_tokens"]) == (0, first["prompt_tokens"] - 1)
    other = made_by_a_new_target(run, "--prefix_dir", folder, "--dtype", "bfloat16")
    assert other["reused_tokens"] == 0
    without = made_by_a_new_target(run)
    assert without["reused_tokens"] == 0
    assert first["token_ids"] == second["token_ids"] == without["token_ids"]
    kept = [path for path in folder.iterdir() if path.is_file()]
    assert len(kept) == 2  # one in each precision
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_folder_that_others_may_read_is_refused(run: Run, tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    run("target", "--port", 0, "--prefix_dir", tmp_path).assert_failed(str(tmp_path), "chmod 700")
