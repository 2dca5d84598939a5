"""Asks AWS for present prices through boto3: price list, spot history, capacity block offerings and
savings plans. Nothing here can buy, start or change anything.

Written against botocore's models and public replies; not yet run against AWS.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from statistics import median
from typing import Any, NamedTuple

from deploy.aws import Aws, AwsDown, all_rows
from deploy.ec2_prices import (
    Answer,
    InstanceOffer,
    NoPrice,
    Offer,
    Pricing,
    Service,
    ServiceOffer,
    ServicePrice,
    Tier,
)
from deploy.instance_types import WITHOUT_ON_DEMAND
from inference.errors import Mismatch, MissingExtra, OutriderError

PRICE_LIST_REGION = "us-east-1"
"""Region whose price list is asked. Three regions serve it, whatever region it is asked about."""

ON_DEMAND_TERMS = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "capacitystatus": "Used",
    "preInstalledSw": "NA",
    "marketoption": "OnDemand",
    "licenseModel": "No License required",
    "operation": "RunInstances",
}
"""Attributes that select one row of the list. Without marketoption, an instance that is sold as
capacity blocks also has a row at $0.00.
"""

SERVICES: Mapping[Service, tuple[str, str, Mapping[str, str]]] = {
    Service.TRAFFIC_OUT: (
        "AWSDataTransfer",
        "GB",
        {"transferType": "AWS Outbound", "toLocation": "External"},
    ),
    Service.VOLUME: (
        "AmazonEC2",
        "GB-Mo",
        {"productFamily": "Storage", "volumeApiName": "gp3"},
    ),
    Service.ADDRESS: ("AmazonVPC", "Hrs", {"group": "VPCPublicIPv4Address"}),
    Service.STORAGE: (
        "AmazonS3",
        "GB-Mo",
        {"storageClass": "General Purpose", "volumeType": "Standard"},
    ),
}
"""Where the price list has a service: its code, its unit, and the attributes of its rows."""

BLOCK_HOURS = 24
_YEAR_SECONDS = 365 * 24 * 3600
_LINUX = "Linux/UNIX"
_SPOT_PRODUCTS = (_LINUX, "Linux/UNIX (Amazon VPC)")


class SpotPrice(NamedTuple):
    """A spot price, and the time from which it holds."""

    since: datetime
    usd_per_hour: float


class LivePrices:
    """A PriceSource that asks AWS. Without credentials or network it gives up after the first call.

    client: makes a boto3 client for (service, region)
    """

    name = "AWS"

    def __init__(self, client: Callable[[str, str], Any] | None = None) -> None:
        self._client = functools.cache(client or make_client)
        self._down: NoPrice | None = None

    def answer(self, offer: Offer) -> Answer:
        if isinstance(offer, ServiceOffer):
            return self._service(offer)
        ask = {
            Pricing.ON_DEMAND: self._on_demand,
            Pricing.SPOT: self._spot,
            Pricing.CAPACITY_BLOCK: self._capacity_block,
        }.get(offer.pricing, self._savings)
        usd, source = ask(offer)
        return offer.at(usd, _now().date(), source)

    def spot_history(
        self, offer: InstanceOffer, zone: str, since: datetime, until: datetime
    ) -> list[SpotPrice]:
        """What spot cost in a zone between two times, in order of time. Raises NoPrice."""
        asked = {"AvailabilityZone": zone, "StartTime": since, "EndTime": until}
        found = self._spot_prices(offer, asked).get(zone)
        if not found:
            raise NoPrice(f"EC2 has no spot price of {offer.instance_type} in {zone}")
        return found

    def _on_demand(self, offer: InstanceOffer) -> tuple[float, str]:
        """The one price among the rows. Raises Mismatch where there are several, since it cannot
        be known which is paid. Rows at $0, for other systems or in other units are passed over.
        """
        if offer.instance_type in WITHOUT_ON_DEMAND:
            raise NoPrice("it is sold as capacity blocks and spot only")
        rates = self._rates("AmazonEC2", "Hrs", on_demand_terms(offer))
        found = sorted({usd for _, usd in rates if usd > 0})
        if not found:
            raise NoPrice("the price list has no on-demand price for it")
        if len(found) > 1:
            several = ", ".join(f"${usd:g}" for usd in found)
            raise Mismatch(
                f"the price list has several prices for {offer}: {several}; give --price_file"
            )
        return found[0], "AWS price list"

    def _spot(self, offer: InstanceOffer) -> tuple[float, str]:
        """The cheapest zone's current price; its note names the zone and the others' median."""
        zones = self._spot_prices(offer, {"StartTime": _now()})
        asked = sorted((prices[-1].usd_per_hour, zone) for zone, prices in zones.items())
        if not asked:
            raise NoPrice("it has no spot price in any zone")
        usd, zone = asked[0]
        middle = median(usd for usd, _ in asked)
        note = f"{zone}, the cheapest of {len(asked)} zones, median ${middle:g}"
        return usd, f"EC2 spot history, {note}"

    def _spot_prices(
        self, offer: InstanceOffer, when: Mapping[str, Any]
    ) -> dict[str, list[SpotPrice]]:
        """Prices above $0 by zone, in order of time."""
        asked = {"InstanceTypes": [offer.instance_type], "ProductDescriptions": [_LINUX]}
        operation, key = "describe_spot_price_history", "SpotPriceHistory"
        rows = self._rows("ec2", operation, offer.region, key, **asked, **when)
        zones: dict[str, list[SpotPrice]] = {}
        for row in sorted(rows, key=lambda row: row["Timestamp"]):
            if row["ProductDescription"] in _SPOT_PRODUCTS and float(row["SpotPrice"]) > 0:
                price = SpotPrice(row["Timestamp"], float(row["SpotPrice"]))
                zones.setdefault(row["AvailabilityZone"], []).append(price)
        return zones

    def _capacity_block(self, offer: InstanceOffer) -> tuple[float, str]:
        """The cheapest block's hourly price; a block is paid in full beforehand."""
        asked = {
            "InstanceType": offer.instance_type,
            "InstanceCount": 1,
            "CapacityDurationHours": BLOCK_HOURS,
        }
        operation, key = "describe_capacity_block_offerings", "CapacityBlockOfferings"
        blocks = []
        for block in self._rows("ec2", operation, offer.region, key, **asked):
            duration, fee = block["CapacityBlockDurationHours"], float(block["UpfrontFee"])
            hours = duration * block["InstanceCount"]
            if block.get("CurrencyCode", "USD") == "USD" and hours > 0 and fee > 0:
                where = f"{duration} hours in {block['AvailabilityZone']} for ${fee:g} upfront"
                blocks.append((fee / hours, f"EC2 capacity block offering, {where}"))
        if not blocks:
            raise NoPrice("no capacity block is offered")
        return min(blocks)

    def _savings(self, offer: InstanceOffer) -> tuple[float, str]:
        """The rate of a plan for an hour in which the instance runs."""
        years = 1 if offer.pricing is Pricing.SAVINGS_1YR else 3
        asked = {
            "savingsPlanPaymentOptions": ["No Upfront"],
            "savingsPlanTypes": ["EC2Instance"],
            "products": ["EC2"],
            "serviceCodes": ["AmazonEC2"],
            "filters": savings_filters(offer),
        }
        operation = "describe_savings_plans_offering_rates"
        found = [
            float(row["rate"])
            for row in self._rows(
                "savingsplans", operation, PRICE_LIST_REGION, "searchResults", **asked
            )
            if row["unit"] == "Hrs" and "BoxUsage" in row["usageType"]
            if row["savingsPlanOffering"]["durationSeconds"] == years * _YEAR_SECONDS
            if row["savingsPlanOffering"]["currency"] == "USD"
        ]
        if not found:
            raise NoPrice(f"no savings plan of {years} years is offered for it")
        return min(found), f"AWS savings plan, {years} years, no upfront"

    def _service(self, offer: ServiceOffer) -> ServicePrice:
        code, unit, _ = SERVICES[offer.service]
        tiers = sorted(self._rates(code, unit, service_terms(offer)))
        begins = [begin for begin, _ in tiers]
        if begins[:1] != [0] or len({*begins}) < len(begins):
            raise NoPrice(f"the price list has {len(tiers)} prices of {offer} that make no tiers")
        return ServicePrice(
            **vars(offer.offer),
            tiers=tuple(Tier(*tier) for tier in tiers),
            as_of=_now().date(),
            source="AWS price list",
        )

    def _rates(self, code: str, unit: str, terms: Mapping[str, str]) -> set[tuple[float, float]]:
        """(beginning of the tier, dollars a unit) of the list's on-demand rates. Rows with other
        attributes are left out, whatever AWS filtered.
        """
        asked = {"ServiceCode": code, "FormatVersion": "aws_v1", "Filters": filters(terms)}
        rows = self._rows("pricing", "get_products", PRICE_LIST_REGION, "PriceList", **asked)
        found = set()
        for row in map(json.loads, rows):
            attributes = row["product"]["attributes"]
            if all(attributes.get(key, value) == value for key, value in terms.items()):
                terms_of_row = row["terms"].get("OnDemand", {}).values()
                found |= {
                    (float(rate.get("beginRange", 0)), float(rate["pricePerUnit"].get("USD", 0)))
                    for term in terms_of_row
                    for rate in term["priceDimensions"].values()
                    if rate["unit"] == unit
                }
        return found

    def _rows(
        self, service: str, operation: str, region: str, key: str, **asked: object
    ) -> list[Any]:
        """The rows under the key on all pages of a reply. Errors become those of a source."""
        if self._down:
            raise self._down
        try:
            return all_rows(self._client(service, region), operation, key, **asked)
        except (MissingExtra, AwsDown) as error:
            self._down = NoPrice(str(error))
            raise self._down from error
        except OutriderError as error:
            raise NoPrice(str(error)) from error


