"""Every kind of model that drafts has a row, a file and a line in the docs. A preset is exactly the
flags of its row, its text is the target's own, and one architecture measures it.
"""

from __future__ import annotations

from contextlib import closing
from pkgutil import iter_modules
from typing import Any

import pytest

import outrider.draft_methods
from grpc_comm.server.server import BackgroundServer
from inference.errors import InvalidRequest
from outrider.endpoint.target_manager import TargetManager, TargetSettings
from outrider.measure.run import ARCHITECTURES
from outrider.options.commands import parse
from outrider.options.draft_flags import METHODS, PRESETS
from outrider.options.roles import DraftRole, FusedTargetRole, ServeRole, TargetRole
from outrider.target.target import load_target
from tests.support.commands import Run
from tests.support.refusals import assert_refused
from tests.support.repository import ROOT

PROMPT = "".join(f"def {name}(a, b):\n    return a + b\n\n\n" for name in ("add", "plus", "sum"))
ACCEPTED = {
    "vanilla": set[str](),
    "classic_sd": {"model"},
    "tree_sd": {"model"},
    "adaptive": {"model"},
    "suffix": {"copy"},
    "hybrid": {"model", "copy"},
    "eagle_sd": {"host", "copy"},
    "subspec_sd": {"model"},
}
"""Who may have named an accepted token."""

SERVED = FusedTargetRole(port=0, batch=2, sequence_length=256)
"""With a draft beside the target, which no preset asks."""


def words(preset: str) -> list[str]:
    """The flags of a preset, as a user types them."""
    flags = PRESETS[preset].items()
    return [word for name, value in flags for word in (f"--{name}", str(value))]


# --- methods


def test_every_method_has_its_file_and_methods_and_presets_are_on_the_page_of_runs() -> None:
    files = {module.name for module in iter_modules(outrider.draft_methods.__path__)}
    assert files == set(METHODS)
    page = (ROOT / "docs" / "runs.md").read_text(encoding="utf-8")
    for name, method in METHODS.items():
        assert f"| `{name}` | {method.help} |" in page
    for preset in PRESETS:
        (row,) = (line for line in page.splitlines() if line.startswith(f"| `{preset}` |"))
        assert row.endswith(f"| `{' '.join(words(preset))}` |")
    assert {*ARCHITECTURES.values(), "subspec_sd"} == {*PRESETS, ""}  # and of the comparison


@pytest.mark.parametrize("name", METHODS)
def test_a_model_drafts_only_where_its_row_says(name: str) -> None:
    for role, may in ((DraftRole, METHODS[name].local), (FusedTargetRole, True)):
        if may:
            assert role(draft=f"{name},copy").method == name
        else:
            assert_refused(lambda: DraftRole(draft=name), [f"--draft {name}"])


# --- presets


@pytest.mark.parametrize("role", ["draft", "chat", "serve"])
@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_the_flags_that_it_stands_for(role: str, preset: str) -> None:
    named = parse(["--role", role, "--preset", preset])
    assert named.replace(preset=None) == parse(["--role", role, *words(preset)])


@pytest.mark.covering(1)
@pytest.mark.parametrize("temperature", ["0", "0.7", "1"])
@pytest.mark.parametrize("preset", PRESETS)
def test_the_text_of_every_preset_is_the_targets_own(
    port: str, run: Run, preset: str, temperature: str
) -> None:
    flags = ["--preset", preset, "--temperature", temperature, "--seed", "3", "--baseline"]
    text = ["--prompt", PROMPT, "--max_new_tokens", "12", "--json", "--port", port]
    (record,) = run("run", *text, *flags).records
    assert record["token_ids"] == record["baseline"]["token_ids"]
    assert set(record["accepted_by"]) <= ACCEPTED[preset]
    if preset in ("classic_sd", "tree_sd"):  # these wait for their draft; the others may be late
        assert record["lone_forwards"] < record["forwards"]
        assert record["draft_calls"] > 0
    assert sum(record["accepted_by"].values()) == record["num_accepted_tokens"]
    assert record["baseline"]["accepted_by"] == {}
    if preset in ("vanilla", "suffix", "eagle_sd"):  # no model drafts here
        assert (record["draft_calls"], record["draft_seconds"]) == (0, 0.0)
    if preset == "vanilla":
        assert record["forwards"] == record["lone_forwards"]


def test_a_size_that_is_given_takes_the_place_of_the_presets() -> None:
    assert DraftRole(preset="classic_sd", gamma=7).gamma == 7
    tree = DraftRole(preset="tree_sd", tree_nodes=8)
    assert (tree.tree_nodes, tree.tree_depth) == (8, 6)


@pytest.mark.parametrize(
    ("given", "needed"),
    [
        ({"preset": "eagle"}, ["--preset eagle", "vanilla, classic_sd", "subspec_sd is needed"]),
        ({"preset": "hybrid", "gamma": 2}, ["--preset hybrid stands for --draft", "--gamma"]),
        ({"preset": "vanilla", "gamma": 2}, ["--preset vanilla stands", "--gamma"]),
        ({"preset": "suffix", "tree_nodes": 2}, ["--preset suffix stands", "--tree_nodes"]),
        ({"preset": "classic_sd", "tree_nodes": 2}, ["--preset classic_sd", "--tree_nodes"]),
        ({"preset": "classic_sd", "cs": "50"}, ["--preset classic_sd stands", "--cs"]),
        ({"preset": "suffix", "draft": "model"}, ["stands for --draft copy", "got --draft model"]),
    ],
)
def test_a_contradiction_is_told_with_what_the_preset_stands_for(
    given: dict[str, Any], needed: list[str]
) -> None:
    assert_refused(lambda: DraftRole(**given), needed)
    with pytest.raises(InvalidRequest, match=r"^--instance"):  # the preset has no part in it
        DraftRole(preset="hybrid", instance="trn1.2xlarge", usd_per_hour=1.0)


def test_the_page_of_a_server_with_a_preset_can_still_choose_who_drafts(port: str) -> None:
    with closing(TargetManager(ServeRole(port=int(port), preset="vanilla"))) as manager:
        assert manager.open().client.draft is None
        drafted = manager.open(TargetSettings(address=f"127.0.0.1:{port}"))
        assert drafted.client.draft is not None


def test_a_target_without_a_draft_makes_the_text_alone_and_the_client_says_so(run: Run) -> None:
    text = ["--prompt", "def main(argv):", "--max_new_tokens", "12", "--seed", "3", "--json"]
    with BackgroundServer(load_target(TargetRole(port=0, batch=1))) as server:
        made = run("fused_client", "--port", server.address.port, *text)
    (record,) = made.records
    assert record["forwards"] == record["lone_forwards"] == len(record["token_ids"])
    assert "draft beside the target: none" in made.err
