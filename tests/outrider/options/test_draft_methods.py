"""Every kind of model that drafts has a row, a file and a line in the docs."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

import pytest

import outrider.draft_methods
from inference.errors import InvalidRequest
from outrider.options.draft_methods import METHODS
from outrider.options.group import flags_of
from outrider.options.roles import DraftRole, FusedTargetRole
from tests.support.repository import ROOT


def test_every_row_has_its_file_and_every_file_its_row() -> None:
    files = {module.name for module in iter_modules(outrider.draft_methods.__path__)}
    assert files == set(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_every_file_finds_a_model(name: str) -> None:
    assert callable(import_module(f"outrider.draft_methods.{name}").find)


def test_the_page_of_runs_says_what_each_is() -> None:
    page = (ROOT / "docs" / "runs.md").read_text(encoding="utf-8")
    for name, method in METHODS.items():
        assert f"| `{name}` | {method.help} |" in page


@pytest.mark.parametrize("named", ["model,model", "copy,copy", "", "model,", "none,copy"])
def test_sources_that_are_none_or_said_twice_are_refused(named: str) -> None:
    with pytest.raises(InvalidRequest, match="--draft"):
        DraftRole(draft=named)


@pytest.mark.parametrize("name", METHODS)
def test_a_model_drafts_only_where_its_row_says(name: str) -> None:
    for role, may in ((DraftRole, METHODS[name].here), (FusedTargetRole, True)):
        if may:
            assert role(draft=f"{name},copy").method == name
        else:
            with pytest.raises(InvalidRequest, match=f"--draft {name}"):
                role(draft=name)


def test_the_help_of_the_flag_names_each() -> None:
    told = flags_of(DraftRole)["draft"].help
    assert all(name in told for name in METHODS)
