"""--draft substitute by the command line: a rounded checkpoint drafts for a target elsewhere, and a
target's own layers draft beside it. The text is the target's own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from grpc_comm.server.server import BackgroundServer
from inference.backends.substitute import SharedCacheModel
from inference.backends.timed import PROFILES
from outrider.cli import main
from outrider.draft_methods import find_draft
from outrider.models.loading import find_target
from outrider.models.sequence_length import Capacity
from outrider.options.roles import FusedTargetRole
from outrider.target.target import load_target

TEXT = ["--prompt", "def main(argv):", "--max_new_tokens", "24", "--json"]


@pytest.fixture(scope="module")
def port() -> Iterator[str]:
    """Of a target with its own layers beside it, itself read from its files layer by layer."""
    options = FusedTargetRole(
        port=0, batch=2, sequence_length=256, draft="substitute,copy", layer_offload="disk"
    )
    with BackgroundServer(load_target(options)) as server:
        yield str(server.address.port)


@pytest.mark.parametrize("temperature", ["0", "0.7", "1"])
@pytest.mark.parametrize("role", ["draft", "fused_client"])
def test_the_text_is_the_targets_own(
    role: str, temperature: str, port: str, capsys: pytest.CaptureFixture[str]
) -> None:
    drafts = ["--draft", "substitute"] if role == "draft" else []
    command = ["--role", role, "--port", port, *drafts, *TEXT]
    assert main([*command, "--temperature", temperature, "--seed", "3", "--baseline"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["token_ids"] == record["baseline"]["token_ids"]
    assert len(record["token_ids"]) == 24


def test_beside_its_target_it_keeps_keys_of_candidates_only() -> None:
    options = FusedTargetRole(draft="substitute", batch=2, sequence_length=256)
    target = find_target(options).load(options, Capacity(2, 256, 64, 64))
    found = find_draft(options, target)
    draft = found.load(options, Capacity(rows=2, sequence_length=256, spare=40, max_nodes=32)).model
    assert isinstance(draft, SharedCacheModel)
    assert draft.read is target.cache
    assert draft.cache.keys[0].shape == (2, 40 + 1, target.cache.keys[0].shape[2])
    assert draft.decoder.model.embed_tokens is target.decoder.model.embed_tokens


def test_an_emulated_target_has_no_layers_to_round(capsys: pytest.CaptureFixture[str]) -> None:
    profile = next(PROFILES.glob("*.json")).stem
    assert main(["fused_target", "--draft", "substitute", "--emulate", profile, "--port", "0"]) == 1
    assert "name a checkpoint by --draft_model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            ["target", "--layer_offload", "disk", "--artifact", "x"],
            "--layer_offload does not go with --artifact",
        ),
        (["target", "--layer_offload", "host", "--device", "cpu"], "--layer_offload disk"),
        (["target", "--layer_offload", "tape"], "one of host, disk is needed"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    flags: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(flags)
    except SystemExit as ended:
        code = int(ended.code or 0)
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert code in (1, 2)
    assert words in line
