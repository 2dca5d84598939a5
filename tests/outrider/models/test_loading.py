"""What is shown while a model is loaded, and what is kept of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import pytest

from inference.backends.neuron import sdk as neuron_sdk
from inference.model.checkpoints.checkpoint import Loading
from outrider.draft_methods import find_draft
from outrider.models.capacity import Capacity
from outrider.models.loading import PREFILL_NODES
from outrider.models.loading_status import loading_status
from outrider.options.groups import DeviceOptions, DraftModelOptions
from outrider.options.roles import TargetRole
from outrider.target.target import load_served
from tests.support.commands import Terminal
from tests.support.models import write_checkpoint_with_tokenizer


def load() -> None:
    find_draft(DraftModelOptions()).load(DeviceOptions(), Capacity(1, 64, 8, PREFILL_NODES))


def test_a_terminal_shows_that_a_model_is_loading_and_nothing_afterwards(
    terminal: Terminal,
) -> None:
    with terminal, loading_status("a [model]") as report:
        assert terminal.shown[0].startswith("loading a [model] ")
        report(Loading(1, 3, 4_000_000_000, 8_000_000_000))
    assert terminal.everything == ""


def test_a_loaded_model_leaves_one_line(terminal: Terminal) -> None:
    with terminal:
        load()
    assert re.fullmatch(r"outrider-embedded-draft: .* loaded in [0-9.]+ s", terminal.everything)


def test_elsewhere_a_large_model_is_announced_and_a_small_one_is_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    load()
    assert len(capsys.readouterr().err.splitlines()) == 1
    with loading_status("a model") as report:
        for read in (0, 1, 2):
            report(Loading(1, 3, read, 8_000_000_000))
    assert capsys.readouterr().err == "loading a model: 3 files, 8.00 GB\n"


@pytest.mark.parametrize(("device", "told"), [("auto", True), ("cpu", False)])
def test_a_target_that_takes_the_cpu_unasked_beside_a_neuron_device_says_so(
    device: Literal["auto", "cpu"],
    told: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "neuron0").touch()
    monkeypatch.setattr(neuron_sdk, "DEVICE", tmp_path / "neuron0")
    load_served(TargetRole(port=0, batch=1, max_tree_nodes=8, sequence_length=64, device=device))
    assert (
        "has an unused Neuron device: --device neuron uses it" in capsys.readouterr().err
    ) == told


def test_a_target_without_an_end_of_text_is_loaded(tmp_path: Path) -> None:
    model = write_checkpoint_with_tokenizer(tmp_path, eos_token_id=None)
    options = TargetRole(
        model=str(model), port=0, batch=1, max_tree_nodes=8, sequence_length=64, device="cpu"
    )
    load_served(options)
