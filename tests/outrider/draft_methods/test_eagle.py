"""--draft eagle: a head beside the target makes the target's own text, and what cannot work is
refused before a text is begun.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from grpc_comm.server.server import BackgroundServer
from inference.errors import UnsupportedModel
from inference.model.checkpoints.config import read_config
from outrider.draft_methods import eagle
from outrider.models.found_model import EMBEDDED
from outrider.options.roles import FusedTargetRole
from outrider.target.target import load_target
from tests.support import heads
from tests.support.commands import Run
from tests.support.models import tiny_model
from tests.support.refusals import assert_refused
from tests.support.scripted import ScriptedModel, useless


@pytest.fixture
def head(tmp_path: Path) -> str:
    """A random head for the embedded target."""
    config = read_config(EMBEDDED / "target")
    raw = heads.raw_config(config, eagle_aux_hidden_state_layer_ids=[2, 4, 6])
    return str(heads.write_head(tmp_path / "head", raw, heads.tensors_of(config)))


@pytest.mark.parametrize("emulated", [False, True])
def test_a_head_beside_the_target_makes_the_targets_own_text(
    head: str, emulated: bool, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also one that guesses at random."""
    options = FusedTargetRole(port=0, batch=1, sequence_length=256, draft="eagle", draft_model=head)
    if emulated:
        options = options.replace(emulate="llama-3.1-8b-trn1.2xlarge-measured")
    with BackgroundServer(load_target(options)) as server:
        flags = ["--prompt", "def main(argv):", "--max_new_tokens", "24", "--seed", "3"]
        flags += ["--temperature", "0.8", "--json", "--baseline"]
        loaded = capsys.readouterr().err
        said = run("fused_client", "--port", server.address.port, *flags)
    (record,) = said.records
    assert record["token_ids"] == record["baseline"]["token_ids"]
    assert f"draft beside the target: {head}" in said.err
    assert "on inputs of layers 2, 4, 6 of outrider-embedded-target" in loaded


def test_a_head_must_be_named() -> None:
    role = FusedTargetRole(draft="eagle")
    assert_refused(lambda: eagle.find(role, tiny_model()), ["--draft eagle", "--draft_model"])


def test_a_target_that_keeps_no_features_is_refused(head: str) -> None:
    role = FusedTargetRole(draft="eagle", draft_model=head)
    target = ScriptedModel(useless, capacity=100)
    assert_refused(lambda: eagle.find(role, target), ["cpu or cuda"], UnsupportedModel)


def test_a_head_for_another_target_is_refused(tmp_path: Path) -> None:
    config = read_config(EMBEDDED / "target")
    raw = heads.raw_config(config, hidden_size=64)
    heads.write_head(tmp_path, raw, heads.tensors_of(config))
    role = FusedTargetRole(port=0, batch=1, draft="eagle", draft_model=str(tmp_path))
    assert_refused(lambda: load_target(role), ["64", "256"], UnsupportedModel)
