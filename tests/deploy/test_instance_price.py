"""The price of an instance: which row of AWS's replies is taken, and that nothing is made up."""

from __future__ import annotations

import json
import os
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from deploy.ec2 import RunningInstance
from deploy.instance import Market
from deploy.prices import (
    ON_DEMAND_TERMS,
    InstancePrices,
    NoPrice,
    Price,
    bundled_prices,
    cost_so_far,
)
from tests.support.cloud import AwsAccount, refused
from tests.support.commands import Run
from tests.support.refusals import assert_refused

TRN1 = ("trn1.2xlarge", "us-east-1")
FAR = ("trn1.2xlarge", "us-west-2")  # the bundled table has no such row
TERMS = {"instanceType": FAR[0], "regionCode": FAR[1]} | ON_DEMAND_TERMS
NOW = datetime.now(UTC)


@pytest.fixture(autouse=True)
def nobodys_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No credentials, no instance metadata, no cache of this machine's user."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def hourly(usd: str, **attributes: str) -> str:
    """A row of the price list."""
    rate = {"unit": "Hrs", "pricePerUnit": {"USD": usd}, "beginRange": "0", "endRange": "Inf"}
    row = {
        "product": {"sku": "SKU", "attributes": TERMS | attributes},
        "terms": {"OnDemand": {"SKU.OFFER": {"priceDimensions": {"SKU.OFFER.0": rate}}}},
    }
    return json.dumps(row)


FREE = hourly("0.0000000000", marketoption="CapacityBlock")
WINDOWS = hourly("1.9000000000", operatingSystem="Windows")


@pytest.mark.parametrize("other", [FREE, WINDOWS])
def test_the_price_is_that_of_a_plain_instance_whatever_page_it_is_on(
    other: str, calls: AwsAccount
) -> None:
    def reply(_account: AwsAccount, request: dict[str, Any]) -> dict[str, Any]:
        requests.append(request)
        first, second = {"PriceList": [other], "NextToken": "more"}, [hourly("1.3437500000")]
        return {"PriceList": second} if "NextToken" in request else first

    requests: list[dict[str, Any]] = []
    calls.faults["GetProducts"] = reply
    before = datetime.now(UTC).date()
    price = InstancePrices().find(*FAR)
    assert before <= price.as_of <= datetime.now(UTC).date()  # the same day, except over midnight
    assert (price.usd_per_hour, price.source) == (1.34375, "AWS price list")
    rows = [{"Type": "TERM_MATCH", "Field": name, "Value": of} for name, of in TERMS.items()]
    request = {"ServiceCode": "AmazonEC2", "FormatVersion": "aws_v1", "Filters": rows}
    assert requests == [request, request | {"NextToken": "more"}]
    assert TERMS["marketoption"] == "OnDemand"
    assert TERMS["operatingSystem"] == "Linux"


@pytest.mark.parametrize(
    ("usd", "shown"), [(["0.0000000000"], ["us-west-2"]), (["1.3", "1.4"], ["$1.3", "$1.4"])]
)
def test_a_row_at_no_dollars_alone_and_two_different_prices_are_no_price(
    usd: list[str], shown: list[str], calls: AwsAccount
) -> None:
    calls.faults["GetProducts"] = lambda *_: {"PriceList": [hourly(each) for each in usd]}
    assert_refused(lambda: InstancePrices().find(*FAR), shown, NoPrice)


def test_a_throttled_call_leaves_the_bundled_price_and_the_next_is_made(
    calls: AwsAccount, capsys: pytest.CaptureFixture[str]
) -> None:
    prices = InstancePrices()
    calls.faults["GetProducts"] = refused("ThrottlingException")
    price = prices.find(*TRN1)
    assert (price.usd_per_hour, price.as_of) == (1.34375, date(2026, 9, 24))
    assert "throttles GetProducts" in capsys.readouterr().err
    calls.faults["GetProducts"] = refused("AccessDeniedException")
    assert_refused(lambda: prices.find(*FAR), ["denies GetProducts"], NoPrice)
    calls.faults["GetProducts"] = lambda *_: {"PriceList": [hourly("1.4")]}
    assert prices.find(*FAR).usd_per_hour == 1.4


PRICE_LIST, SPOT = "GetProducts", "DescribeSpotPriceHistory"


def test_refused_credentials_silence_no_other_price_and_are_not_tried_again(
    calls: AwsAccount,
) -> None:
    def spot(account: AwsAccount, request: dict[str, Any]) -> dict[str, Any]:
        if account.region == "us-west-2":
            refused("ExpiredToken")(account, request)
        row = {"SpotPrice": "0.5", "ProductDescription": "Linux/UNIX", "Timestamp": NOW}
        return {"SpotPriceHistory": [row | {"AvailabilityZone": "a"}]}

    calls.faults = {PRICE_LIST: refused("ExpiredToken"), SPOT: spot}
    prices, markets = InstancePrices(), list[Market](["on-demand", "spot"])
    for market in markets * 2:
        assert_refused(partial(prices.find, *FAR, market), ["ExpiredToken"], NoPrice)
        assert prices.find(*TRN1, "spot").usd_per_hour == 0.5
    assert (calls.calls.count(PRICE_LIST), calls.calls.count(SPOT)) == (1, 1 + 4)
    calls.faults[PRICE_LIST] = lambda *_: {"PriceList": [hourly("1.4")]}
    prices = InstancePrices()
    assert_refused(partial(prices.find, *FAR, "spot"), ["ExpiredToken"], NoPrice)
    assert prices.find(*FAR).usd_per_hour == 1.4


