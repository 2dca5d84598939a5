"""Both models on one host, as the command line asks for them: the text is the target's own, and the
draft beside it has named some of it.
"""

from __future__ import annotations

import pytest

from grpc_comm.client.connection import connect
from grpc_comm.server.server import BackgroundServer
from outrider.options.roles import FusedTargetRole, TargetRole
from outrider.target.target import load_target
from tests.support.commands import Run

SERVED = FusedTargetRole(port=0, batch=2, sequence_length=256)
TEXT = ["--prompt", "def main(argv):", "--max_new_tokens", "24", "--seed", "3", "--json"]


@pytest.mark.parametrize("temperature", ["0", "0.8"])
def test_the_hosts_draft_makes_the_targets_own_text(port: str, run: Run, temperature: str) -> None:
    flags = ["--port", port, *TEXT, "--baseline", "--temperature", temperature]
    made = run("fused_client", *flags)
    (record,) = made.records
    assert record["token_ids"] == record["baseline"]["token_ids"]
    assert record["text"] == record["baseline"]["text"]
    # none, where the host's draft does not pay and nothing is said twice
    assert sum(record["accepted_by"].values()) == record["num_accepted_tokens"]
    assert set(record["accepted_by"]) <= {"host", "copy"}
    assert record["baseline"]["accepted_by"] == {}
    assert (record["draft_calls"], record["draft_seconds"]) == (0, 0.0)  # none of them here
    assert "with outrider-embedded-draft beside it" in made.err


def test_a_target_says_which_draft_runs_beside_it(port: str) -> None:
    with connect(f"127.0.0.1:{port}") as connection:
        assert connection.description.draft_model == "outrider-embedded-draft"


def test_a_target_without_a_draft_makes_the_text_alone_and_the_client_says_so(run: Run) -> None:
    with BackgroundServer(load_target(TargetRole(port=0, batch=1))) as server:
        made = run("fused_client", "--port", server.address.port, *TEXT)
    (record,) = made.records
    assert record["forwards"] == record["lone_forwards"] == len(record["token_ids"])
    assert "alone: no draft beside it" in made.err
