"""What the user asks of adaptive drafting is read from the flags, refused where it contradicts itself, and paid from one purse."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from grpc_comm.server import BackgroundServer
from inference.cost import Rates
from inference.errors import InvalidRequest, OutriderError
from inference.objective import Effort, Terms, Wish
from outrider.cli import main
from outrider.options import Options, parse
from outrider.purse import Purse, open_purse
from outrider.serve import load_target
from outrider.wishes import read_rates, read_terms, read_wish

PRICED = Rates(1.34375, usd_per_kwh=0.36, usd_per_gb_to_target=0.0, usd_per_gb_from_target=0.09)

AT_ONCE = {
    "knob and chain": (["--cs", "50", "--gamma", "3"], ["--cs", "--gamma"]),
    "limit and tree": (["--min_tps", "10", "--tree_nodes", "8"], ["--min_tps", "--tree_nodes"]),
    "explain and rates": (["--explain", "--tree_rates", "0.5"], ["--explain", "--tree_rates"]),
    "architecture and offline": (["--architecture", "auto", "--offline", "draft"], ["--architecture", "--offline"]),
    "two prices": (["--instance", "trn1.2xlarge", "--usd_per_hour", "2"], ["--instance", "--usd_per_hour"]),
    "share over all": (["--target_share", "1.5"], ["--target_share"]),
    "share of nothing": (["--target_share", "0"], ["--target_share"]),
    "negative watts": (["--draft_watts", "-5"], ["--draft_watts"]),
    "negative price": (["--usd_per_kwh", "-1"], ["--usd_per_kwh"]),
    "price without end": (["--usd_per_gb_up", "inf"], ["--usd_per_gb_up"]),
    "price that is no number": (["--target_watts", "nan"], ["--target_watts"]),
}


@pytest.mark.parametrize(("flags", "named"), AT_ONCE.values(), ids=AT_ONCE.keys())
def test_flags_that_contradict_each_other_are_refused_by_name(capsys: pytest.CaptureFixture[str], flags: list[str], named: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["--role", "draft", "--prompt", "x", *flags])
    said = capsys.readouterr().err.splitlines()[-1]
    assert ended.value.code == 2
    assert all(flag in said for flag in named)


@pytest.mark.parametrize("flags", [["--cs", "cost"], ["--min_tps", "9"], ["--no_bets"], ["--max_usd", "1"]], ids=lambda flags: flags[0])
def test_wishes_are_of_the_draft(capsys: pytest.CaptureFixture[str], flags: list[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--role", "verify_target", *flags])
    said = capsys.readouterr().err.splitlines()[-1]
    assert flags[0] in said
    assert "--role draft" in said


CONTRADICTIONS = {
    "two limits": (Options(min_tps=9.0, max_usd_per_1m=5.0), ["--min_tps", "--max_usd_per_1m"]),
    "three limits": (Options(min_tps=9.0, max_usd_per_1m=5.0, max_joules_per_token=1.0), ["--max_joules_per_token"]),
    "knob and limit": (Options(cs="balanced", min_tps=9.0), ["--cs", "limit"]),
    "joules of dollars": (Options(max_joules_per_token=1.0, objective="total_cost"), ["--max_joules_per_token", "--objective"]),
    "dollars of joules": (Options(max_usd_per_1m=5.0, objective="energy_total"), ["--max_usd_per_1m", "--objective"]),
    "knob beyond": (Options(cs="101"), ["--cs"]),
    "knob in words": (Options(cs="cheap"), ["--cs", "cheap"]),
}


@pytest.mark.parametrize(("options", "named"), CONTRADICTIONS.values(), ids=CONTRADICTIONS.keys())
def test_wishes_that_contradict_each_other_are_refused_by_name(options: Options, named: list[str]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_wish(options, PRICED)
    assert all(flag in str(refused.value) for flag in named)


def test_wishes_are_read_from_the_flags() -> None:
    assert read_wish(Options(), None) == Wish("api_cost")
    assert read_wish(Options(cs="balanced", draft_watts=20.0), PRICED) == Wish("total_cost", 0.5)
    assert read_wish(Options(cs="30"), PRICED) == Wish("api_cost", 0.3)  # the draft's electricity is not known
    assert read_wish(Options(cs="30", objective="draft_energy"), PRICED) == Wish("draft_energy", 0.3)
    assert read_wish(Options(max_usd_per_1m=5.0), PRICED) == Wish("api_cost", max_per_token=5e-6)
    assert read_wish(Options(max_joules_per_token=2.0), None) == Wish("energy_total", max_per_token=2.0)
    assert read_wish(Options(min_tps=9.0), PRICED) == Wish("api_cost", min_tps=9.0)


@pytest.mark.parametrize("options", [Options(cs="1"), Options(min_tps=9.0), Options(max_usd_per_1m=5.0), Options(cs="cost", objective="total_cost")])
def test_a_cost_without_a_price_says_how_to_give_one(options: Options) -> None:
    with pytest.raises(InvalidRequest, match=r"--usd_per_hour or --instance"):
        read_terms(options, None, read_wish(options, None))


def test_speed_alone_needs_no_price_and_energy_needs_watts_instead() -> None:
    assert read_terms(Options(), None, Wish()) is None
    options = Options(max_joules_per_token=2.0, draft_watts=20.0)
    terms = read_terms(options, None, read_wish(options, None))
    assert terms is not None
    with pytest.raises(InvalidRequest, match="watts of the target"):
        terms.tariff("energy_total")
    assert replace(terms, target_watts=400.0).tariff("energy_total") == pytest.approx((400.0, 20.0, 0.0, 0.0))


def test_the_price_of_the_target_is_the_users_the_instances_or_its_own_word() -> None:
    assert read_rates(Options(), 0.0) is None
    assert read_rates(Options(), 2.5) == Rates(2.5)
    assert read_rates(Options(usd_per_hour=1.0, usd_per_kwh=0.3, usd_per_gb_up=0.0), 2.5) == Rates(1.0, usd_per_kwh=0.3, usd_per_gb_to_target=0.0)
    listed = read_rates(Options(instance="trn1.2xlarge", no_live=True, usd_per_gb_down=0.5), 2.5)
    assert listed is not None
    assert 1.0 < listed.target_usd_per_hour < 2.0
    assert (listed.usd_per_gb_to_target, listed.usd_per_gb_from_target) == (0.0, 0.5)
    with pytest.raises(OutriderError, match="trn9"):
        read_rates(Options(instance="trn9.2xlarge", no_live=True), 0.0)


def test_a_purse_adds_up_what_each_text_has_taken_so_far() -> None:
    purse = Purse(Terms(Rates(3600.0), target_share=0.5), limit=2.0)
    assert purse.charge(0, Effort(1.0)) == pytest.approx(0.5)
    purse.charge(0, Effort(2.0))
    purse.charge(1, Effort(1.9))
    assert purse.spent == pytest.approx(1.95)
    assert not purse.empty
    purse.charge(1, Effort(2.0))
    assert purse.empty


def test_a_purse_without_a_limit_is_never_empty() -> None:
    purse = open_purse(Options(), PRICED)
    assert purse is not None
    purse.charge(0, Effort(1e9))
    assert purse.spent > 0
    assert not purse.empty


def test_a_limit_that_could_not_be_counted_is_refused() -> None:
    assert open_purse(Options(), None) is None
    with pytest.raises(InvalidRequest, match=r"--max_usd needs a price of the target: give --usd_per_hour"):
        open_purse(Options(max_usd=1.0), None)
    for limit in (0.0, -1.0, float("nan")):
        with pytest.raises(InvalidRequest, match="--max_usd is above 0"):
            open_purse(Options(max_usd=limit), PRICED)


def test_a_run_that_has_spent_its_money_ends_cleanly_with_what_was_made(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("def read_lines(path):\nclass Queue:\n")
    with BackgroundServer(load_target(Options(role="target", port=0, batch=2, max_tree_nodes=16, sequence_length=128))) as server:
        flags = [
            "--role",
            "draft",
            "--port",
            str(server.address.port),
            "--prompt_text",
            str(tmp_path / "prompts.txt"),
            "--max_new_tokens",
            "60",
            "--json",
        ]
        assert main([*flags, "--usd_per_hour", "3600", "--max_usd", "1e-6"]) == 0
        spent = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert main([*flags, "--usd_per_hour", "3600", "--max_usd", "1000", "--gamma", "3"]) == 0
        whole = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [done["finish_reason"] for done in spent] == ["spent"] * 2
    for short, long in zip(spent, whole, strict=True):
        assert long["finish_reason"] == "length"
        made = len(short["token_ids"])
        assert 0 < made < 60
        assert short["token_ids"] == long["token_ids"][:made]
        assert long["text"].startswith(short["text"])
        assert short["usd"] >= 1e-6
        assert short["usd"] == pytest.approx(short["seconds"])  # a dollar a second