def test_without_credentials_the_bundled_price_holds_and_a_note_says_why_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    prices = InstancePrices()
    for _ in range(2):
        assert prices.find(*TRN1).as_of == date(2026, 9, 24)
    assert capsys.readouterr().err.count("there are no AWS credentials here") == 1


def test_spot_is_the_cheapest_zone_now_and_names_it(calls: AwsAccount) -> None:
    def row(zone: str, usd: str, hours: int, product: str = "Linux/UNIX") -> dict[str, Any]:
        named = {"AvailabilityZone": zone, "SpotPrice": usd, "ProductDescription": product}
        return named | {"Timestamp": NOW - timedelta(hours=hours)}

    def reply(_account: AwsAccount, request: dict[str, Any]) -> dict[str, Any]:
        del request["StartTime"]
        assert request == {"InstanceTypes": [TRN1[0]], "ProductDescriptions": ["Linux/UNIX"]}
        return {
            "SpotPriceHistory": [
                row("us-east-1b", "0.4000", 1),
                row("us-east-1b", "0.1000", 9),
                row("us-east-1c", "0.3000", 2, "Linux/UNIX (Amazon VPC)"),
                row("us-east-1f", "0.4813", 1),
                row("us-east-1f", "0.0100", 1, "Windows"),
            ]
        }

    calls.faults[SPOT] = reply
    price = InstancePrices().find(*TRN1, "spot")
    assert price.usd_per_hour == 0.3
    assert price.source == "EC2 spot history, us-east-1c, the cheapest of 3 zones, median $0.4"


@pytest.mark.parametrize(
    ("instance", "market", "live", "says"),
    [
        (("trn2.48xlarge", "us-east-2"), "on-demand", True, "capacity blocks and spot only"),
        (("trn2.3xlarge", "us-east-2"), "capacity-block", True, "paid beforehand"),
        (FAR, "on-demand", False, "us-east-1"),
        (TRN1, "spot", False, "us-east-1"),
    ],
)
@pytest.mark.usefixtures("calls")
def test_prices_of_capacity_blocks_other_regions_and_spot_are_not_guessed(
    instance: tuple[str, str], market: Market, live: bool, says: str
) -> None:
    assert_refused(lambda: InstancePrices(live=live).find(*instance, market), [says], NoPrice)


def test_the_bundled_prices_are_not_too_old() -> None:
    age = (NOW.date() - bundled_prices().as_of).days
    assert age <= 400, f"deploy/data/ec2_prices.json is {age} days old: take the prices of today"


def test_an_instance_costs_its_hours_until_it_ended() -> None:
    began = NOW - timedelta(hours=5)
    ended = began + timedelta(hours=2)
    instance = RunningInstance(
        "i-1", TRN1[0], "terminated", "us-east-1b", "", began, {}, "by its timer", ended
    )
    assert cost_so_far(instance, TRN1[1]).startswith("$2.6875 so far for the instance alone, at $1")
    assert cost_so_far(instance, FAR[1]).startswith("not known: no price for trn1.2xlarge")


def test_the_table_fits_80_columns_and_json_has_every_price_that_is_known(run: Run) -> None:
    shown = run("deploy", "prices")
    assert max(map(len, shown.out.splitlines())) <= 80
    assert shown.out.count("20260924211011") == shown.out.count("2026-09-24") == 1
    assert all(part in shown.out for part in ("us-east-1, on-demand", "1.34375"))
    priced = {name for name, row in bundled_prices().types.items() if row.usd_per_hour}
    assert all(name in shown.out for name in priced)
    rows = json.loads(run("deploy", "prices", "--json").out)
    assert {row["instance_type"] for row in rows} == priced
    first = next(row for row in rows if row["instance_type"] == "trn1.2xlarge")
    first["as_of"] = date.fromisoformat(first["as_of"])
    assert Price(**first) == InstancePrices(live=False).find(*TRN1)


def test_another_regions_prices_are_the_bundled_ones_and_say_so(run: Run) -> None:
    far = run("deploy", "prices", "--region", "us-west-2")
    (line,) = far.err.splitlines()
    assert far.code == 1
    assert "in us-west-2" in line
    assert far.out.splitlines()[:2] == [
        "the bundled prices of another region, for comparison:",
        "us-east-1, on-demand",
    ]
    assert "1.34375" in far.out
    unpriced = run("deploy", "prices", "--region", "us-west-2", "--json")
    assert (unpriced.code, unpriced.out) == (1, "")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--instance x9.large", "no price for x9.large"),
        ("--instance trn1", "trn1"),
        ("--region Oregon", "Oregon"),
        ("--instance trn2.48xlarge", "trn2.48xlarge"),
    ],
)
def test_the_command_refuses_in_one_line_without_an_empty_table(
    flags: str, says: str, run: Run
) -> None:
    refusal = run("deploy", "prices", *flags.split())
    (line,) = refusal.err.splitlines()
    assert (refusal.code, refusal.out, says in line) == (1, "", True)
