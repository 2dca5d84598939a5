"""The command line of `python -m compile`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.buckets import LLAMA_8B, LOADS
from compile.__main__ import main

ROOT = Path(__file__).parents[1]


def test_a_dry_run_prints_the_plan_and_builds_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    arguments = [
        "--model",
        str(tmp_path),
        "--target",
        "trn1",
        "--dry-run",
        "--out",
        str(tmp_path / "out"),
    ]
    assert (
        main(
            [
                *arguments,
                "--tensor_parallel",
                "2",
                "--load",
                str(LOADS / "chat.json"),
                "--graphs",
                "8",
            ]
        )
        == 0
    )
    shown = capsys.readouterr().out
    for part in (
        "trn1.2xlarge, 2 ranks",
        "8 graphs of 8 allowed",
        "verify_b4_t64_s2112_sampled",
        "weights             7.48 GiB",
        "roofline ms",
    ):
        assert part in shown
    assert not (tmp_path / "out").exists()
    assert main([*arguments, "--rows", "4"]) == 1
    assert "Would fit: --sequence_length" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--target is needed"),
        (["--target", "cpu"], "--out is needed"),
        (
            ["--target", "cpu", "--dry_run", "--tree_nodes", "4,x"],
            "--tree_nodes 4,x: whole numbers",
        ),
        (
            ["--target", "cpu", "--dry_run", "--tree_nodes", "65"],
            "--tree_nodes 65: sizes lie between 1 and 64",
        ),
        (["--target", "cpu", "--dry_run", "--slots", "0"], "--slots 0: sizes of at least 1"),
        (
            ["--target", "cpu", "--dry_run", "--sampling", "some"],
            "--sampling some: one of both, greedy, sampled",
        ),
        (["--target", "cpu", "--dry_run", "--sequence_length", "9999"], "takes 2 to 1024"),
        (["--target", "cpu", "--dry_run", "--load", "gone.json"], "gone.json cannot be read"),
        (
            ["--target", "cpu", "--dry_run", "--load", "x", "--slots", "64"],
            "--load chooses the sizes",
        ),
        (
            ["--target", "cpu", "--dry_run", "--load", "x", "--compile_minutes", "5"],
            "--compile_minutes needs --graph_minutes",
        ),
        (["--target", "cpu", "--dry_run", "--flag", "=3"], "--flag =3"),
        (["--pull", "somewhere", "--out", "x"], "--pull needs --digest"),
    ],
)
def test_bad_flags_get_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--rows", "4"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert said in error
    assert error.count("\n") == 1


def test_a_flag_that_is_gone_says_what_replaced_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--target", "trn1", "--trace", "--dry-run"])
    assert "--trace is gone" in capsys.readouterr().err


@pytest.mark.parametrize("library", ["torch", "transformers", "numpy", "boto3"])
def test_the_command_line_of_compile_starts_without_heavy_libraries(library: str) -> None:
    code = (
        "import sys; from compile.__main__ import main; from compile.options import parse; "
        f"sys.exit({library!r} in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
