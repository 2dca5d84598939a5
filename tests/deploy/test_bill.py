"""The bill equals what a person computes with AWS's rules and a list of prices."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone

import pytest

from deploy.aws_prices import SpotPrice
from deploy.bill import RunUsage, hire, hourly, make_bill, spot_hire
from deploy.ec2_prices import InstanceOffer, Pricing, Service, ServicePrice, Tier

DAY = date(2026, 11, 22)
LAUNCHED = datetime(2026, 11, 22, 9, 0, tzinfo=timezone.utc)
TRN1 = InstanceOffer("trn1.2xlarge", "us-east-1").at(1.34375, DAY, "a test")


def service(kind: Service, *tiers: tuple[float, float]) -> ServicePrice:
    steps = tuple(Tier(*tier) for tier in tiers)
    return ServicePrice(kind, "us-east-1", tiers=steps, as_of=DAY, source="a test")


SERVICES = {
    Service.VOLUME: service(Service.VOLUME, (0, 0.08)),
    Service.ADDRESS: service(Service.ADDRESS, (0, 0.005)),
    Service.TRAFFIC_OUT: service(Service.TRAFFIC_OUT, (0, 0.0), (100, 0.09)),
    Service.STORAGE: service(Service.STORAGE, (0, 0.023)),
}


def test_the_bill_of_an_afternoon_is_what_one_computes_by_hand() -> None:
    """trn1.2xlarge for 3 h 20 min 15 s, 250 GiB of gp3, one address, 130 GiB to the internet, and
    20 GiB on S3, at the prices above:

        instance   12,015 s of 3,600 s/h = 3.3375 h      x 1.34375 $/h        = 4.484765625
        volume     250 GB x 3.3375 h / 730 h = 1.142979  x 0.08 $/GB-month    = 0.091438356
        address    3.3375 h                              x 0.005 $/h          = 0.016687500
        traffic    130 GB, of which 100 are free: 30 GB  x 0.09 $/GB          = 2.700000000
        storage    20 GB x 3.3375 h / 730 h = 0.091438   x 0.023 $/GB-month   = 0.002103082
                                                                                -----------
                                                                                7.294994563
    """
    seconds = 3 * 3600 + 20 * 60 + 15
    hours = seconds / 3600
    usage = RunUsage(
        volume_gb_hours=250 * hours,
        address_hours=hours,
        bytes_out=130 * 2**30,
        stored_gb_hours=20 * hours,
    )
    bill = make_bill([hire(TRN1, seconds)], usage, SERVICES)
    assert [(line.what, round(line.usd, 9)) for line in bill.lines] == [
        ("trn1.2xlarge, on-demand", 4.484765625),
        ("gp3-volume", 0.091438356),
        ("public-ipv4", 0.0166875),
        ("traffic-out", 2.7),
        ("s3-storage", 0.002103082),
    ]
    assert bill.usd == pytest.approx(7.294994563, abs=1e-9)
    assert bill.unknown == ()


def test_an_instance_is_paid_by_the_second_for_a_minute_at_least() -> None:
    assert hire(TRN1, 7).usd == pytest.approx(1.34375 / 60)
    assert hire(TRN1, 61).usd == pytest.approx(61 * 1.34375 / 3600)


def test_an_hour_on_spot_costs_what_the_price_was_at_its_beginning() -> None:
    """2 h 30 min from 9:00. The price is 0.40 from 8:12, 0.60 from 9:30 and 0.30 from 10:59:

    9:00-10:00 at 0.40, 10:00-11:00 at 0.60, 11:00-11:30 at 0.30 = 0.40 + 0.60 + 0.15 = 1.15
    """
    history = [
        SpotPrice(LAUNCHED - timedelta(minutes=48), 0.40),
        SpotPrice(LAUNCHED + timedelta(minutes=30), 0.60),
        SpotPrice(LAUNCHED + timedelta(minutes=119), 0.30),
    ]
    line = spot_hire("trn1.2xlarge", "us-east-1b", history, LAUNCHED, 2.5 * 3600)
    assert line.usd == pytest.approx(1.15)
    assert line.what == "trn1.2xlarge, spot in us-east-1b"
    assert line.amount == 2.5


def test_a_capacity_block_says_that_it_was_paid_beforehand() -> None:
    offer = InstanceOffer("trn2.3xlarge", "ap-southeast-4", Pricing.CAPACITY_BLOCK)
    assert "paid in full beforehand" in hire(offer.at(2.235, DAY, "a test"), 3600).what


def test_what_nobody_counted_or_priced_is_named_and_not_summed() -> None:
    usage = RunUsage(volume_gb_hours=730, address_hours=1, bytes_out=None, stored_gb_hours=None)
    bill = make_bill([], usage, {Service.VOLUME: SERVICES[Service.VOLUME]})
    assert bill.usd == pytest.approx(0.08)
    assert bill.unknown == (
        "public-ipv4: no price is known",
        "traffic-out: not counted",
        "s3-storage: not counted",
    )


def test_an_hour_of_a_target_is_instance_volume_and_address() -> None:
    bill = hourly(TRN1, SERVICES, 250)
    assert [line.what for line in bill.lines] == [
        "trn1.2xlarge, on-demand",
        "gp3-volume",
        "public-ipv4",
    ]
    assert bill.usd == pytest.approx(1.34375 + 250 * 0.08 / 730 + 0.005)
    private = hourly(TRN1, SERVICES, 250, addresses=0)
    assert bill.usd - private.usd == pytest.approx(0.005)
