"""The comparison measures its own baseline, interleaves, and writes what it measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outrider.compare import BASELINE, main


def test_the_comparison_runs_on_the_embedded_pair_and_every_text_is_the_targets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "prompts.txt").write_text("def f(x):\nimport os\n")
    flags = ["--prompt-file", str(tmp_path / "prompts.txt"), "--num-runs", "2", "--max_new_tokens", "24", "--out", str(tmp_path / "out")]
    assert main([*flags, "--temperature", "0.8", "--seed", "5"]) == 0
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    rows = {row["architecture"]: row for row in results["architectures"]}
    assert BASELINE in rows
    assert len(rows) == 3
    for name, row in rows.items():
        assert row["identical_texts"] == row["texts"] == 4
        assert len(results["texts"][name]) == 4
        if name != BASELINE:
            assert row["rounds"] < rows[BASELINE]["rounds"]
            assert row["ratio"] > 0
    assert rows[BASELINE]["ratio"] == 1
    assert "acceptance length" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--prompt-file", "/nowhere"], "/nowhere"),
        (["--target_host", "127.0.0.1:1"], "127.0.0.1:1"),
        (["--target_model", "/nowhere/model"], "/nowhere/model"),
    ],
)
def test_a_comparison_that_cannot_be_made_says_why(flags: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*flags, "--num-runs", "1"]) == 1
    assert words in capsys.readouterr().err
