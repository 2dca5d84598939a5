"""An experiment of AutoDraft becomes runs, and a file that means no good is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outrider.measure.verbs.runs import read_runs
from outrider.options.roles import DraftRole
from tests.support.refusals import assert_refused

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


def file_of(directory: Path, text: str) -> Path:
    (directory / "mt_bench.txt").write_text("What is a tree?\n")
    path = directory / "experiment.xml"
    path.write_text(text)
    return path


def test_an_experiment_becomes_a_run_for_each_algorithm_and_knob(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = read_runs(file_of(tmp_path, EXPERIMENT))
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
    path = file_of(tmp_path, text)
    assert_refused(lambda: read_runs(path), ["experiment.xml", *needed])
