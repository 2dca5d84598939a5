"""Prices: which row of AWS's replies is taken, who is asked in which order, and that nothing is
made up.
"""

from __future__ import annotations

import json
import os
import warnings
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse
from botocore.stub import ANY, Stubber

from deploy.__main__ import main
from deploy.aws_prices import TRANSFER_TERMS, LivePrices, filters, make_client, on_demand_terms
from deploy.ec2_prices import (
    SNAPSHOT,
    InstanceOffer,
    NoPrice,
    Price,
    PriceCache,
    PriceFile,
    PriceTable,
    Pricing,
    SourceDown,
    TransferPrice,
    read_table,
)
from deploy.pricing import Kept, PriceChain, open_prices
from inference.cost.accounting import hire_usd
from inference.errors import InvalidRequest, Mismatch
from tests.support.price_lists import hourly, live, product

TRN1 = InstanceOffer("trn1.2xlarge", "us-east-1")
P5 = InstanceOffer("p5.48xlarge", "us-east-1")
SPOT = InstanceOffer("trn1.2xlarge", "us-east-1", Pricing.SPOT)
BLOCK = InstanceOffer("trn2.3xlarge", "ap-southeast-4", Pricing.CAPACITY_BLOCK)
NOW = datetime.now(timezone.utc)


@pytest.fixture(autouse=True)
def nobodys_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No credentials, no instance metadata, no cache of this machine's user."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")


def price_list(*rows: str, offer: InstanceOffer = TRN1) -> LivePrices:
    asked = {
        "ServiceCode": "AmazonEC2",
        "FormatVersion": "aws_v1",
        "Filters": filters(on_demand_terms(offer)),
    }
    return live(
        "pricing", lambda stub: stub.add_response("get_products", {"PriceList": list(rows)}, asked)
    )


def known(offer: InstanceOffer, usd: float) -> Price:
    return offer.at(usd, date(2026, 9, 24), "test")


def test_a_capacity_block_row_at_no_dollars_does_not_make_an_instance_free() -> None:
    source = price_list(
        hourly(P5, "0.0000000000", marketoption="CapacityBlock"),
        hourly(P5, "55.0400000000"),
        offer=P5,
    )
    assert source.price(P5).usd_per_hour == 55.04


def test_a_row_at_no_dollars_alone_is_no_price() -> None:
    with pytest.raises(NoPrice, match="on-demand"):
        price_list(hourly(P5, "0.0000000000"), offer=P5).price(P5)


def test_a_row_for_windows_is_passed_over() -> None:
    source = price_list(
        hourly(TRN1, "1.9000000000", operatingSystem="Windows"), hourly(TRN1, "1.3437500000")
    )
    assert source.price(TRN1).usd_per_hour == 1.34375


def test_two_different_prices_are_refused() -> None:
    with pytest.raises(Mismatch, match=r"\$1.3, \$1.4"):
        price_list(hourly(TRN1, "1.3"), hourly(TRN1, "1.4")).price(TRN1)


def test_a_price_on_the_second_page_is_found() -> None:
    asked = {
        "ServiceCode": "AmazonEC2",
        "FormatVersion": "aws_v1",
        "Filters": filters(on_demand_terms(TRN1)),
    }

    def pages(stub: Stubber) -> None:
        first = {"PriceList": [hourly(TRN1, "1.9", operatingSystem="Windows")], "NextToken": "more"}
        stub.add_response("get_products", first, asked)
        stub.add_response(
            "get_products", {"PriceList": [hourly(TRN1, "1.34375")]}, asked | {"NextToken": "more"}
        )

    price = live("pricing", pages).price(TRN1)
    assert (price.usd_per_hour, price.source, price.as_of) == (
        1.34375,
        "AWS price list",
        NOW.date(),
    )


def test_every_filter_that_pins_the_row_is_sent() -> None:
    sent = {entry["Field"]: entry["Value"] for entry in filters(on_demand_terms(TRN1))}
    assert sent["marketoption"] == "OnDemand"
    assert sent["operatingSystem"] == "Linux"
    assert sent["regionCode"] == "us-east-1"
    assert {entry["Type"] for entry in filters(on_demand_terms(TRN1))} == {"TERM_MATCH"}


def test_a_throttled_call_is_made_again(credentials: None) -> None:
    client = make_client("pricing", "us-east-1")
    replies = [
        (400, {"__type": "ThrottlingException", "message": "Rate exceeded"}),
        (200, {"FormatVersion": "aws_v1", "PriceList": [hourly(TRN1, "1.34375")]}),
    ]

    def answer(request: Any, **_: object) -> AWSResponse:
        status, body = replies.pop(0)
        return AWSResponse(
            request.url,
            status,
            {"content-type": "application/x-amz-json-1.1"},
            _Body(json.dumps(body).encode()),
        )

    client.meta.events.register("before-send.pricing.GetProducts", answer)
    assert LivePrices(lambda service, region: client).price(TRN1).usd_per_hour == 1.34375
    assert not replies


