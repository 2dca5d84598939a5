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
from deploy.aws_prices import (
    LivePrices,
    filters,
    make_client,
    on_demand_terms,
    savings_filters,
    service_terms,
)
from deploy.ec2_prices import (
    SNAPSHOT,
    InstanceOffer,
    NoPrice,
    Price,
    PriceFile,
    PriceTable,
    Pricing,
    Service,
    ServiceOffer,
    ServicePrice,
    Tier,
    read_table,
)
from deploy.pricing import Kept, PriceCache, PriceChain, open_prices
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
    assert source.answer(P5).rate == 55.04


def test_a_row_at_no_dollars_alone_is_no_price() -> None:
    with pytest.raises(NoPrice, match="on-demand"):
        price_list(hourly(P5, "0.0000000000"), offer=P5).answer(P5)


def test_a_row_for_windows_is_passed_over() -> None:
    source = price_list(
        hourly(TRN1, "1.9000000000", operatingSystem="Windows"), hourly(TRN1, "1.3437500000")
    )
    assert source.answer(TRN1).rate == 1.34375


def test_two_different_prices_are_refused() -> None:
    with pytest.raises(Mismatch, match=r"\$1.3, \$1.4"):
        price_list(hourly(TRN1, "1.3"), hourly(TRN1, "1.4")).answer(TRN1)


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

    before = datetime.now(timezone.utc).date()
    price = live("pricing", pages).answer(TRN1)
    after = datetime.now(timezone.utc).date()
    assert (price.rate, price.source) == (1.34375, "AWS price list")
    assert before <= price.as_of <= after  # the same day, except over midnight


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
    assert LivePrices(lambda service, region: client).answer(TRN1).rate == 1.34375
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
    assert "takes no more calls of GetProducts" in quote.passed_over[0]


def test_a_denied_call_names_the_permission_and_the_next_is_made() -> None:
    def script(stub: Stubber) -> None:
        stub.add_client_error("get_products", "AccessDeniedException", "not authorized", 400)
        stub.add_response("get_products", {"PriceList": [hourly(TRN1, "1.34375")]})

    source = live("pricing", script)
    with pytest.raises(NoPrice, match="denies GetProducts"):
        source.answer(TRN1)
    assert source.answer(TRN1).rate == 1.34375


def test_refused_credentials_end_all_asking() -> None:
    source = live(
        "pricing",
        lambda stub: stub.add_client_error(
            "get_products", "UnrecognizedClientException", "invalid", 400
        ),
    )
    for _ in range(2):
        with pytest.raises(NoPrice, match="credentials"):
            source.answer(TRN1)


def test_without_credentials_the_snapshot_answers_and_says_why() -> None:
    quote = open_prices().quote(TRN1)
    assert quote.price.usd_per_hour == 1.34375
    assert quote.price.as_of == date(2026, 9, 24)
    asked, kept = quote.passed_over
    assert asked.startswith("AWS: there are no AWS credentials here")
    assert kept == "cache: nothing kept"


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
    price = source.answer(SPOT)
    assert price.rate == 0.3
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
    ).answer(BLOCK)
    assert price.rate == pytest.approx(2.235)
    assert (
        price.source
        == "EC2 capacity block offering, 24 hours in ap-southeast-4a for $53.64 upfront"
    )


TRAFFIC = ServiceOffer(Service.TRAFFIC_OUT, "us-east-1")
TIERS = [
    ("GB", "0.0700", "51200"),
    ("GB", "0.0000", "0"),
    ("GB", "0.0900", "100"),
    ("GB", "0.0850", "10240"),
]


def listed(offer: ServiceOffer, code: str, *tiers: tuple[str, str, str]) -> LivePrices:
    """AWS with one row of a service in its price list."""
    row = product(TRN1, *tiers, **service_terms(offer))
    asked = {
        "ServiceCode": code,
        "FormatVersion": "aws_v1",
        "Filters": filters(service_terms(offer)),
    }
    return live(
        "pricing", lambda stub: stub.add_response("get_products", {"PriceList": [row]}, asked)
    )


