"""Verbs stand for roles and commands, with help that fits a screen."""

from __future__ import annotations

import pytest

from inference.flags.group import flags_of
from outrider.options import parse
from outrider.options.roles import OTHER_VERBS, ROLES, VERBS
from tests.support.commands import Run


@pytest.mark.parametrize(("verb", "role"), VERBS.items())
def test_a_verb_is_its_role(verb: str, role: str) -> None:
    more = {"pull": ["x"], "keys": ["--name", "a", "--keys_file", "k"]}.get(verb, [])
    flags = {"pull": ["--name", "x"]}.get(verb, more)
    assert parse([verb, *more]) == parse(["--role", role, *flags])


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_verb_fits_a_screen(verb: str, run: Run) -> None:
    shown = run(verb, "--help")
    assert shown.code == 0
    assert len(shown.out.splitlines()) <= 32
    assert "--help-all" in shown.out


@pytest.mark.parametrize("role", ROLES)
def test_common_flags_are_flags_of_the_role(role: str) -> None:
    model = ROLES[role]
    assert set(model.COMMON) <= set(flags_of(model))
    assert len(model.COMMON) <= 9
    assert not model.BARE or model.BARE in flags_of(model)


@pytest.mark.parametrize("verb", OTHER_VERBS)
def test_other_verbs_are_commands_with_a_help(verb: str, run: Run) -> None:
    shown = run(verb, "--help")
    assert shown.code == 0
    assert "usage" in shown.out


def test_the_help_of_a_verb_shows_what_may_follow_it(run: Run) -> None:
    assert "pull NAME [FLAG VALUE ...]" in run("pull", "--help").out


@pytest.mark.parametrize("verb", ["compile", "compare", "demo"])
def test_the_help_of_a_command_names_it_as_it_was_called(
    verb: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["outrider", verb, "--help"])
    assert run(verb, "--help").out.startswith(f"usage: outrider {verb} ")


def test_the_whole_help_names_every_role_and_no_verb_twice(run: Run) -> None:
    said = run("--help").out
    assert all(role in said for role in ROLES)
    assert [verb for verb in VERBS if said.count(f"\n  {verb} ") != 1] == []


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_completion_script_knows_verbs_and_flags(shell: str, run: Run) -> None:
    shown = run("--completion", shell).out
    assert "serve" in shown
    assert "http_port" in shown
