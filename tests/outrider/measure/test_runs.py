"""Runs of a file: sweeps, their results, and experiments of AutoDraft."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from inference.flags.group import flags_of
from outrider.measure.verbs.runs import read_runs
from outrider.options.commands import parse
from outrider.options.roles import DraftRole, TargetRole, VerifyTargetRole
from tests.support.commands import Run
from tests.support.refusals import assert_refused

RUNS = """
flags: {{prompt: "def f(", max_new_tokens: 6, port: {port}}}
runs:
  - {{name: alone, preset: vanilla, temperature: 0}}
  - {{name: copied, preset: suffix, temperature: [0, 1]}}
  - {{name: lost, port: 1, patience: 0}}
"""
SERVED = TargetRole(port=0, batch=1, sequence_length=64)


def texts(directory: Path) -> list[list[int]]:
    records: list[dict[str, Any]] = json.loads((directory / "outrider-profile.json").read_text())
    return [record["token_ids"] for record in records]


def test_a_sweep_makes_its_runs_and_each_can_be_made_again_from_its_options(
    port: str, tmp_path: Path, run: Run
) -> None:
    (tmp_path / "runs.yaml").write_text(RUNS.format(port=port))
    ended = run("runs", tmp_path / "runs.yaml", "--out", tmp_path / "out")
    ended.assert_failed("error: lost: ")
    made = {path.name for path in (tmp_path / "out").iterdir()}
    assert made == {"alone", "copied-temperature=0", "copied-temperature=1"}
    assert texts(tmp_path / "out" / "alone") == texts(tmp_path / "out" / "copied-temperature=0")
    sampled = tmp_path / "out" / "copied-temperature=1"
    again = ["--config", sampled / "outrider-options.json", "--profile", tmp_path / "again"]
    assert run(*again).code == 0
    assert texts(tmp_path / "again") == texts(sampled)
    stored = [
        json.loads((one / "outrider-options.json").read_text())
        for one in (sampled, tmp_path / "again")
    ]
    assert stored[0] == stored[1]
    assert stored[0]["preset"] == "suffix"
    assert stored[0]["seed"] is not None
    listed = run("runs", tmp_path / "runs.yaml", "--dry_run")
    names = ["alone", "copied temperature=0", "copied temperature=1", "lost"]
    assert (listed.code, listed.out.splitlines()) == (0, names)
    for name in ("/nowhere.yaml", "/nowhere.xml"):
        run("runs", name).assert_failed(name)


def file_of(directory: Path, text: str) -> Path:
    path = directory / "runs.yaml"
    path.write_text(text)
    return path


def test_a_list_of_values_makes_a_run_for_each_and_lists_multiply(tmp_path: Path) -> None:
    text = """
flags: {prompt: x, max-new-tokens: 8, seed: 3, draft: copy}
runs:
  - name: alone
    draft: model
    role: verify_target
  - name: curve
    cs: [0, cost]
    temperature: [0, 0.7]
  - preset: hybrid
    draft: null
