"""Reading AWS's replies: dollars out of the price list's JSON, of spot history and of capacity
block offerings. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from deploy.price import NoPrice, Offer
from inference.errors import Mismatch

ON_DEMAND_TERMS = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "capacitystatus": "Used",
    "preInstalledSw": "NA",
    "marketoption": "OnDemand",
    "licenseModel": "No License required",
    "operation": "RunInstances",
}
"""What pins one row of the list. Without marketoption an instance that is sold as capacity
blocks has a row at $0.00 as well.
"""

TRANSFER_TERMS = {"transferType": "AWS Outbound", "toLocation": "External"}
SPOT_PRODUCTS = ("Linux/UNIX", "Linux/UNIX (Amazon VPC)")
BLOCK_HOURS = 24


def on_demand_filters(offer: Offer) -> list[dict[str, str]]:
    """Filters of GetProducts for one offer."""
    return _filters(
        {"instanceType": offer.instance_type, "regionCode": offer.region} | ON_DEMAND_TERMS
    )


def transfer_filters(region: str) -> list[dict[str, str]]:
    """Filters of GetProducts for traffic from a region to the internet."""
    return _filters({"fromRegionCode": region} | TRANSFER_TERMS)


def on_demand_usd(price_list: Iterable[str], offer: Offer) -> float:
    """The one hourly price among the rows. Rows at $0, for other systems or in other units are
    passed over, filtered or not.

    Raises NoPrice where none is left, and Mismatch where several prices are: which of them is paid
    cannot be known.
    """
    wanted = {"instanceType": offer.instance_type, "regionCode": offer.region} | ON_DEMAND_TERMS
    found: set[float] = set()
    for row in map(json.loads, price_list):
        if all(
            row["product"]["attributes"].get(key, value) == value for key, value in wanted.items()
        ):
            found |= {usd for unit, usd, _ in _dimensions(row) if unit == "Hrs" and usd > 0}
    if not found:
        raise NoPrice("the price list has no on-demand price for it")
    if len(found) > 1:
        raise Mismatch(
            f"the price list has several prices for {offer}: "
            f"{', '.join(f'${usd:g}' for usd in sorted(found))}; give --price_file"
        )
    return found.pop()


def transfer_usd_per_gb(price_list: Iterable[str], region: str) -> float:
    """The first tier that is paid for, in dollars a GB out to the internet; raises NoPrice."""
    tiers: list[tuple[float, float]] = []
    for row in map(json.loads, price_list):
        if all(
            row["product"]["attributes"].get(key, value) == value
            for key, value in TRANSFER_TERMS.items()
        ):
            tiers += [
                (begin, usd) for unit, usd, begin in _dimensions(row) if unit == "GB" and usd > 0
            ]
    if not tiers:
        raise NoPrice(f"the price list has no price of traffic out of {region}")
    return min(tiers)[1]


def spot_usd(history: Iterable[Mapping[str, Any]]) -> tuple[float, str]:
    """The cheapest zone's current price, and in words which zone that is and what the others
    ask; raises NoPrice.
    """
    latest: dict[str, Mapping[str, Any]] = {}
    for row in history:
        zone = row["AvailabilityZone"]
        if row["ProductDescription"] in SPOT_PRODUCTS and (
            zone not in latest or row["Timestamp"] > latest[zone]["Timestamp"]
        ):
            latest[zone] = row
    prices = {
        zone: float(row["SpotPrice"]) for zone, row in latest.items() if float(row["SpotPrice"]) > 0
    }
    if not prices:
        raise NoPrice("it has no spot price in any zone")
    zone = min(prices, key=lambda name: (prices[name], name))
    return prices[
        zone
    ], f"{zone}, the cheapest of {len(prices)} zones, median ${median(prices.values()):g}"


def capacity_block_usd(offerings: Iterable[Mapping[str, Any]]) -> tuple[float, str]:
    """The cheapest block's hourly price, and in words what block that is; raises NoPrice. A
    block is paid beforehand, in full.
    """
    blocks = []
    for block in offerings:
        hours, fee = (
            block["CapacityBlockDurationHours"] * block["InstanceCount"],
            float(block["UpfrontFee"]),
        )
        if block.get("CurrencyCode", "USD") == "USD" and hours > 0 and fee > 0:
            blocks.append(
                (
                    fee / hours,
                    f"{block['CapacityBlockDurationHours']} hours in {block['AvailabilityZone']} "
                    f"for ${fee:g} upfront",
                )
            )
    if not blocks:
        raise NoPrice("no capacity block is offered")
    return min(blocks)


def _filters(terms: Mapping[str, str]) -> list[dict[str, str]]:
    return [
        {"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in terms.items()
    ]


def _dimensions(row: Mapping[str, Any]) -> Iterable[tuple[str, float, float]]:
    """(unit, dollars, beginning of the tier) of each on-demand rate of a row."""
    for term in row["terms"].get("OnDemand", {}).values():
        for rate in term["priceDimensions"].values():
            yield (
                rate["unit"],
                float(rate["pricePerUnit"].get("USD", 0)),
                float(rate.get("beginRange", 0)),
            )
