"""Asks AWS for present prices through boto3: price list, spot history and capacity block offerings.
Nothing here can buy, start or change anything.

Written against botocore's models and public replies; not yet run against AWS.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime, timezone
from statistics import median
from typing import Any

from deploy.ec2_prices import InstanceOffer, NoPrice, Price, Pricing, SourceDown, TransferPrice
from inference.errors import Mismatch

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

TRANSFER_TERMS = {"transferType": "AWS Outbound", "toLocation": "External"}
SPOT_PRODUCTS = ("Linux/UNIX", "Linux/UNIX (Amazon VPC)")
BLOCK_HOURS = 24
_ATTEMPTS, _CONNECT_SECONDS, _READ_SECONDS = 5, 3, 10
_REFUSED_ALTOGETHER = {
    "AuthFailure",
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "RequestExpired",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
}
_DENIED = {"AccessDenied", "AccessDeniedException", "UnauthorizedOperation"}


class LivePrices:
    """A PriceSource that asks AWS. Without credentials or network it gives up after the first call.

    client: makes a boto3 client for (service, region)
    """

    name = "AWS"

    def __init__(self, client: Callable[[str, str], Any] | None = None) -> None:
        self._client = functools.cache(client or make_client)
        self._down: str | None = None

    def price(self, offer: InstanceOffer) -> Price:
        ask = {
            Pricing.ON_DEMAND: self._on_demand,
            Pricing.SPOT: self._spot,
            Pricing.CAPACITY_BLOCK: self._capacity_block,
        }[offer.pricing]
        usd, source = ask(offer)
        return offer.at(usd, _today(), source)

    def transfer(self, region: str) -> TransferPrice:
        terms = {"fromRegionCode": region} | TRANSFER_TERMS
        usd = transfer_usd_per_gb(self._products("AWSDataTransfer", terms), region)
        return TransferPrice(region, 0.0, usd, _today(), "AWS price list; traffic in is free")

    def _on_demand(self, offer: InstanceOffer) -> tuple[float, str]:
        rows = self._products("AmazonEC2", on_demand_terms(offer))
        return on_demand_usd(rows, offer), "AWS price list"

    def _spot(self, offer: InstanceOffer) -> tuple[float, str]:
        history = self._rows(
            "ec2",
            "describe_spot_price_history",
            offer.region,
            "SpotPriceHistory",
            InstanceTypes=[offer.instance_type],
            ProductDescriptions=[SPOT_PRODUCTS[0]],
            StartTime=datetime.now(timezone.utc),
        )
        usd, zone = spot_usd(history)
        return usd, f"EC2 spot history, {zone}"

    def _capacity_block(self, offer: InstanceOffer) -> tuple[float, str]:
        offerings = self._rows(
            "ec2",
            "describe_capacity_block_offerings",
            offer.region,
            "CapacityBlockOfferings",
            InstanceType=offer.instance_type,
            InstanceCount=1,
            CapacityDurationHours=BLOCK_HOURS,
        )
        usd, block = capacity_block_usd(offerings)
        return usd, f"EC2 capacity block offering, {block}"

    def _products(self, service: str, terms: Mapping[str, str]) -> list[str]:
        return self._rows(
            "pricing",
            "get_products",
            PRICE_LIST_REGION,
            "PriceList",
            ServiceCode=service,
            FormatVersion="aws_v1",
            Filters=filters(terms),
        )

    def _rows(
        self, service: str, operation: str, region: str, key: str, **asked: object
    ) -> list[Any]:
        """The rows under the key on all pages of a reply. boto's errors are translated into
        ours.
        """
        if self._down:
            raise SourceDown(self._down)
        try:
            pages = self._client(service, region).get_paginator(operation).paginate(**asked)
            return [row for page in pages for row in page[key]]
        except SourceDown as error:
            self._down = str(error)
            raise
        except _boto_errors() as error:
            meant = _meaning(f"{service}:{operation.title().replace('_', '')}", error)
            if isinstance(meant, SourceDown):
                self._down = str(meant)
            raise meant from error


def make_client(service: str, region: str) -> Any:
    """A boto3 client that gives up within seconds. Raises SourceDown without boto3 or
    credentials.
    """
    try:
        import boto3
        from botocore.config import Config
    except ImportError as error:
        raise SourceDown("boto3 is not installed: pip install 'outrider[aws]'") from error
    session = boto3.Session()
    if session.get_credentials() is None:
        raise SourceDown("there are no AWS credentials here")
    settings = Config(
        retries={"mode": "standard", "max_attempts": _ATTEMPTS},
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=_READ_SECONDS,
    )
    return session.client(service, region, config=settings)


def _boto_errors() -> tuple[type[Exception], ...]:
    from botocore.exceptions import BotoCoreError, ClientError

    return (BotoCoreError, ClientError)


def _meaning(permission: str, error: Exception) -> NoPrice:
    """The error that one of boto's errors means for this source."""
    response: dict[str, Any] | None = getattr(error, "response", None)
    if response is None:  # none came
        return SourceDown(str(error))
    code = str(response.get("Error", {}).get("Code", ""))
    if code in _REFUSED_ALTOGETHER:
        return SourceDown(f"the credentials are refused ({code})")
    if code in _DENIED:
        return NoPrice(f"denied: the credentials lack {permission}")
    return NoPrice(f"{permission}: {error}")


