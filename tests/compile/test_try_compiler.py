"""Every graph is given to the compiler, whose figures stand beside the predicted ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from compile.build.compiler_report import CompilerReport, read_report
from tests.support import fake_compiler
from tests.support.commands import Run
from tests.support.fake_neuron import Neuron

GRAPHS = ["verify_b1_t2_s66_greedy", "prefill_b1_t16_s66_greedy"]


def flags(checkpoint: Path, out: Path) -> list[str]:
    return [
        *("compile", "try", "--model", str(checkpoint), "--target", "trn1", "--dtype", "float32"),
        *("--rows", "1", "--max_tree_nodes", "2", "--tree_sizes", "2", "--sequence_length", "64"),
        *("--prompt_chunks", "16", "--sampling", "greedy", "--out", str(out)),
    ]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, packages: Path, tmp_path: Path) -> Path:
    """A machine without a device whose compiler refuses nothing."""
    Neuron(device=False).install(monkeypatch, packages)
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn1")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return fake_compiler.install(tmp_path / "bin")


def test_every_graph_is_compiled_once_and_its_figures_are_kept(
    runs: Path, checkpoint: Path, tmp_path: Path, run: Run
) -> None:
    out = tmp_path / "out"
    tried = run(*flags(checkpoint, out))
    assert (tried.code, sorted(runs.read_text().split())) == (0, sorted(GRAPHS))
    lines = tried.out.splitlines()
    assert [line.split()[0] for line in lines[2:-1]] == GRAPHS
    for line in lines[2:-1]:
        _, predicted, said, _, to_move, code, *_ = line.split()
        assert int(predicted.replace(",", "")) > 0
        assert (said, to_move, code) == ("4,621", "1.0", "0.3")  # 256 MB at 256 GB/s
    report = json.loads((out / GRAPHS[0] / "report.json").read_text())["report"]
    assert (report["instructions"], report["memory"]) == (4621, round(80.376 * (1 << 20)))
    assert run(*flags(checkpoint, out)).code == 0
    assert len(runs.read_text().split()) == len(GRAPHS)


def test_what_copies_rows_and_what_makes_noise_are_compiled_too(
    runs: Path, checkpoint: Path, tmp_path: Path, run: Run
) -> None:
    more = ["--rows", "2", "--sampling", "sampled"]
    assert run(*flags(checkpoint, tmp_path / "out"), *more).code == 0
    assert {"copy_rows", "fill_noise"} <= set(runs.read_text().split())


def test_a_graph_that_is_refused_is_named_with_the_compilers_reason_and_the_others_are_compiled(
    runs: Path, checkpoint: Path, tmp_path: Path, run: Run
) -> None:
    fake_compiler.install(tmp_path / "bin", fails_at=GRAPHS[0])
    out = tmp_path / "out"
    tried = run(*flags(checkpoint, out))
    refused = "refused (exit code 70): [NCC_EVRF007] too many instructions"
    assert (tried.code, refused in tried.out) == (1, True)
    assert (out / GRAPHS[1] / "graph.neff").is_file()
    assert "exitcode=70" in (out / GRAPHS[0] / "output.txt").read_text()


def test_a_compiler_that_died_without_a_reason_is_run_once_more(
    runs: Path, checkpoint: Path, tmp_path: Path, run: Run
) -> None:
    fake_compiler.install(tmp_path / "bin", dies_at=GRAPHS[0])
    tried = run(*flags(checkpoint, tmp_path / "out"))
    assert tried.code == 0
    assert sorted(runs.read_text().split()) == sorted([GRAPHS[0], *GRAPHS])
    assert f"{GRAPHS[0]}: refused (exit code 70)" in tried.err


def test_a_machine_without_the_compiler_is_told_what_to_activate(
    runs: Path, checkpoint: Path, tmp_path: Path, run: Run
) -> None:
    (tmp_path / "bin" / "neuronx-cc").unlink()
    run(*flags(checkpoint, tmp_path / "out")).assert_failed("neuronx-cc is not on PATH")


def test_a_log_without_figures_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("2026-01-19T05:12:32Z WARNING 1 [root]: nothing else\n")
    (tmp_path / "metrics").write_text("[1, 2")
    assert read_report(tmp_path / "log", tmp_path / "metrics") == CompilerReport()
    assert read_report(tmp_path / "absent") == CompilerReport()
