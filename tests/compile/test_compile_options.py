"""The command line of `outrider compile`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from compile import request
from compile.compile_options import parse
from tests.support.commands import Run
from tests.support.repository import ROOT


def test_a_dry_run_prints_the_plan_with_what_stands_behind_its_times_and_builds_nothing(
    tmp_path: Path, run: Run
) -> None:
    model = ["compile", "--model", ROOT / "docs/shapes/llama-3.1-8b", "--dry-run"]
    given = ["--target", "trn1", "--rows", "4", "--out", tmp_path / "out"]
    planned = run(*model, *given, "--tensor_parallel", "2")
    assert planned.code == 0
    for part in (
        "fits trn1.2xlarge: ",
        " ms with 16 guesses (within 20%); about ",
        "; next: outrider compile --model",
        "trn1.2xlarge, 2 cores",
        "weights             7.48 GiB",
        "from passes that others published, within 20%",
        "not yet run on hardware",
    ):
        assert part in planned.out
    assert planned.out.startswith("fits trn1.2xlarge"), "the verdict comes first"
    assert planned.out.count("verify_b4_t64_s2112_sampled") == 1, "graphs are listed once"
    assert not (tmp_path / "out").exists()
    refusal = run(*model, *given, "--tensor_parallel", "1")
    refusal.assert_failed("--target trn1 --tensor_parallel 2 (trn1.2xlarge)")
    sizes = ["--tensor_parallel", "4", "--rows", "1", "--tree_sizes", "16"]
    for target, words in (
        ("trn2", ["25.6 ms", "28.5 ms with 16 guesses"]),
        ("trn3", ["times: a range", " to "]),
    ):
        shown = run(*model, *sizes, "--max_tree_nodes", "16", "--target", target).out
        assert all(part in shown for part in words), shown


DRY = ["--target", "cpu", "--dry_run"]
REFUSED: list[tuple[str, ...]] = [
    ("", "--target"),
    ("--target cpu", "--out"),
    ("--pull somewhere --out x", "--pull", "--digest"),
    *(
        (f"--target cpu --dry_run {flags}", *shown)
        for flags, *shown in (
            ("--tree_sizes 4,x", "--tree_sizes x"),
            ("--tree_sizes 65", "--tree_sizes 65", "64"),
            ("--sampling some", "--sampling some"),
            ("--masks --sampling greedy", "--masks", "--sampling greedy"),
            ("--rows 0", "--batch 0"),
            ("--dtype fp8", "--dtype fp8", "bfloat16"),
            ("--sequence_length 1", "--sequence_length 1", "2"),
            ("--tensor_parallel 2", "--tensor_parallel 2", "cpu"),
            ("--load x", "--load"),
            ("--flag =3", "--flag =3"),
            ("--gamma 4", "--gamma", "--fused"),
            ("--fused --gamma 0", "--gamma 0"),
            ("--fused --gamma 2 --draft_tree 2", "--draft_tree"),
            ("--fused --model x", "--fused", "--draft_model"),
            ("--fused --draft_tree 2,x", "--draft_tree x"),
            ("--spot", "--spot", "--on"),
        )
    ),
    ("--target trn3 --fused --dry_run", "--fused", "cpu, trn1 and inf2"),
]


@pytest.mark.parametrize("refused", REFUSED, ids=lambda refused: refused[0])
def test_wrong_flags_are_told_before_anything_is_loaded(
    refused: tuple[str, ...], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request, "find_checkpoint", None)
    flags, *shown = refused
    run("compile", *flags.split()).assert_usage_error(*shown)


def test_the_embedded_models_plan_is_a_few_graphs_and_says_what_each_is_for(run: Run) -> None:
    shown = run("compile", *DRY).out
    assert "6 graphs" in shown
    assert " ms" not in shown, "nobody can foresee a CPU's times"
    assert "the target alone, one session, any temperature" in shown
    assert "prompts, 256 tokens a call, one session" in shown
    refusal = run("compile", *DRY, "--sequence_length", "9999")
    refusal.assert_failed("2 to 1024")
    assert refusal.err.count("\n") == 1, "the model refuses its length in one line"


@pytest.mark.parametrize("more", [[], ["--fused"], ["--target", "trn1"], ["--sampling", "greedy"]])
def test_quick_builds_the_first_graphs_of_the_whole_plan_and_names_the_others(
    more: list[str], run: Run
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
    lacking = f"left out by --quick ({len(requests[1].lacking)} graphs"
    assert lacking in run("compile", *DRY, *more, "--quick").out
