"""The price of an instance: which row of AWS's replies is taken, and that nothing is made up."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.stub import ANY, Stubber

from compile.aws import Aws, AwsDown
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
from tests.support.commands import Run
from tests.support.refusals import assert_refused

TRN1 = ("trn1.2xlarge", "us-east-1")
P5 = ("p5.48xlarge", "us-east-1")
FAR = ("trn1.2xlarge", "us-west-2")  # the bundled table has no such row
NOW = datetime.now(UTC)


@pytest.fixture(autouse=True)
def nobodys_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No credentials, no instance metadata, no cache of this machine's user."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def hourly(instance: tuple[str, str], usd: str, **attributes: str) -> str:
    """A row of the price list."""
    named = {"instanceType": instance[0], "regionCode": instance[1]}
    rate = {"unit": "Hrs", "pricePerUnit": {"USD": usd}, "beginRange": "0", "endRange": "Inf"}
    row = {
        "product": {"sku": "SKU", "attributes": named | ON_DEMAND_TERMS | attributes},
        "terms": {"OnDemand": {"SKU.OFFER": {"priceDimensions": {"SKU.OFFER.0": rate}}}},
    }
    return json.dumps(row)


def live(service: str, script: Callable[[Stubber], object]) -> InstancePrices:
    """Prices of a client of this service that answers by the script."""
    keys = dict.fromkeys(("aws_access_key_id", "aws_secret_access_key"), "testing")
    client = boto3.client(service, region_name="us-east-1", **keys)
    stubber = Stubber(client)
    script(stubber)
    stubber.activate()

    return InstancePrices(account=lambda region: Account(service, client))


class Account(Aws):
    """The account with this client of a service."""

    def __init__(self, service: str, client: Any) -> None:
        self.client = {service: client}.__getitem__  # type: ignore[assignment]


def asking(instance: tuple[str, str]) -> dict[str, Any]:
    """What the price list is asked, with every filter that pins the row."""
    terms = {"instanceType": instance[0], "regionCode": instance[1]} | ON_DEMAND_TERMS
    rows = [{"Type": "TERM_MATCH", "Field": name, "Value": of} for name, of in terms.items()]
    return {"ServiceCode": "AmazonEC2", "FormatVersion": "aws_v1", "Filters": rows}


def price_list(*rows: str, instance: tuple[str, str] = FAR) -> InstancePrices:
    answer = {"PriceList": list(rows)}
    return live("pricing", lambda stub: stub.add_response("get_products", answer, asking(instance)))


def failing(code: str) -> InstancePrices:
    """Prices of a client whose first call is refused."""
    return live("pricing", lambda stub: stub.add_client_error("get_products", code, "no", 400))


def test_a_capacity_block_row_at_no_dollars_does_not_make_an_instance_free() -> None:
    free = hourly(P5, "0.0000000000", marketoption="CapacityBlock")
    assert price_list(free, hourly(P5, "55.05"), instance=P5).find(*P5).usd_per_hour == 55.05


def test_a_row_for_windows_is_passed_over() -> None:
    windows = hourly(FAR, "1.9000000000", operatingSystem="Windows")
    assert price_list(windows, hourly(FAR, "1.3437500000")).find(*FAR).usd_per_hour == 1.34375


@pytest.mark.parametrize(
    ("usd", "shown"), [(["0.0000000000"], ["us-west-2"]), (["1.3", "1.4"], ["$1.3", "$1.4"])]
)
def test_a_row_at_no_dollars_alone_and_two_different_prices_are_no_price(
    usd: list[str], shown: list[str]
) -> None:
    prices = price_list(*(hourly(FAR, each) for each in usd))
    assert_refused(lambda: prices.find(*FAR), shown, NoPrice)


def test_a_price_on_the_second_page_is_found() -> None:
    def pages(stub: Stubber) -> None:
        first = {"PriceList": [hourly(TRN1, "1.9", operatingSystem="Windows")], "NextToken": "more"}
        second = {"PriceList": [hourly(TRN1, "1.34375")]}
        stub.add_response("get_products", first, asking(TRN1))
        stub.add_response("get_products", second, asking(TRN1) | {"NextToken": "more"})

    before = datetime.now(UTC).date()
    price = live("pricing", pages).find(*TRN1)
    after = datetime.now(UTC).date()
    assert (price.usd_per_hour, price.source) == (1.34375, "AWS price list")
    assert before <= price.as_of <= after  # the same day, except over midnight


def test_the_filters_that_pin_the_row_are_those_of_a_plain_instance_on_demand() -> None:
    assert ON_DEMAND_TERMS["marketoption"] == "OnDemand"
    assert ON_DEMAND_TERMS["operatingSystem"] == "Linux"


def test_a_call_that_stays_throttled_leaves_the_bundled_price(
    capsys: pytest.CaptureFixture[str],
) -> None:
    price = failing("ThrottlingException").find(*TRN1)
    assert (price.usd_per_hour, price.as_of) == (1.34375, date(2026, 9, 24))
    assert "throttles GetProducts" in capsys.readouterr().err


def test_a_denied_call_names_the_permission_and_the_next_is_made() -> None:
    def script(stub: Stubber) -> None:
        stub.add_client_error("get_products", "AccessDeniedException", "not authorized", 400)
        stub.add_response("get_products", {"PriceList": [hourly(FAR, "1.4")]})

    prices = live("pricing", script)
    assert_refused(lambda: prices.find(*FAR), ["GetProducts"], NoPrice)
    assert prices.find(*FAR).usd_per_hour == 1.4


class PartlyRefused:
    """An account whose credentials these services refuse in these regions."""

    def __init__(self, *refused: tuple[str, str]) -> None:
        self._refused, self.calls = refused, list[tuple[str, str]]()

    def __call__(self, region: str) -> Any:
        def rows(service: str, *_: str, **asked: Any) -> list[Any]:
            self.calls.append((service, region))
            if (service, region) in self._refused:
                raise AwsDown(f"AWS refuses the credentials: {service} in {region}")
            spot = {"SpotPrice": "0.5", "ProductDescription": "Linux/UNIX", "Timestamp": NOW}
            named = {one["Field"]: one["Value"] for one in asked.get("Filters", ())}
            listed = hourly((named.get("instanceType", ""), named.get("regionCode", "")), "1.4")
            return [spot | {"AvailabilityZone": f"{region}a"}] if service == "ec2" else [listed]

        return SimpleNamespace(rows=rows)


@pytest.mark.parametrize(
    "refused",
    [[("pricing", "us-east-1")], [("ec2", "us-west-2")], [("ec2", "us-east-1")], []],
)
def test_a_refusal_silences_no_other_price_and_is_not_repeated(
    refused: list[tuple[str, str]],
) -> None:
    account = PartlyRefused(*refused)
    prices = InstancePrices(account=account)
    asked: dict[tuple[str, str], tuple[tuple[str, str], Market]] = {
        ("pricing", "us-east-1"): (FAR, "on-demand"),
        ("ec2", "us-west-2"): (FAR, "spot"),
        ("ec2", "us-east-1"): (TRN1, "spot"),
    }
    for _ in range(2):
        for service, (instance, market) in asked.items():
            if service in refused:
                assert_refused(partial(prices.find, *instance, market), service, NoPrice)
            else:
                assert prices.find(*instance, market).usd_per_hour in (0.5, 1.4)
    assert all(account.calls.count(service) == 1 for service in refused)


def test_without_credentials_the_bundled_price_holds_and_a_note_says_why_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    prices = InstancePrices()
    for _ in range(2):
        assert prices.find(*TRN1).as_of == date(2026, 9, 24)
    assert capsys.readouterr().err.count("there are no AWS credentials here") == 1


@pytest.mark.parametrize(("instance", "market"), [(FAR, "on-demand"), (TRN1, "spot")])
def test_prices_of_other_regions_and_of_spot_are_not_guessed(
    instance: tuple[str, str], market: Any
) -> None:
    prices = InstancePrices(live=False)
    assert_refused(lambda: prices.find(*instance, market), ["us-east-1"], NoPrice)


def test_spot_is_the_cheapest_zone_now_and_names_it() -> None:
    def row(zone: str, usd: str, hours: int, product: str = "Linux/UNIX") -> dict[str, Any]:
        named = {"AvailabilityZone": zone, "SpotPrice": usd, "ProductDescription": product}
        at = NOW - timedelta(hours=hours)
        return {**named, "Timestamp": at, "InstanceType": "trn1.2xlarge"}

    history = [
        row("us-east-1b", "0.4000", 1),
        row("us-east-1b", "0.1000", 9),
        row("us-east-1c", "0.3000", 2, "Linux/UNIX (Amazon VPC)"),
        row("us-east-1f", "0.4813", 1),
        row("us-east-1f", "0.0100", 1, "Windows"),
    ]
    asked = {"InstanceTypes": ["trn1.2xlarge"], "ProductDescriptions": ["Linux/UNIX"]}
    answer = {"SpotPriceHistory": history}

    def script(stub: Stubber) -> None:
        stub.add_response("describe_spot_price_history", answer, asked | {"StartTime": ANY})

    price = live("ec2", script).find(*TRN1, "spot")
    assert price.usd_per_hour == 0.3
    assert price.source == "EC2 spot history, us-east-1c, the cheapest of 3 zones, median $0.4"


@pytest.mark.parametrize(
    ("instance", "market", "says"),
    [
        ("trn2.48xlarge", "on-demand", "capacity blocks and spot only"),
        ("trn2.3xlarge", "capacity-block", "paid beforehand"),
    ],
)
def test_a_capacity_block_has_no_price_whatever_the_price_list_says(
    instance: str, market: Any, says: str
) -> None:
    prices = live("pricing", lambda stub: None)
    assert_refused(lambda: prices.find(instance, "us-east-2", market), [says], NoPrice)


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


def test_the_table_fits_80_columns_and_states_its_source_and_day_once(run: Run) -> None:
    shown = run("deploy", "prices")
    assert max(map(len, shown.out.splitlines())) <= 80
    assert shown.out.count("20260924211011") == shown.out.count("2026-09-24") == 1
    assert all(part in shown.out for part in ("us-east-1, on-demand", "1.34375"))
    priced = [name for name, one in bundled_prices().types.items() if one.usd_per_hour]
    assert all(name in shown.out for name in priced)


def test_an_unknown_type_gets_an_error_and_no_empty_table(run: Run) -> None:
    refused = run("deploy", "prices", "x9.large")
    (line,) = refused.err.splitlines()
    assert (refused.code, refused.out) == (1, "")
    assert line.startswith("no price for x9.large")


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


def test_the_commands_json_has_every_price_that_is_known(run: Run) -> None:
    shown = run("deploy", "prices", "--json")
    rows = json.loads(shown.out)
    priced = {name for name, one in bundled_prices().types.items() if one.usd_per_hour}
    assert {row["instance_type"] for row in rows} == priced
    first = next(row for row in rows if row["instance_type"] == "trn1.2xlarge")
    first["as_of"] = date.fromisoformat(first["as_of"])
    assert Price(**first) == InstancePrices(live=False).find(*TRN1)


@pytest.mark.parametrize(
    "flags", ["--instance trn1", "--region Oregon", "--instance trn2.48xlarge"]
)
def test_the_command_refuses_in_one_line(flags: str, run: Run) -> None:
    refused = run("deploy", "prices", *flags.split())
    (line,) = refused.err.splitlines()
    assert (refused.code, flags.split()[1] in line) == (1, True)


@pytest.mark.skipif(
    "LIVE_AWS" not in os.environ,
    reason="asks AWS: set LIVE_AWS=1, with credentials in ~/.aws",
)
def test_the_bundled_price_is_near_what_aws_says_now(monkeypatch: pytest.MonkeyPatch) -> None:
    import pwd

    monkeypatch.setenv("HOME", pwd.getpwuid(os.getuid()).pw_dir)
    bundled = InstancePrices(live=False).find(*TRN1).usd_per_hour
    said = InstancePrices().find(*TRN1)
    assert said.source == "AWS price list"
    assert said.usd_per_hour == pytest.approx(bundled, rel=0.2)