def test_traffic_out_is_paid_by_tiers_and_its_rate_is_the_first_that_is_paid() -> None:
    price = listed(TRAFFIC, "AWSDataTransfer", *TIERS).answer(TRAFFIC)
    assert isinstance(price, ServicePrice)
    assert price.rate == 0.09
    assert price.usd(100) == 0
    assert price.usd(500) == pytest.approx(400 * 0.09)
    assert price.usd(60_000) == pytest.approx(10_140 * 0.09 + 40_960 * 0.085 + 8_800 * 0.07)


@pytest.mark.parametrize(
    ("service", "code", "unit"),
    [
        (Service.VOLUME, "AmazonEC2", "GB-Mo"),
        (Service.ADDRESS, "AmazonVPC", "Hrs"),
        (Service.STORAGE, "AmazonS3", "GB-Mo"),
    ],
)
def test_a_service_has_its_row_of_the_price_list(service: Service, code: str, unit: str) -> None:
    offer = ServiceOffer(service, "us-east-1")
    rows = [(unit, "0.0800", "0"), ("Requests", "9", "0")]
    assert listed(offer, code, *rows).answer(offer).rate == 0.08


@pytest.mark.parametrize(
    "rows", [[("GB-Mo", "0.08", "0"), ("GB-Mo", "0.09", "0")], [("Hrs", "0.08", "0")]]
)
def test_a_service_whose_rows_make_no_tiers_has_no_price(rows: list[tuple[str, str, str]]) -> None:
    offer = ServiceOffer(Service.VOLUME, "us-east-1")
    with pytest.raises(NoPrice, match="make no tiers"):
        listed(offer, "AmazonEC2", *rows).answer(offer)


def test_a_savings_plan_is_the_rate_of_its_years_and_not_of_an_unused_reservation() -> None:
    def rate(usd: str, years: int, usage: str = "BoxUsage:trn1.2xlarge") -> dict[str, Any]:
        plan = {"durationSeconds": years * 31_536_000, "currency": "USD"}
        return {"rate": usd, "unit": "Hrs", "usageType": usage, "savingsPlanOffering": plan}

    offer = InstanceOffer("trn1.2xlarge", "us-east-1", Pricing.SAVINGS_3YR)
    rates = [rate("0.84", 1), rate("0.51", 3), rate("0.1", 3, "UnusedBox:trn1.2xlarge")]
    asked = {
        "savingsPlanPaymentOptions": ["No Upfront"],
        "savingsPlanTypes": ["EC2Instance"],
        "products": ["EC2"],
        "serviceCodes": ["AmazonEC2"],
        "filters": savings_filters(offer),
    }
    operation = "describe_savings_plans_offering_rates"
    source = live(
        "savingsplans", lambda stub: stub.add_response(operation, {"searchResults": rates}, asked)
    )
    price = source.answer(offer)
    assert (price.rate, price.source) == (0.51, "AWS savings plan, 3 years, no upfront")


def test_every_service_says_what_its_price_is_for() -> None:
    assert {service.value: service.unit for service in Service} == {
        "traffic-out": "GB",
        "gp3-volume": "GB-month",
        "public-ipv4": "hour",
        "s3-storage": "GB-month",
    }


def test_trn2_has_no_on_demand_price_whatever_the_price_list_says() -> None:
    trn2 = InstanceOffer("trn2.48xlarge", "us-east-2")
    with pytest.raises(NoPrice, match="capacity blocks and spot only"):
        live("pricing", lambda stub: None).answer(trn2)


def refused(line: str) -> None:
    raise AssertionError(line)