"""
    assert_refused(lambda: read_runs(file_of(tmp_path, text)), ["runs[0].draft", "draft"])
    runs = read_runs(file_of(tmp_path, text.replace("draft: model\n", "draft: null\n")))
    common: dict[str, Any] = {"prompt": "x", "max_new_tokens": 8, "seed": 3}
    copied = {**common, "draft": "copy"}
    assert [(run.name, run.options) for run in runs] == [
        ("alone", VerifyTargetRole(**common)),
        ("curve cs=0 temperature=0", DraftRole(**copied, cs="0", temperature=0)),
        ("curve cs=0 temperature=0.7", DraftRole(**copied, cs="0", temperature=0.7)),
        ("curve cs=cost temperature=0", DraftRole(**copied, cs="cost", temperature=0)),
        ("curve cs=cost temperature=0.7", DraftRole(**copied, cs="cost", temperature=0.7)),
        ("run-3", DraftRole(**common, preset="hybrid")),
    ]
    assert runs[2].directory == "curve-cs=0-temperature=0.7"


def test_a_run_is_what_its_flags_are_on_the_command_line_whatever_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--role", "draft", "--prompt", "x", "--preset", "tree_sd", "--tree_nodes", "5"]
    options = parse(words)
    monkeypatch.setenv("OUTRIDER_MAX_NEW_TOKENS", "3")
    (run,) = read_runs(file_of(tmp_path, "runs: [{prompt: x, preset: tree_sd, tree-nodes: 5}]"))
    assert run.options == options


def nested(levels: int) -> str:
    """A list of nine, so many times nested by aliases: 9**levels values, if it is written out."""
    lines = [f"&a0 {[1] * 9}"]
    lines += [f"&a{one} [{', '.join([f'*a{one - 1}'] * 9)}]" for one in range(1, levels)]
    return f"[{', '.join(lines)}]"


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        ("runs:\n  - prompt: 'x\n", ["cannot be read", "line"]),
        ("- prompt", ["`runs:`"]),
        ("flags: {seed: 1}", ["`runs:`", "list of runs"]),
        ("runs: []", ["`runs:`"]),
        ("runs: {prompt: x}", ["`runs:`", "got {'prompt'"]),
        ("runs: [x]", ["runs[0]", "lines such as", "got x"]),
        ("run: []\nruns: [{prompt: x}]", ["run:", "flags and runs are needed"]),
        ("runs: [{prompt: x, cs: []}]", ["runs[0].cs", "a list of values"]),
        ("runs: [{prompt: x, cs: {a: 1}}]", ["runs[0].cs", "a list of values", "got {'a'"]),
        ("runs: [{prompt: x}, {prompt: x, gama: 3}]", ["runs[1].gama", "did you mean gamma"]),
        ("runs: [{prompt: x, gamma: [1, -1]}]", ["runs[0].gamma -1", "0 or more"]),
        ("runs: [{prompt: x, preset: eagle}]", ["runs[0].preset eagle", "hybrid"]),
        ("runs: [{prompt: x, preset: suffix, gamma: 2}]", ["runs[0]: --preset suffix stands"]),
        ("runs: [{role: target}]", ["runs[0].role target", "draft", "verify_target"]),
        ("runs: [{seed: 1}]", ["runs[0]", "--prompt TEXT"]),
        ("runs: [{prompt_text: /nowhere}]", ["runs[0]", "/nowhere"]),
        ("runs: [{prompt: '-'}]", ["runs[0]", "standard input"]),
        ("runs: [{prompt: x, profile: there}]", ["runs[0].profile", "no meaning"]),
        ("runs: [{prompt: x, name: a}, {prompt: y, name: a}]", ["two runs are called a"]),
        ("runs: [{prompt: x, name: ..}]", ["a run is called ..", "a letter or digit"]),
        (f"runs: [{{name: {nested(30)}}}]", ["runs"]),
        (f"runs: {nested(30)}", ["runs"]),
        (f"runs: [{{gamma: {nested(30)}}}]", ["runs"]),
    ],
)
def test_what_is_wrong_is_told_in_one_line_with_its_place(
    tmp_path: Path, text: str, needed: list[str]
) -> None:
    path = file_of(tmp_path, text)
    assert_refused(lambda: read_runs(path), ["runs.yaml", *needed])


def test_a_sweep_of_too_many_runs_is_refused_before_any_is_made(tmp_path: Path) -> None:
    lists = "".join(f"  {flag}: {list(range(10))}\n" for flag in ("seed", "gamma", "tree_nodes"))
    endless = "".join(f"  flag{index}: [1, 2, 3]\n" for index in range(20_000))
    for flags, runs in ((lists, "[{}, {}]"), (endless, "[{}]")):
        path = file_of(tmp_path, f"flags:\n{flags}runs: {runs}\n")
        assert_refused(partial(read_runs, path), ["more than 1000 runs"])


@pytest.mark.parametrize("flag", sorted({"role", *flags_of(DraftRole)} - {"config"}))
def test_no_flag_of_a_file_writes_out_what_aliases_nest(
    tmp_path: Path, flag: str, run: Run
) -> None:
    (tmp_path / "config.yaml").write_text(f"{flag}: {nested(30)}\n")
    verb = ["run"] if flag != "role" else []
    run(*verb, "--config", tmp_path / "config.yaml").assert_usage_error(flag)


EXPERIMENT = """<?xml version="1.0" encoding="UTF-8"?>
<experiment_config>
  <runtime>
    <TARGET_HOST>10.0.0.2</TARGET_HOST><TARGET_PORT>26001</TARGET_PORT>
    <DEVICE_MAP>cpu</DEVICE_MAP><SERVER_NAME>big</SERVER_NAME>
  </runtime>
  <models>
    <BASE_MODEL_PATH>some/target</BASE_MODEL_PATH>
    <DRAFT_MODEL_PATH>some/draft</DRAFT_MODEL_PATH>
    <DRAFT_QUANTIZATION>8bit</DRAFT_QUANTIZATION>
  </models>
  <dataset><BENCHES_CSV>mt_bench</BENCHES_CSV></dataset>
  <objective>
    <!-- a comment -->
    <OBJECTIVE_METRICS_CSV>api_cost</OBJECTIVE_METRICS_CSV>
    <AUTODRAFT_CS_LIST>0 0.5</AUTODRAFT_CS_LIST>
    <TARGET_PER_HOUR_COST>1.208</TARGET_PER_HOUR_COST>
  </objective>
  <algorithms>
    <ENABLE_HYBRID_AUTODRAFT>1</ENABLE_HYBRID_AUTODRAFT>
    <ENABLE_SERVER_ONLY_AR>1</ENABLE_SERVER_ONLY_AR>
    <ENABLE_SERVER_ONLY_AUTODRAFT>1</ENABLE_SERVER_ONLY_AUTODRAFT>
    <ENABLE_HYBRID_OPT_TREE>1</ENABLE_HYBRID_OPT_TREE>
    <ENABLE_HYBRID_NON_TREE_SD>0</ENABLE_HYBRID_NON_TREE_SD>
  </algorithms>
  <tree>
    <FIXED_TREE_NODES>40</FIXED_TREE_NODES>
    <parameter name="MAX_NEW_TOKENS">32</parameter>
  </tree>
