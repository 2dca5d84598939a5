"""Both models on one host, as the command line asks for them: the text is the target's own, and the
draft beside it has named some of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from grpc_comm.client.connection import connect
from grpc_comm.server.server import BackgroundServer
from outrider.cli import main
from outrider.options.parsing import parse
from outrider.options.roles import FusedTargetRole, TargetRole
from outrider.target.target import load_target


@pytest.fixture(scope="module")
def port() -> Iterator[str]:
    options = FusedTargetRole(port=0, batch=2, sequence_length=256)
    with BackgroundServer(load_target(options)) as server:
        yield str(server.address.port)


def ask(port: str, *flags: str) -> int:
    command = ["--role", "fused_client", "--port", port, "--prompt", "def main(argv):"]
    return main([*command, "--max_new_tokens", "24", "--seed", "3", "--json", *flags])


@pytest.mark.parametrize("temperature", ["0", "0.8"])
def test_the_hosts_draft_makes_the_targets_own_text(
    port: str, capsys: pytest.CaptureFixture[str], temperature: str
) -> None:
    assert ask(port, "--baseline", "--temperature", temperature) == 0
    said = capsys.readouterr()
    (record,) = [json.loads(line) for line in said.out.splitlines()]
    assert record["token_ids"] == record["baseline"]["token_ids"]
    assert record["text"] == record["baseline"]["text"]
    # none, where the host's draft does not pay and nothing is said twice
    assert sum(record["accepted_by"].values()) == record["num_accepted_tokens"]
    assert set(record["accepted_by"]) <= {"host", "copy"}
    assert record["baseline"]["accepted_by"] == {}
    assert (record["draft_calls"], record["draft_seconds"]) == (0, 0.0)  # none of them here
    assert "with outrider-embedded-draft beside it" in said.err


def test_a_draft_elsewhere_and_the_hosts_own_serve_the_same_target(
    port: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(port) == 0
    flags = ["--prompt", "def main(argv):", "--max_new_tokens", "24", "--seed", "3", "--json"]
    assert main(["--role", "draft", "--port", port, *flags]) == 0
    texts = [json.loads(line)["token_ids"] for line in capsys.readouterr().out.splitlines()]
    assert texts[0] == texts[1]


def test_a_target_says_which_draft_runs_beside_it(port: str) -> None:
    with connect(f"127.0.0.1:{port}") as connection:
        assert connection.description.draft_model == "outrider-embedded-draft"


def test_a_target_without_a_draft_makes_the_text_alone_and_the_client_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with BackgroundServer(load_target(TargetRole(port=0, batch=1))) as server:
        assert ask(str(server.address.port)) == 0
    said = capsys.readouterr()
    record = json.loads(said.out)
    assert record["forwards"] == record["lone_forwards"] == len(record["token_ids"])
    assert "alone: no draft beside it" in said.err


@pytest.mark.parametrize("role", ["fused_client", "fused_target", "verify_draft"])
@pytest.mark.parametrize("flag", [["--gamma", "2"], ["--tree_nodes", "9"], ["--pace", "wait"]])
def test_trees_are_asked_for_where_somebody_drafts_them(
    capsys: pytest.CaptureFixture[str], role: str, flag: list[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["--role", role, *flag])
    assert ended.value.code == 2
    assert f"{flag[0]} is for --role draft" in capsys.readouterr().err