def test_what_aws_said_today_is_kept_and_tomorrow_is_not(tmp_path: Path) -> None:
    clock = [datetime.now(timezone.utc).timestamp()]
    cache = PriceCache(tmp_path / "prices", refused, lambda: clock[0])
    live_price = Kept(
        price_list(hourly(TRN1, "1.4")), cache, PriceTable("snapshot", [known(TRN1, 1.34375)])
    )
    assert live_price.answer(TRN1).rate == 1.4
    assert cache.answer(TRN1).rate == 1.4
    assert cache.answer(TRN1).source == "AWS price list (kept)"
    with pytest.raises(NoPrice, match="nothing kept"):
        cache.answer(SPOT)
    clock[0] += 25 * 3600
    with pytest.raises(NoPrice, match="25 hours old"):
        cache.answer(TRN1)


def test_a_price_four_times_off_is_doubted_and_not_kept(tmp_path: Path) -> None:
    cache = PriceCache(tmp_path / "prices", refused)
    price = Kept(
        price_list(hourly(TRN1, "13.4375")), cache, PriceTable("snapshot", [known(TRN1, 1.34375)])
    ).answer(TRN1)
    assert (price.rate, price.confidence) == (13.4375, "low")
    assert "$1.34375 on 2026-09-24" in price.source
    with pytest.raises(NoPrice):
        cache.answer(TRN1)


def test_a_cache_that_is_damaged_or_cannot_be_written_is_none(tmp_path: Path) -> None:
    told: list[str] = []
    cache = PriceCache(tmp_path / "prices", told.append)
    cache.keep(known(TRN1, 1.0))
    cache.keep(
        ServicePrice(
            Service.TRAFFIC_OUT, "us-east-1", tiers=(Tier(0, 0.09),), as_of=date(2026, 11, 21)
        )
    )
    assert cache.answer(TRAFFIC).rate == 0.09
    for path in (tmp_path / "prices").rglob("*.json"):
        path.write_text("{")
    with pytest.raises(NoPrice, match="cannot be used"):
        cache.answer(TRN1)
    assert [line.split(": ")[0] for line in told] == ["note"]
    assert "trn1.2xlarge.on-demand.json is not JSON" in told[0]
    cache.keep(known(TRN1, 1.0))
    assert cache.answer(TRN1).rate == 1.0
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
    assert (price.rate, price.source, price.as_of) == (0.9, str(path), date(2026, 11, 1))
    assert open_prices(path).quote(P5).price.usd_per_hour == 55.04


ROW = {
    "instance_type": "trn1.2xlarge",
    "region": "us-east-1",
    "usd_per_hour": 0.9,
    "as_of": "2026-11-01",
}


TIERED = {"service": "traffic-out", "region": "us-east-1", "as_of": "2026-11-01"}


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
            "'on-demand', 'spot', 'capacity-block'",
        ),
        ({"schema": 1, "prices": [ROW | {"region": "Oregon"}]}, "no region"),
        ({"schema": 1, "prices": [ROW | {"confidence": "sure"}]}, "'high' or 'low'"),
        (
            {"schema": 1, "services": [{"region": "us-east-1"}]},
            r"field services\[0\] has no service",
        ),
        (
            {"schema": 1, "services": [TIERED | {"tiers": [{"begin": 5, "usd": 1}]}]},
            "tiers begin at 0",
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
    instances = [one for one in table.answers.values() if isinstance(one, Price)]
    assert len(instances) == 15
    for answer in table.answers.values():
        assert answer.source.startswith("snapshot: ")
    newest = max(price.as_of for price in instances)
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
                "--gb_out",
                "500",
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
        "$0.09 beyond 100",
        "500 GB in a month: $36",
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
    instances = [one for one in table.answers.values() if isinstance(one, Price)]
    printed = PriceFile(prices=tuple(instances)).plain()
    assert printed["prices"] == json.loads(path.read_text())["prices"]
    assert (len(instances), len(table.answers)) == (14, 18)


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
    assert LivePrices().answer(TRN1).rate == pytest.approx(snapshot, rel=0.2)
