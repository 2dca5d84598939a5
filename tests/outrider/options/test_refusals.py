"""A command line that cannot be understood or contradicts itself gets one line, which names the
flag and its wrong value, or what may have been meant.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from inference.cost.billing import Billing
from outrider.money import RunBudget
from outrider.options.roles import DraftRole
from tests.support.commands import Run
from tests.support.refusals import assert_refused

SLIPS: list[tuple[str, ...]] = [
    ("run --promt x", "--promt", "did you mean --prompt?"),
    ("run --max-new-tokns 3", "did you mean --max_new_tokens?"),
    ("--role darft", "darft", "did you mean draft?"),
    ("rnu --prompt x", "unknown command 'rnu'", "did you mean run?"),
    ("serv", "did you mean serve?"),
    ("target --log jsn", "--log jsn", "did you mean json?"),
    ("target --dtype float23", "--dtype float23", "did you mean float32?"),
    ("serve --dtyp int8", "did you mean --dtype?"),
    ("target serve", "unexpected argument 'serve'"),
    ("draft", "unknown command 'draft'"),
    ("run --new_tokens 3", "there is no flag --new_tokens; did you mean --max_new_tokens?"),
    ("help rnu", "did you mean run?"),
    ("target --prompt hi", "--prompt is for run, fused_client, "),
    ("--port 1", "a command is needed", "target", "draft"),
    ("run --batch", "--batch needs a value", "1 or more", "got nothing"),
    ("run --port --json", "--port needs a value", "got --json"),
    ("deploy prices --spot=1", "--spot is a switch"),
    ("keys", "--name", "--keys_file"),
    ("compile --targt cpu", "did you mean --target?"),
    ("compile --target trm1", "did you mean trn1?"),
    ("compile build", "unexpected argument 'build'"),
    ("deploy price", "did you mean prices?"),
    ("deploy", "a command is needed"),
    ("deploy prices --regoin x", "did you mean --region?"),
    ("deploy prices --spott", "did you mean --spot?"),
    ("compare --rttt 3", "did you mean --rtt?"),
    ("compare --architectures fuzed", "did you mean fused?"),
    ("compare now", "unexpected argument 'now'"),
    ("runs", "--file"),
]
VALUES = {
    "port": "65536",
    "batch": "0",
    "threads": "0",
    "sequence_length": "0",
    "max_new_tokens": "1.5",
    "temperature": "-1",
    "top_p": "1.5",
    "top_k": "257",
    "seed": str(2**63),
    "gamma": "-1",
    "tree_nodes": "0",
    "patience": "inf",
    "draft_watts": "-5",
    "target_watts": "nan",
    "usd_per_hour": "0",
    "usd_per_kwh": "-1",
    "usd_per_gb": "inf",
    "min_tps": "0",
    "max_usd": "nan",
    "cs": "101",
    "device": "cuda:x",
    "draft": "modl",
}
"""A value that a flag of a draft cannot have."""

NEEDING: list[tuple[str, ...]] = [
    ("serve --origins a.example", "--origins", "https://HOST", "a.example"),
    ("serve --origins https://", "--origins", "got https://"),
    ("run --temperature 1e-5", "temperature", "0.001", "1e-05"),  # float32 cannot tell it from 0
    ("run --target_host localhost:x", "HOST:PORT", "localhost:x"),
    ("run --tls_cert x", "--tls_key"),
    ("target --metrics_port x", "--metrics_port x", "HOST:PORT"),
    ("run --region eu-west-1", "--region", "--instance"),
    ("target --tensor_parallel 4", "--tensor_parallel", "--device neuron-legacy"),
    ("verify_target --batch 8", "--batch", "one text"),
    ("run --draft none --gamma 4", "--draft none", "--gamma"),
    ("fused_target --draft copy", "--draft model", "got copy"),
    ("target --layer_offload tape", "--layer_offload tape", "host, disk"),
    ("target --layer_offload disk --artifact x", "--layer_offload", "--artifact"),
]
EXCLUDED: list[dict[str, Any]] = [
    {"gamma": 3, "tree_nodes": 4},
    {"gamma": 3, "cs": "50"},
    {"tree_depth": 3, "cs": "50"},
    {"tree_nodes": 8, "min_tps": 1.0},
    {"tree_nodes": 8, "draft": "copy"},
    {"tree_nodes": 8, "draft": "copy,beside"},
    {"instance": "trn1.2xlarge", "usd_per_hour": 1.0},
    {"min_tps": 1.0, "cs": "50"},
    {"draft_quantization": "int8", "draft": "copy"},
]


@pytest.fixture(autouse=True)
def no_role_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.cli.run_role", lambda _options: 0)


@pytest.mark.parametrize("slip", [*SLIPS, *NEEDING], ids=lambda slip: slip[0])
def test_a_slip_gets_one_line_that_names_what_was_meant(run: Run, slip: tuple[str, ...]) -> None:
    words, *shown = slip
    run(*words.split()).assert_usage_error(*shown)


def test_a_name_that_is_far_from_all_or_a_flag_of_another_command_is_not_suggested(
    run: Run,
) -> None:
    for slip in ("serve --temprature 1", "chat --api_key x", "run --usd x", "up --explain"):
        refused = run(*slip.split())
        refused.assert_usage_error(f"there is no flag {slip.split()[1]}")
        assert "did you mean" not in refused.err


@pytest.mark.parametrize(("flag", "value"), VALUES.items())
def test_a_value_that_cannot_be_is_refused_with_its_flag(run: Run, flag: str, value: str) -> None:
    run("run", "--prompt", "x", f"--{flag}", value).assert_usage_error(f"--{flag} {value}")


@pytest.mark.parametrize("given", EXCLUDED, ids=str)
def test_flags_that_exclude_each_other_are_both_named(given: dict[str, Any]) -> None:
    for name, value in given.items():
        if name != "draft_quantization":
            DraftRole(**{name: value})
    first, second = given
    assert_refused(lambda: DraftRole(**given), [f"--{first}", f"--{second}"])


SOURCES = ("model,model", "copy,copy", "", "model,", "none,copy", "model,beside")
HOSTS = ("dns:///", "dns:///:1", "a:1,", "dns://a:1")


def test_bounds_hold_also_for_options_that_are_made_in_code_and_for_changes() -> None:
    assert DraftRole(gamma=3).replace(gamma=4).gamma == 4
    assert DraftRole(gamma=3).replace(gamma=None, cs="cost").cs == "cost"
    refused: list[tuple[Callable[[], object], list[str]]] = [
        (lambda: DraftRole(batch=0), ["--batch 0"]),
        (lambda: DraftRole(gamma=3).replace(cs="cost"), ["--gamma", "--cs"]),
        (lambda: RunBudget(Billing(), 1.0), ["--max_usd", "--usd_per_hour"]),
        *((partial(DraftRole, draft=sources), ["--draft"]) for sources in SOURCES),
        *((partial(DraftRole, target_host=host), ["HOST"]) for host in HOSTS),
    ]
    for call, shown in refused:
        assert_refused(call, shown)