</experiment_config>
"""
BOMB = """<?xml version="1.0"?>
<!DOCTYPE lolz [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>
<experiment_config><SEED>&b;</SEED></experiment_config>
"""
OUTSIDE = """<?xml version="1.0"?>
<!DOCTYPE x [<!ENTITY secret SYSTEM "file:///etc/hostname">]>
<experiment_config><SEED>&secret;</SEED></experiment_config>
"""


def experiment_file(directory: Path, text: str) -> Path:
    (directory / "mt_bench.txt").write_text("What is a tree?\n")
    path = directory / "experiment.xml"
    path.write_text(text)
    return path


def test_an_experiment_becomes_a_run_for_each_algorithm_and_knob(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = read_runs(experiment_file(tmp_path, EXPERIMENT))
    text: dict[str, Any] = {"target_host": "10.0.0.2:26001", "max_new_tokens": 32, "seed": 4}
    text["prompt_text"] = str(tmp_path / "mt_bench.txt")
    drafted = {**text, "device": "cpu", "draft_model": "some/draft", "usd_per_hour": 1.208}
    here = {**drafted, "draft_quantization": "int8"}
    adaptive = {**here, "preset": "adaptive", "objective": "api_cost"}
    assert [(run.name, run.options) for run in runs] == [
        ("server_only_ar", DraftRole(**drafted, preset="vanilla")),
        ("server_only_autodraft", DraftRole(**drafted, preset="eagle_sd")),
        ("hybrid_opt_tree", DraftRole(**here, preset="tree_sd", tree_nodes=40, tree_depth=15)),
        ("hybrid_autodraft objective=api_cost cs=0", DraftRole(**adaptive, cs="0")),
        ("hybrid_autodraft objective=api_cost cs=50", DraftRole(**adaptive, cs="50")),
    ]
    assert "BASE_MODEL_PATH, SERVER_NAME have no effect here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        (BOMB, ["a DTD or an entity"]),
        (OUTSIDE, ["a DTD or an entity"]),
        (EXPERIMENT[:-20], ["cannot be read as XML", "line"]),
        (EXPERIMENT.replace("UTF-8", "UTF-32"), ["cannot be read as XML"]),
        (EXPERIMENT.replace("UTF-8", "x"), ["cannot be read as XML", "unknown encoding"]),
        ("<x/>", ["`runs:`"]),
        (EXPERIMENT.replace("0 0.5", "fast"), ["AUTODRAFT_CS_LIST fast", "numbers"]),
        (EXPERIMENT.replace("0 0.5", "2"), ["cs 200", "0 to 100"]),
        (EXPERIMENT.replace("api_cost", "beauty"), ["objective beauty", "total_cost"]),
        (EXPERIMENT.replace("1.208", "cheap"), ["usd_per_hour cheap", "a number"]),
        (EXPERIMENT.replace("8bit", "2bit"), ["draft_quantization 2bit", "int8, int4 is"]),
        (EXPERIMENT.replace("DRAFT_Q", "TARGET_Q"), ["TARGET_Q", "8bit"]),
        (EXPERIMENT.replace("AR>1<", "AR>yes<"), ["ENABLE_SERVER_ONLY_AR yes", "0 or 1"]),
        (EXPERIMENT.replace("mt_bench", "gsm8k"), ["gsm8k.txt"]),
    ],
)
def test_a_file_that_cannot_be_run_gets_one_line(
    tmp_path: Path, text: str, needed: list[str]
) -> None:
    path = experiment_file(tmp_path, text)
    assert_refused(lambda: read_runs(path), ["experiment.xml", *needed])
