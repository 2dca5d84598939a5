"""Flags, environment and files become the options of a role, or a line that says what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from compile.compile_options import CompileOptions
from inference.cost.billing import OBJECTIVES
from inference.errors import InvalidRequest
from inference.flags.group import Flag, Group, flags_of, parts_of
from outrider.compare.compare_options import CompareOptions
from outrider.options.groups import Objective
from outrider.options.parsing import TITLES, all_flags, parse, roles_of
from outrider.options.roles import ROLES, DraftRole, TargetRole
from tests.support.flags_page import reference
from tests.support.refusals import assert_refused, assert_usage_error
from tests.support.repository import ROOT

FLAGS = [flag for name, flag in all_flags().items() if name != "role"]
START = {"config", "print_config", "role", "target"}
WITH_ANOTHER = {
    "http_host",
    "http_cert",
    "http_key",
    "metrics_host", "tls_cert", "tls_key", "region", "pricing", "no_live", "tensor_parallel",
    "batch",
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["main.py"])


def a_value(flag: Flag) -> list[str]:
    if flag.kind is bool:
        return [f"--{flag.name}"]
    if flag.choices:
        return [f"--{flag.name}", flag.choices[0]]
    known = {"device": "cpu", "cs": "50", "draft": "model"}
    known["draft_head_tokens"] = "64"
    known["preset"] = "adaptive"
    return [f"--{flag.name}", known.get(flag.name, "1")]


# --- sources


def test_the_command_line_comes_before_the_environment_that_before_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "draft.yaml"
    file.write_text("role: draft\nprompt: x\nbatch: 2\nseed: 2\ntop-k: 2\njson: true\n")
    monkeypatch.setenv("OUTRIDER_BATCH", "3")
    monkeypatch.setenv("OUTRIDER_SEED", "3")
    options = parse(["--config", str(file), "--batch", "4"])
    assert isinstance(options, DraftRole)
    assert (options.batch, options.text.seed, options.text.top_k) == (4, 3, 2)
    assert (options.text.prompt, options.text.as_json) == ("x", True)


def test_a_switch_that_a_file_turns_on_is_turned_off_by_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("chat: true\n")
    words = ["--role", "draft", "--config", str(tmp_path / "run.yaml")]
    assert parse(words).values()["chat"]
    assert not parse([*words, "--no-chat"]).values()["chat"]


def test_the_environment_is_of_all_roles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_TARGET_HOST", "there:1")
    assert parse(["--role", "draft"]) == DraftRole(target_host="there:1")
    assert parse(["--role", "target"]) == TargetRole()


def test_options_that_are_made_in_code_read_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_BATCH", "3")
    assert TargetRole().batch == 4


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("batsh: 3", ["batsh", "did you mean batch?"]),
        ("tree_nodes: 3", ["tree_nodes", "--role draft", "target"]),
        ("batch: 0", ["batch 0", "1 or more"]),
        ("batch: [1]", ["batch", "a whole number"]),
        ("device: cud", ["device cud", "cuda:N"]),
        ("- batch", ["run.yaml"]),
        ("{", ["run.yaml", "cannot be read"]),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_the_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, words: list[str]
) -> None:
    (tmp_path / "run.yaml").write_text(text)
    arguments = ["--role", "target", "--config", str(tmp_path / "run.yaml")]
    assert_usage_error(capsys, parse, arguments, ["run.yaml", *words])


def test_a_file_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--role", "target", "--config", "/nowhere.yaml"]
    assert_usage_error(capsys, parse, arguments, ["/nowhere.yaml"])


@pytest.mark.parametrize(
    ("variable", "value", "shown"),
    [
        ("OUTRIDER_BATCH", "none", "OUTRIDER_BATCH none"),
        ("OUTRIDER_BATSH", "1", "did you mean OUTRIDER_BATCH?"),
    ],
)
def test_what_is_wrong_in_the_environment_is_named_by_its_variable(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str,
    shown: str,
) -> None:
    monkeypatch.setenv(variable, value)
    assert_usage_error(capsys, parse, ["--role", "target"], [variable, shown])


def test_the_printed_configuration_says_where_values_come_from_and_can_be_read_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OUTRIDER_TOP_K", "3")
    words = ["--role", "draft", "--prompt", "a: 'b'\n", "--json"]
    with pytest.raises(SystemExit) as ended:
        parse([*words, "--print-config"])
    printed = capsys.readouterr().out
    assert ended.value.code == 0
    assert "json: true  # --json\n" in printed
    assert "top_k: 3  # OUTRIDER_TOP_K\n" in printed
    assert "batch: 4  # default\n" in printed
    (tmp_path / "run.yaml").write_text(printed)
    again = parse(["--config", str(tmp_path / "run.yaml")])
    assert again.but(config=None) == parse(words)


# --- the command line


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_a_flag_is_refused_in_every_role_where_it_does_nothing(
    capsys: pytest.CaptureFixture[str], flag: Flag
) -> None:
    for role in set(ROLES) - set(roles_of(flag.name)):
        shown = [f"--{flag.name} is for", *roles_of(flag.name)]
        assert_usage_error(capsys, parse, ["--role", role, *a_value(flag)], shown)


@pytest.mark.parametrize("role", ROLES)
def test_a_flag_is_taken_in_every_role_that_has_it(role: str) -> None:
    for flag in flags_of(ROLES[role]).values():
        given = {flag.name: True if flag.kind is bool else a_value(flag)[-1]}
        if flag.name in START | WITH_ANOTHER or role in ("make-key", "pull"):
            continue
        assert ROLES[role](**given) != ROLES[role]() or flag.field.default is not None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--role", "draft", "--promt", "x"], ["--promt", "did you mean --prompt?"]),
        (["--role", "draft", "--max-new-tokns", "3"], ["did you mean --max_new_tokens?"]),
        (["--role", "darft"], ["darft", "did you mean draft?"]),
        (["--role", "draft", "--pace", "wiat"], ["--pace wiat", "did you mean wait?"]),
        (["--role", "target", "--dtype", "float23"], ["did you mean float32?"]),
        (["--role", "target", "serve"], ["serve"]),
        (["darft", "--prompt", "x"], ["darft", "did you mean draft?"]),
        (["--port", "1"], ["--role is needed", "target", "draft"]),
        (["--role", "draft", "--batch"], ["--batch"]),
        (["--role", "make-key"], ["--name", "--keys_file"]),
        (["--role", "draft", "--region", "eu-west-1"], ["--region", "--instance"]),
        (["--role", "target", "--tensor_parallel", "4"], ["--device neuron-legacy"]),
        (["--role", "verify_target", "--batch", "8"], ["one text"]),
        (["--role", "draft", "--draft", "modl"], ["--draft modl", "one of model", "copy", "none"]),
        (["--role", "draft", "--draft", "none", "--gamma", "4"], ["--draft copy", "--gamma"]),
        (["--role", "chat", "--draft", "model", "--copy_history"], ["--draft copy"]),
        (["--role", "fused_target", "--draft", "copy"], ["--draft model", "with copy", "got copy"]),
    ],
)
def test_a_slip_gets_one_line_that_names_what_was_meant(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: list[str]
) -> None:
    assert_usage_error(capsys, parse, arguments, words)


EXCLUDED = [
    {"gamma": 3, "tree_nodes": 4},
    {"tree_depth": 3, "pace": "go_on"},
    {"pace": "wait", "draft": "copy"},
    {"pace": "wait", "cs": "50"},
    {"pace": "wait", "min_tps": 1.0},
    {"gamma": 3, "explain": True},
    {"instance": "trn1.2xlarge", "usd_per_hour": 1.0},
    {"min_tps": 1.0, "max_usd_per_1m": 1.0},
    {"min_tps": 1.0, "cs": "50"},
    {"max_usd_per_1m": 1.0, "objective": "latency"},
    {"max_joules_per_token": 1.0, "objective": "api_cost"},
    {"copy_history": True, "draft": "model"},
    {"draft_quantization": "int8", "draft": "block"},
    {"draft_head_tokens": 100, "draft": "copy"},
]


@pytest.mark.parametrize("given", EXCLUDED, ids=str)
def test_flags_that_exclude_each_other_are_both_named(given: dict[str, Any]) -> None:
    for name, value in given.items():
        if name not in ("copy_history", "draft_quantization", "draft_head_tokens"):
            DraftRole(**{name: value})
    first, second = given
    assert_refused(lambda: DraftRole(**given), [f"--{first}", f"--{second}"])


@pytest.mark.parametrize(
    ("bad", "flag"),
    [({name: value}, f"--{name} {value}") for name, value in {
        "port": 65_536, "batch": 0, "threads": 0, "sequence_length": 0, "temperature": -1.0,
        "top_p": 1.1, "top_k": 257, "gamma": -1, "tree_nodes": 0, "patience": -1.0,
        "target_share": 0.0, "min_tps": 0.0, "max_usd": float("nan"), "seed": 2**63,
    }.items()],
    ids=str,
)  # fmt: skip
def test_bounds_hold_also_for_options_that_are_made_in_code(bad: dict[str, Any], flag: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        DraftRole(**bad)
    assert str(error.value).startswith(flag[:20])


def test_a_change_is_checked_as_well() -> None:
    options = DraftRole(gamma=3)
    assert options.but(gamma=4).gamma == 4
    assert options.but(gamma=None, cs="cost").goal.cs == "cost"
    with pytest.raises(InvalidRequest):
        options.but(cs="cost")


def test_other_names_and_dashes_are_the_same_flag() -> None:
    for words in (["--speculation-length", "3"], ["--speculation_length=3"], ["--gamma", "3"]):
        assert parse(["--role", "draft", *words]) == DraftRole(gamma=3)
    legacy = ["--role", "target", "--device", "neuron-legacy"]
    assert parse([*legacy, "--tp_degree", "4"]) == TargetRole(
        device="neuron-legacy", tensor_parallel=4
    )
    assert parse(["--role", "target", "--rows", "2"]) == TargetRole(batch=2)
    assert parse(["--role", "draft", "--prompt_file", "a"]) == DraftRole(prompt_text="a")


def test_a_profile_is_written_where_it_is_told_and_nowhere_else(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert parse(["--role", "draft", "--profile", "there"]) == DraftRole(profile="there")
    assert_usage_error(capsys, parse, ["--role", "draft", "--profile"], ["--profile"])


# --- what is shown


def test_no_arguments_get_a_few_lines_that_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse([])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert len(said.splitlines()) <= 9
    assert "main.py target" in said


@pytest.mark.parametrize("called", ["outrider", "main.py"])
def test_help_and_errors_name_the_program_as_it_was_called(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, called: str
) -> None:
    monkeypatch.setattr("sys.argv", [f"/some/where/{called}"])
    with pytest.raises(SystemExit):
        parse(["--help"])
    first = capsys.readouterr().out.splitlines()[0]
    assert called in first
    assert_usage_error(capsys, parse, ["--role", "none"], [called])


def test_the_help_of_a_role_has_its_flags_and_no_others(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["--role", "draft", "--help"])
    shown = capsys.readouterr().out.split("\nexamples:")[0]
    assert ended.value.code == 0
    assert all(f"--{name} " in shown or f"--{name}\n" in shown for name in flags_of(DraftRole))
    assert "--metrics_port" not in shown


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("outrider ")


# --- the declarations


def test_every_flag_has_a_help_and_a_place_in_it() -> None:
    for flag in FLAGS:
        assert flag.help
        assert flag.title in TITLES


@pytest.mark.parametrize("model", [*ROLES.values(), CompileOptions, CompareOptions])
def test_no_record_has_more_than_forty_fields(model: type[Group]) -> None:
    assert len(model.model_fields) <= 40
    for part in parts_of(model).values():
        assert len(part.model_fields) <= 40


def test_the_objectives_are_those_that_can_be_computed() -> None:
    assert set(get_args(Objective)) == set(OBJECTIVES)


def test_the_page_of_flags_is_current() -> None:
    assert (ROOT / "docs" / "flags.md").read_text(encoding="utf-8") == reference()