def on_demand_terms(offer: InstanceOffer) -> dict[str, str]:
    """The attributes of an offer's row in the price list."""
    return {"instanceType": offer.instance_type, "regionCode": offer.region} | ON_DEMAND_TERMS


def filters(terms: Mapping[str, str]) -> list[dict[str, str]]:
    """Terms in the form that GetProducts takes."""
    return [
        {"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in terms.items()
    ]


def on_demand_usd(price_list: Iterable[str], offer: InstanceOffer) -> float:
    """The one hourly price among the rows. Raises NoPrice where none is left, and Mismatch where
    there are several, since it cannot be known which is paid.

    Rows at $0, for other systems or in other units are passed over.
    """
    rates = _rates(price_list, on_demand_terms(offer))
    found = sorted({usd for unit, usd, _ in rates if unit == "Hrs"})
    if not found:
        raise NoPrice("the price list has no on-demand price for it")
    if len(found) > 1:
        several = ", ".join(f"${usd:g}" for usd in found)
        raise Mismatch(
            f"the price list has several prices for {offer}: {several}; give --price_file"
        )
    return found[0]


def transfer_usd_per_gb(price_list: Iterable[str], region: str) -> float:
    """The first paid tier, in dollars a GB out to the internet. Raises NoPrice."""
    rates = _rates(price_list, TRANSFER_TERMS)
    tiers = [(begin, usd) for unit, usd, begin in rates if unit == "GB"]
    if not tiers:
        raise NoPrice(f"the price list has no price of traffic out of {region}")
    return min(tiers)[1]


def spot_usd(history: Iterable[Mapping[str, Any]]) -> tuple[float, str]:
    """The cheapest zone's current price, and a note that names the zone and the others' prices.
    Raises NoPrice.
    """
    latest: dict[str, Mapping[str, Any]] = {}
    for row in sorted(history, key=lambda row: row["Timestamp"]):
        if row["ProductDescription"] in SPOT_PRODUCTS:
            latest[row["AvailabilityZone"]] = row
    asked = sorted((float(row["SpotPrice"]), zone) for zone, row in latest.items())
    asked = [(usd, zone) for usd, zone in asked if usd > 0]
    if not asked:
        raise NoPrice("it has no spot price in any zone")
    usd, zone = asked[0]
    middle = median(usd for usd, _ in asked)
    return usd, f"{zone}, the cheapest of {len(asked)} zones, median ${middle:g}"


def capacity_block_usd(offerings: Iterable[Mapping[str, Any]]) -> tuple[float, str]:
    """The cheapest block's hourly price, and a note that describes the block. Raises NoPrice. A
    block is paid in full beforehand.
    """
    blocks = []
    for block in offerings:
        duration, fee = block["CapacityBlockDurationHours"], float(block["UpfrontFee"])
        hours = duration * block["InstanceCount"]
        if block.get("CurrencyCode", "USD") == "USD" and hours > 0 and fee > 0:
            where = f"{duration} hours in {block['AvailabilityZone']} for ${fee:g} upfront"
            blocks.append((fee / hours, where))
    if not blocks:
        raise NoPrice("no capacity block is offered")
    return min(blocks)


def _rates(
    price_list: Iterable[str], terms: Mapping[str, str]
) -> Iterator[tuple[str, float, float]]:
    """(unit, dollars, beginning of the tier) of the on-demand rates above $0. Rows with other terms
    are left out.
    """
    for row in map(json.loads, price_list):
        attributes = row["product"]["attributes"]
        if any(attributes.get(key, value) != value for key, value in terms.items()):
            continue
        for term in row["terms"].get("OnDemand", {}).values():
            for rate in term["priceDimensions"].values():
                usd = float(rate["pricePerUnit"].get("USD", 0))
                if usd > 0:
                    yield rate["unit"], usd, float(rate.get("beginRange", 0))


def _today() -> date:
    return datetime.now(timezone.utc).date()
