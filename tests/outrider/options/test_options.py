"""Flags, environment and files become the options of a role, which reads each of them, or a line
that says what is wrong.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any, get_args

import pytest

from grpc_comm.security import SecurityOptions
from inference.cost.billing import OBJECTIVES
from inference.errors import InvalidRequest
from inference.flags.group import Flag, Group, flags_of
from outrider.cli import run_role
from outrider.models.found_model import EMBEDDED
from outrider.options.commands import OTHER_VERBS, VERBS, all_flags, parse, verbs_with
from outrider.options.groups import Objective
from outrider.options.roles import ROLES, DraftRole, FusedTargetRole, TargetRole
from tests.support.commands import Run
from tests.support.flags_page import TITLES, reference
from tests.support.repository import ROOT

FLAGS = [flag for name, flag in all_flags().items() if name != "role"]
VALUES = {
    "device": "cpu", "cs": "50", "draft": "model", "preset": "adaptive",
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_role_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["main.py"])
    monkeypatch.setattr("outrider.cli.run_role", lambda _options: 0)


def a_value(flag: Flag) -> list[str]:
    if flag.kind is bool:
        return [f"--{flag.name}"]
    return [f"--{flag.name}", flag.choices[0] if flag.choices else VALUES.get(flag.name, "1")]


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
    assert (options.batch, options.seed, options.top_k) == (4, 3, 2)
    assert (options.prompt, options.as_json) == ("x", True)
    assert parse(["--config", str(file)]).values()["json"]
    assert not parse(["--config", str(file), "--no-json"]).values()["json"]


def test_the_environment_is_of_all_roles_and_of_no_options_that_are_made_in_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OUTRIDER_TARGET_HOST", "there:1")
    monkeypatch.setenv("OUTRIDER_BATCH", "3")
    assert parse(["--role", "draft"]) == DraftRole(target_host="there:1", batch=3)
    assert parse(["--role", "target"]) == TargetRole(batch=3)
    assert TargetRole().batch == 4


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("batsh: 3", ["batsh", "did you mean batch?"]),
        ("tree_nodes: 3", ["tree_nodes", "run, chat", "target"]),
        ("batch: 0", ["batch 0", "1 or more"]),
        ("batch: [1]", ["batch", "a whole number"]),
        ("device: cud", ["device cud", "cuda:N"]),
        ("- batch", []),
        ("{", ["cannot be read"]),
        (None, []),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_the_file(
    run: Run, tmp_path: Path, text: str | None, words: list[str]
) -> None:
    file = tmp_path / "run.yaml"
    if text is not None:
        file.write_text(text)
    run("target", "--config", file).assert_usage_error(str(file), *words)


def test_what_is_wrong_in_the_environment_is_named_by_its_variable(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value, shown in (
        ("BATCH", "none", "OUTRIDER_BATCH none"),
        ("BATSH", "1", "did you mean OUTRIDER_BATCH?"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(f"OUTRIDER_{name}", value)
            run("target").assert_usage_error(f"OUTRIDER_{name}", shown)


# --- the command line


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_a_flag_is_refused_in_every_role_where_it_does_nothing(run: Run, flag: Flag) -> None:
    for verb in set(VERBS) - set(verbs_with(flag.name)):
        refused = run("--role", VERBS[verb], *a_value(flag))
        refused.assert_usage_error(f"--{flag.name} is for", *verbs_with(flag.name))


def test_other_names_and_dashes_are_the_same_flag() -> None:
    for words in (["--speculation-length", "3"], ["--speculation_length=3"], ["--gamma", "3"]):
        assert parse(["--role", "draft", *words]) == DraftRole(gamma=3)
    legacy = TargetRole(device="neuron-legacy", tensor_parallel=4)
    assert parse(["target", "--device", "neuron-legacy", "--tp_degree", "4"]) == legacy
    assert parse(["--role", "target", "--rows", "2"]) == TargetRole(batch=2)
    assert parse(["--role", "draft", "--prompt_file", "a"]) == DraftRole(prompt_text="a")
    assert parse(["target", "--device", "cuda:1"]) == TargetRole(device="cuda:1")
    assert parse(["target", "--dtype", "auto"]) == parse(["target"])


def test_the_systems_authorities_verify_a_target_and_metrics_stay_on_this_machine() -> None:
    connection = DraftRole(tls_ca="system")
    assert connection.security == SecurityOptions(tls=True)
    assert TargetRole(tls_ca="system").security.tls_ca == Path("system")  # a file of that name
    assert TargetRole().metrics is None
    assert TargetRole(metrics_port="7").metrics == ("127.0.0.1", 7)
    assert TargetRole(metrics_port="[::]:7").metrics == ("::", 7)


# --- what is shown


def test_the_help_has_every_command_once_and_fits_a_screen(run: Run) -> None:
    for words in ("--help", "help", "--help-all"):
        said = run(words)
        assert (said.code, said.err) == (0, ""), words
        assert len(said.out.splitlines()) <= 60
        every = [*VERBS, *OTHER_VERBS]
        assert [verb for verb in every if said.out.count(f"\n  {verb} ") != 1] == []
    assert run() == (2, "", run("--help").out)
    for words in ("--version", "version"):
        assert run(words).out.startswith("outrider ")


# --- verbs


def flags_in(shown: str) -> set[str]:
    """The flags that a help lists."""
    return set(re.findall(r"(?m)^  --(\w+)", shown))


@pytest.mark.parametrize(("verb", "role"), VERBS.items())
def test_a_verb_is_its_role(verb: str, role: str) -> None:
    more = {"pull": ["x"], "keys": ["--name", "a", "--keys_file", "k"]}.get(verb, [])
    flags = {"pull": ["--name", "x"]}.get(verb, more)
    assert parse([verb, *more]) == parse(["--role", role, *flags])


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_command_shows_its_common_flags_and_the_other_all_of_them(
    verb: str, run: Run
) -> None:
    model = ROLES[VERBS[verb]]
    shown = run(verb, "--help")
    assert shown.code == 0
    assert shown.out == run("help", verb).out == run("--role", VERBS[verb], "--help").out
    assert flags_in(shown.out) == set(model.COMMON)
    assert len(model.COMMON) <= 15
    assert "--help-all" in shown.out
    assert flags_in(run(verb, "--help-all").out) == set(flags_of(model))


@pytest.mark.parametrize("verb", OTHER_VERBS)
def test_other_verbs_are_commands_with_a_help(verb: str, run: Run) -> None:
    shown = run("help", verb)
    assert shown.code == 0
    assert "usage" in shown.out
    assert len(flags_in(shown.out)) <= 15
    assert flags_in(shown.out) <= flags_in(run(verb, "--help-all").out)


def test_a_prompt_may_stand_without_its_flag_before_or_behind_flags() -> None:
    asked = DraftRole(prompt="x", batch=2)
    for words in (["x", "--batch", "2"], ["--batch", "2", "x"], ["--batch=2", "--prompt", "x"]):
        assert parse(["run", *words]) == asked
    assert parse(["run", "-"]) == DraftRole(prompt="-")


def test_a_help_shows_what_may_follow_a_verb_and_a_default_as_a_user_would_write_it(
    run: Run,
) -> None:
    assert "pull [NAME] [FLAG VALUE ...]" in run("pull", "--help").out
    shown = " ".join(run("compare", "--help-all").out.split())
    assert "(default: 0,40)" in shown
    assert "(default: (" not in shown


def test_every_flag_has_a_help_a_place_in_it_and_its_line_on_the_page_of_flags() -> None:
    assert all(flag.help and flag.title in TITLES for flag in FLAGS)
    assert (ROOT / "docs" / "flags.md").read_text(encoding="utf-8") == reference()
    assert set(get_args(Objective)) == set(OBJECTIVES)


START = {"role", "config", "debug", "target", "preset"}
OF_CLIENTS: dict[str, Any] = {"region": "eu-west-1", "spot": True}
WITH_ANOTHER: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("draft", "chat", "serve", "up"), OF_CLIENTS),
    "target": {"tensor_parallel": 4},
    "verify_target": {"tensor_parallel": 4, "batch": 8},
}
"""Flags of a role that need another one."""

TEXT = {"prompt": "x", "max_new_tokens": 2}
SERVED = FusedTargetRole(port=0, batch=1, max_tree_nodes=8)


@pytest.mark.parametrize("role", ROLES)
def test_a_role_reads_its_flags(
    role: str, port: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("outrider.target.target.serve_target", lambda *_given: None)
    monkeypatch.setattr("uvicorn.Server.run", lambda *_given: None)
    monkeypatch.setattr("sys.stdin", io.StringIO("x\n"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    there: dict[str, Any] = {"port": int(port)}
    client, chatting = {**TEXT, **there}, {"max_new_tokens": 2, **there}
    serving = {**there, "http_port": 0}
    waits = {"tree_nodes": 4}  # for the draft
    runs: dict[str, list[dict[str, Any]]] = {
        "draft": [client | {"baseline": True}, client | waits],
        "fused_client": [client],
        "verify_target": [TEXT],
        "verify_draft": [TEXT],
        "target": [{"port": 0}],
        "fused_target": [{"port": 0}],
        "cert": [{"out": str(tmp_path / "certificates")}],
        "keys": [{"name": "a", "keys_file": str(tmp_path / "keys.json")}],
        "chat": [chatting, chatting | waits],
        "serve": [serving, serving | waits],
        "up": [serving | {"name": "embedded"}, serving | waits | {"name": "embedded"}],
        "pull": [{"name": str(EMBEDDED / "draft")}],
        "list": [{}],
        "doctor": [there, there | {"health": True}],
    }
    options = [ROLES[role](**given) for given in runs[role]]
    read: set[str] = set()
    original = Group.__getattribute__

    def noting(self: Group, name: str) -> Any:
        read.add(name)
        return original(self, name)

    monkeypatch.setattr(Group, "__getattribute__", noting)
    for given in options:
        run_role(given)
    monkeypatch.undo()
    fields = ROLES[role].model_fields.keys() - START
    needing = WITH_ANOTHER.get(role, {})
    assert fields - read == needing.keys() <= flags_of(ROLES[role]).keys()
    for name, value in needing.items():
        with pytest.raises(InvalidRequest, match=f"--{name} needs --"):
            ROLES[role](**{name: value})