class _Body:
    """What botocore reads a reply from."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def stream(self) -> list[bytes]:
        return [self._content]


def test_a_call_that_stays_throttled_falls_back() -> None:
    source = live(
        "pricing",
        lambda stub: stub.add_client_error(
            "get_products", "ThrottlingException", "Rate exceeded", 400
        ),
    )
    quote = PriceChain([source, PriceTable("snapshot", [known(TRN1, 1.34375)])]).quote(TRN1)
    assert quote.price.usd_per_hour == 1.34375
    assert "Rate exceeded" in quote.passed_over[0]


def test_a_denied_call_names_the_permission_and_the_next_is_made() -> None:
    def script(stub: Stubber) -> None:
        stub.add_client_error("get_products", "AccessDeniedException", "not authorized", 400)
        stub.add_response("get_products", {"PriceList": [hourly(TRN1, "1.34375")]})

    source = live("pricing", script)
    with pytest.raises(NoPrice, match=r"pricing:GetProducts"):
        source.price(TRN1)
    assert source.price(TRN1).usd_per_hour == 1.34375


def test_refused_credentials_end_all_asking() -> None:
    source = live(
        "pricing",
        lambda stub: stub.add_client_error(
            "get_products", "UnrecognizedClientException", "invalid", 400
        ),
    )
    for _ in range(2):
        with pytest.raises(SourceDown, match="credentials"):
            source.price(TRN1)


def test_without_credentials_the_snapshot_answers_and_says_why() -> None:
    quote = open_prices().quote(TRN1)
    assert quote.price.usd_per_hour == 1.34375
    assert quote.price.as_of == date(2026, 9, 24)
    assert quote.passed_over == ("AWS: there are no AWS credentials here", "cache: nothing kept")


def test_prices_of_other_regions_are_not_guessed() -> None:
    with pytest.raises(NoPrice, match="us-east-1"):
        open_prices(live=False).quote(InstanceOffer("trn1.2xlarge", "eu-west-1"))


def test_trn2_has_a_capacity_block_price_and_no_on_demand_price() -> None:
    prices = open_prices(live=False)
    quote = prices.quote(BLOCK)
    assert (quote.price.usd_per_hour, quote.price.confidence) == (2.235, "low")
    with pytest.raises(NoPrice):
        prices.quote(InstanceOffer("trn2.3xlarge", "ap-southeast-4"))


def test_spot_is_the_cheapest_zone_now_and_names_it() -> None:
    def row(zone: str, usd: str, hours: int, product: str = "Linux/UNIX") -> dict[str, Any]:
        at = NOW - timedelta(hours=hours)
        return {
            "AvailabilityZone": zone,
            "SpotPrice": usd,
            "Timestamp": at,
            "ProductDescription": product,
            "InstanceType": "trn1.2xlarge",
        }

    history = [
        row("us-east-1b", "0.4000", 1),
        row("us-east-1b", "0.1000", 9),
        row("us-east-1c", "0.3000", 2, "Linux/UNIX (Amazon VPC)"),
    ]
    history += [row("us-east-1f", "0.4813", 1), row("us-east-1f", "0.0100", 1, "Windows")]
    asked = {
        "InstanceTypes": ["trn1.2xlarge"],
        "ProductDescriptions": ["Linux/UNIX"],
        "StartTime": ANY,
    }
    source = live(
        "ec2",
        lambda stub: stub.add_response(
            "describe_spot_price_history", {"SpotPriceHistory": history}, asked
        ),
    )
    price = source.price(SPOT)
    assert price.usd_per_hour == 0.3
    assert price.source == "EC2 spot history, us-east-1c, the cheapest of 3 zones, median $0.4"


def test_a_capacity_block_costs_its_fee_over_its_hours() -> None:
    block = {
        "InstanceType": "trn2.3xlarge",
        "AvailabilityZone": "ap-southeast-4a",
        "InstanceCount": 1,
        "CapacityBlockDurationHours": 24,
    }
    offerings = [
        block | {"UpfrontFee": "60.00", "CurrencyCode": "USD"},
        block | {"UpfrontFee": "53.64", "CurrencyCode": "USD"},
    ]
    asked = {"InstanceType": "trn2.3xlarge", "InstanceCount": 1, "CapacityDurationHours": 24}
    reply = {"CapacityBlockOfferings": offerings}
    price = live(
        "ec2", lambda stub: stub.add_response("describe_capacity_block_offerings", reply, asked)
    ).price(BLOCK)
    assert price.usd_per_hour == pytest.approx(2.235)
    assert (
        price.source
        == "EC2 capacity block offering, 24 hours in ap-southeast-4a for $53.64 upfront"
    )


def test_traffic_out_costs_the_first_tier_that_is_paid() -> None:
    tiers = [
        ("GB", "0.0700", "51200"),
        ("GB", "0.0000", "0"),
        ("GB", "0.0900", "100"),
        ("GB", "0.0850", "10240"),
    ]
    row = product(
        TRN1, *tiers, transferType="AWS Outbound", toLocation="External", fromRegionCode="us-east-1"
    )
    asked = {
        "ServiceCode": "AWSDataTransfer",
        "FormatVersion": "aws_v1",
        "Filters": filters({"fromRegionCode": "us-east-1"} | TRANSFER_TERMS),
    }
    source = live(
        "pricing", lambda stub: stub.add_response("get_products", {"PriceList": [row]}, asked)
    )
    assert source.transfer("us-east-1").usd_per_gb_out == 0.09


def refused(line: str) -> None:
    raise AssertionError(line)


def test_what_aws_said_today_is_kept_and_tomorrow_is_not(tmp_path: Path) -> None:
    clock = [datetime.now(timezone.utc).timestamp()]
    cache = PriceCache(tmp_path / "prices", refused, lambda: clock[0])
    live_price = Kept(
        price_list(hourly(TRN1, "1.4")), cache, PriceTable("snapshot", [known(TRN1, 1.34375)])
    )
    assert live_price.price(TRN1).usd_per_hour == 1.4
    assert cache.price(TRN1).usd_per_hour == 1.4
    assert cache.price(TRN1).source == "AWS price list (kept)"
    with pytest.raises(NoPrice, match="nothing kept"):
        cache.price(SPOT)
    clock[0] += 25 * 3600
    with pytest.raises(NoPrice, match="25 hours old"):
        cache.price(TRN1)


def test_a_price_four_times_off_is_doubted_and_not_kept(tmp_path: Path) -> None:
    cache = PriceCache(tmp_path / "prices", refused)
    price = Kept(
        price_list(hourly(TRN1, "13.4375")), cache, PriceTable("snapshot", [known(TRN1, 1.34375)])
    ).price(TRN1)
    assert (price.usd_per_hour, price.confidence) == (13.4375, "low")
    assert "$1.34375 on 2026-09-24" in price.source
    with pytest.raises(NoPrice):
        cache.price(TRN1)


def test_a_cache_that_is_damaged_or_cannot_be_written_is_none(tmp_path: Path) -> None:
    told: list[str] = []
    cache = PriceCache(tmp_path / "prices", told.append)
    cache.keep(known(TRN1, 1.0))
    cache.keep_transfer(TransferPrice("us-east-1", 0.0, 0.09, date(2026, 11, 21), "test"))
    assert cache.transfer("us-east-1").usd_per_gb_out == 0.09
    for path in (tmp_path / "prices").rglob("*.json"):
        path.write_text("{")
    with pytest.raises(NoPrice, match="cannot be used"):
        cache.price(TRN1)
    assert [line.split(": ")[0] for line in told] == ["note"]
    assert "trn1.2xlarge.on-demand.json is not JSON" in told[0]
    cache.keep(known(TRN1, 1.0))
    assert cache.price(TRN1).usd_per_hour == 1.0
    (tmp_path / "file").write_text("")
    PriceCache(tmp_path / "file", refused).keep(known(TRN1, 1.0))


def test_the_users_own_file_is_asked_first(tmp_path: Path) -> None:
    path = tmp_path / "prices.json"
    rows = [
        {
            "instance_type": "trn1.2xlarge",
            "region": "us-east-1",
            "usd_per_hour": 0.9,
            "as_of": "2026-11-01",
        }
    ]
    path.write_text(json.dumps({"schema": 1, "prices": rows}))
    price = open_prices(path).quote(TRN1).price
    assert (price.usd_per_hour, price.source, price.as_of) == (0.9, str(path), date(2026, 11, 1))
    assert open_prices(path).quote(P5).price.usd_per_hour == 55.04


ROW = {
    "instance_type": "trn1.2xlarge",
    "region": "us-east-1",
    "usd_per_hour": 0.9,
    "as_of": "2026-11-01",
}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ([], "it should be an object"),
        ({"schema": 2, "prices": []}, "field schema is 2"),
        ({"prices": []}, "an object with .schema.: 1"),
        ({"schema": 1, "prices": {}}, "field prices is {}"),
        ({"schema": 1, "prices": [7]}, r"field prices\[0\] is 7"),
        ({"schema": 1, "prices": [ROW | {"usd": 1}]}, r"prices\[0\] has an unknown field 'usd'"),
        (
            {"schema": 1, "prices": [ROW | {"usd_per_hour": "0.9"}]},
            "usd_per_hour is '0.9'",
        ),
        ({"schema": 1, "prices": [ROW | {"usd_per_hour": 0}]}, "a price is above 0"),
        ({"schema": 1, "prices": [ROW | {"as_of": "yesterday"}]}, "as_of is 'yesterday'"),
        (
            {"schema": 1, "prices": [ROW | {"pricing": "free"}]},
            "'spot' or 'capacity-block'",
        ),
        ({"schema": 1, "prices": [ROW | {"region": "Oregon"}]}, "no region"),
        ({"schema": 1, "prices": [ROW | {"confidence": "sure"}]}, "'high' or 'low'"),
        (
            {"schema": 1, "transfers": [{"region": "us-east-1"}]},
            r"field transfers\[0\] has no usd_per_gb_in",
        ),
    ],
)
def test_a_price_file_that_is_wrong_is_refused_by_name(
    content: object, says: str, tmp_path: Path
) -> None:
    path = tmp_path / "prices.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InvalidRequest, match=says):
        read_table(path, "file")


def test_the_snapshot_is_not_too_old_and_every_row_has_a_source() -> None:
    table = read_table(SNAPSHOT, "snapshot")
    assert len(table.prices) == 15
    for price in table.prices.values():
        assert price.source.startswith("snapshot: ")
    newest = max(price.as_of for price in table.prices.values())
    age = (NOW.date() - newest).days
    assert age <= 400, f"deploy/data/ec2_prices.json is {age} days old: take the prices of today"
    if age > 180:
        warnings.warn(f"deploy/data/ec2_prices.json is {age} days old", stacklevel=1)


def test_the_worked_example_of_trn1() -> None:
    price = open_prices(live=False).quote(TRN1).price
    assert price.usd_per_hour == 1.34375
    assert round(hire_usd(1e6 / 40, price.usd_per_hour), 4) == 9.3316


def test_the_command_prints_a_table_with_source_and_day(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(
            [
                "prices",
                "--instance",
                "trn1.2xlarge",
                "--region",
                "us-east-1",
                "--no_live",
                "--tokens-per-second",
                "40",
            ]
        )
        == 0
    )
    printed = capsys.readouterr()
    for part in (
        "trn1.2xlarge",
        "on-demand",
        "1.34375",
        "9.3316",
        "2026-09-24",
        "20260924211011",
        "$0.09 a GB out",
    ):
        assert part in printed.out
    assert "no price: trn1.2xlarge spot" in printed.err


def test_the_commands_json_is_a_price_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["prices", "--no_live", "--json", "--tokens_per_second", "40"]) == 0
    path = tmp_path / "prices.json"
    path.write_text(capsys.readouterr().out)
    table = read_table(path, "printed")
    printed = PriceFile(prices=tuple(table.prices.values())).plain()
    assert printed["prices"] == json.loads(path.read_text())["prices"]
    assert len(table.prices) == 14


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--instance", "trn1", "--no_live"], "is no instance type"),
        (["--region", "Oregon", "--no_live"], "is no region"),
        (["--price_file", "/nowhere.json"], "/nowhere.json cannot be read"),
        (["--instance", "trn2.48xlarge", "--no_live"], "no price: trn2.48xlarge on-demand"),
    ],
)
def test_the_command_refuses_in_one_line(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prices", *arguments]) == 1
    assert says in capsys.readouterr().err


def test_a_speed_of_zero_is_refused_before_anybody_is_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["prices", "--tokens_per_second", "0"])
    assert "above 0" in capsys.readouterr().err


@pytest.mark.skipif(
    "LIVE_AWS" not in os.environ,
    reason="asks AWS: set LIVE_AWS=1, with credentials in ~/.aws",
)
def test_the_snapshot_is_near_what_aws_says_now(monkeypatch: pytest.MonkeyPatch) -> None:
    import pwd

    monkeypatch.setenv("HOME", pwd.getpwuid(os.getuid()).pw_dir)
    snapshot = open_prices(live=False).quote(TRN1).price.usd_per_hour
    assert LivePrices().price(TRN1).usd_per_hour == pytest.approx(snapshot, rel=0.2)
