"""The command line of `outrider compile`."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from compile import request
from compile.__main__ import main
from compile.compile_options import parse
from tests.support.refusals import assert_usage_error
from tests.support.repository import ROOT
from tests.support.shapes import LLAMA_8B, LOADS


def test_a_dry_run_prints_the_plan_and_builds_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    model = ["--model", str(tmp_path), "--target", "trn1"]
    arguments = [*model, "--dry-run", "--out", str(tmp_path / "out")]
    load = ["--load", str(LOADS / "chat.json"), "--graphs", "8"]
    assert main([*arguments, "--tensor_parallel", "2", *load]) == 0
    shown = capsys.readouterr().out
    for part in (
        "trn1.2xlarge, 2 ranks",
        "8 graphs (2 for other calls) of 8 allowed",
        "verify_b4_t64_s2112_sampled",
        "weights             7.48 GiB",
        "within 15%",
        "computed, not measured",
        "passes that others measured on trn1 are within 15%",
    ):
        assert part in shown
    assert not (tmp_path / "out").exists()
    assert main([*arguments, "--tensor_parallel", "1"]) == 1
    assert "--target trn1 --tensor_parallel 2 (trn1.2xlarge)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--target", "trn2", "--tensor_parallel", "4"], ["as published: solved from passes"]),
        (["--target", "trn3", "--tensor_parallel", "4"], ["nobody published a pass to compare"]),
        (
            ["--target", "trn1", "--tensor_parallel", "2", "--dtype", "fp8"],
            ["22.5 ms where nothing waits for widening, 33.5 where VectorE", "where wide copies"],
        ),
    ],
)
def test_a_dry_run_says_what_stands_behind_its_times(
    flags: list[str], said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    model = ["--model", str(ROOT / "docs/shapes/llama-3.1-8b")]
    sizes = ["--rows", "1", "--tree_sizes", "16", "--max_tree_nodes", "16", "--slots", "2064"]
    assert main([*model, *flags, *sizes, "--dry_run"]) == 0
    shown = capsys.readouterr().out
    assert all(part in shown for part in said), shown


DRY = ["--target", "cpu", "--dry_run"]


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ([], ["--target"]),
        (["--target", "cpu"], ["--out"]),
        ([*DRY, "--tree_sizes", "4,x"], ["--tree_sizes 4,x"]),
        ([*DRY, "--tree_sizes", "65"], ["--tree_sizes 65", "64"]),
        ([*DRY, "--slots", "0"], ["--slots 0"]),
        ([*DRY, "--sampling", "some"], ["--sampling some"]),
        ([*DRY, "--rows", "0"], ["--rows 0"]),
        ([*DRY, "--workers", "0"], ["--workers 0"]),
        ([*DRY, "--sequence_length", "1"], ["--sequence_length 1", "2"]),
        ([*DRY, "--tensor_parallel", "2"], ["cpu"]),
        ([*DRY, "--load", "x", "--slots", "64"], ["--load", "--slots"]),
        ([*DRY, "--compile_minutes", "5"], ["--compile_minutes", "--graph_minutes"]),
        ([*DRY, "--graph_minutes", "0"], ["--graph_minutes 0"]),
        ([*DRY, "--flag", "=3"], ["--flag =3"]),
        ([*DRY, "--gamma", "4"], ["--speculation_length", "--fused"]),
        ([*DRY, "--fused", "--gamma", "0"], ["--speculation_length 0"]),
        ([*DRY, "--fused", "--gamma", "2", "--draft_tree", "2"], ["--draft_tree"]),
        ([*DRY, "--fused", "--model", "x"], ["--fused", "--draft_model"]),
        ([*DRY, "--fused", "--draft_tree", "2,x"], ["--draft_tree 2,x"]),
        ([*DRY, "--spot"], ["--spot", "--on"]),
        ([*DRY, "--tre_sizes", "4"], ["--tre_sizes", "did you mean --tree_sizes?"]),
        (["--target", "trn1", "--dry_run", "--fused", "--dtype", "fp8"], ["fp8"]),
        (["--target", "trn2", "--dry_run", "--dtype", "fp8"], ["fp8", "trn2"]),
        (["--pull", "somewhere", "--out", "x"], ["--pull", "--digest"]),
    ],
)
def test_wrong_flags_are_told_before_anything_is_loaded(
    arguments: list[str],
    shown: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request, "find_checkpoint", None)
    assert_usage_error(capsys, main, arguments, shown)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([*DRY, "--sequence_length", "9999"], "takes 2 to 1024"),
        ([*DRY, "--load", "gone.json"], "gone.json cannot be read"),
    ],
)
def test_what_the_model_or_a_file_refuses_gets_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert said in error
    assert error.count("\n") == 1


def test_the_embedded_models_plan_is_a_few_graphs_and_says_what_each_is_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(DRY) == 0
    shown = capsys.readouterr().out
    assert "6 graphs" in shown
    purposes = shown.split("what each graph is for:\n")[1]
    assert purposes.count("\n") == 7
    assert "the target alone, one session, any temperature" in purposes
    assert "prompts, 256 tokens a call, one session" in purposes


@pytest.mark.parametrize("more", [[], ["--fused"], ["--target", "trn1"], ["--sampling", "greedy"]])
def test_quick_builds_the_first_graphs_of_the_whole_plan_and_names_the_others(
    more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    requests = [
        request.make_request(options, request.find_checkpoint(options))
        for options in (parse([*DRY, *more]), parse([*DRY, *more, "--quick"]))
    ]
    whole, quick = (each.spec for each in requests)
    assert set(quick.graphs) < set(whole.graphs)
    assert set(quick.graphs) | set(requests[1].lacking) == set(whole.graphs)
    assert len(quick.buckets) == 3
    assert replace(quick, buckets=whole.buckets, fused=whole.fused) == whole
    assert main([*DRY, *more, "--quick"]) == 0
    assert f"left out by --quick ({len(requests[1].lacking)} graphs" in capsys.readouterr().out


@pytest.mark.parametrize("library", ["torch", "transformers", "numpy", "boto3"])
def test_the_command_line_of_compile_starts_without_heavy_libraries(library: str) -> None:
    code = (
        "import sys; from compile.__main__ import main; from compile.compile_options import parse; "
        f"sys.exit({library!r} in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