def make_client(service: str, region: str) -> Any:
    """boto3's client of a service. Raises MissingExtra without boto3, AwsDown without
    credentials.
    """
    return Aws(region).client(service)


def on_demand_terms(offer: InstanceOffer) -> dict[str, str]:
    """The attributes of an instance's row in the price list."""
    return {"instanceType": offer.instance_type, "regionCode": offer.region} | ON_DEMAND_TERMS


def service_terms(offer: ServiceOffer) -> dict[str, str]:
    """The attributes of a service's rows in the price list."""
    field = "fromRegionCode" if offer.service is Service.TRAFFIC_OUT else "regionCode"
    return {field: offer.region, **SERVICES[offer.service][2]}


def filters(terms: Mapping[str, str]) -> list[dict[str, str]]:
    """Terms in the form that GetProducts takes."""
    return [
        {"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in terms.items()
    ]


def savings_filters(offer: InstanceOffer) -> list[dict[str, Any]]:
    """What selects an instance's rates among those of savings plans."""
    return [
        {"name": "region", "values": [offer.region]},
        {"name": "instanceType", "values": [offer.instance_type]},
        {"name": "tenancy", "values": ["shared"]},
        {"name": "productDescription", "values": [_LINUX]},
    ]


def _now() -> datetime:
    return datetime.now(timezone.utc)
