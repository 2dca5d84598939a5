"""A file of runs becomes the runs that it names, or one line with the place of what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inference.flags.group import flags_of
from outrider.measure.verbs.runs import read_runs
from outrider.options.commands import parse
from outrider.options.roles import DraftRole, VerifyTargetRole
from tests.support.commands import Run
from tests.support.refusals import assert_refused


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


def test_a_run_is_what_its_flags_are_on_the_command_line(tmp_path: Path) -> None:
    (run,) = read_runs(file_of(tmp_path, "runs: [{prompt: x, preset: tree_sd, tree-nodes: 5}]"))
    words = ["--role", "draft", "--prompt", "x", "--preset", "tree_sd", "--tree_nodes", "5"]
    assert run.options == parse(words)


def test_the_environment_changes_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_MAX_NEW_TOKENS", "3")
    (run,) = read_runs(file_of(tmp_path, "runs: [{prompt: x}]"))
    assert run.options.text.max_new_tokens == 128


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
    ],
)
def test_what_is_wrong_is_told_in_one_line_with_its_place(
    tmp_path: Path, text: str, needed: list[str]
) -> None:
    path = file_of(tmp_path, text)
    assert_refused(lambda: read_runs(path), ["runs.yaml", *needed])


def test_a_sweep_of_too_many_runs_is_refused_before_any_is_made(tmp_path: Path) -> None:
    lists = "".join(f"  {flag}: {list(range(10))}\n" for flag in ("seed", "gamma", "tree_nodes"))
    path = file_of(tmp_path, f"flags:\n{lists}runs: [{{}}, {{}}]\n")
    assert_refused(lambda: read_runs(path), ["more than 1000 runs"])
    endless = "".join(f"  flag{index}: [1, 2, 3]\n" for index in range(20_000))
    path = file_of(tmp_path, f"flags:\n{endless}runs: [{{}}]\n")
    assert_refused(lambda: read_runs(path), ["more than 1000 runs"])


def nested(levels: int) -> str:
    """A list of nine, so many times nested by aliases: 9**levels values, if it is written out."""
    lines = [f"&a0 {[1] * 9}"]
    lines += [f"&a{one} [{', '.join([f'*a{one - 1}'] * 9)}]" for one in range(1, levels)]
    return f"[{', '.join(lines)}]"


@pytest.mark.parametrize("text", ["runs: [{{name: {0}}}]", "runs: {0}", "runs: [{{gamma: {0}}}]"])
def test_what_aliases_nest_is_not_written_out(tmp_path: Path, text: str) -> None:
    path = file_of(tmp_path, text.format(nested(30)))
    assert_refused(lambda: read_runs(path), ["runs"])


@pytest.mark.parametrize("flag", sorted({"role", *flags_of(DraftRole)} - {"config"}))
def test_no_flag_of_a_file_writes_out_what_aliases_nest(
    tmp_path: Path, flag: str, run: Run
) -> None:
    (tmp_path / "config.yaml").write_text(f"{flag}: {nested(30)}\n")
    verb = ["run"] if flag != "role" else []
    run(*verb, "--config", tmp_path / "config.yaml").assert_usage_error(flag)
