"""What an hour of a deployment costs: the instance, its volume and a public address."""

from __future__ import annotations

from typing import NamedTuple

from deploy.bill import RunBill, hourly
from deploy.deployment import Deployment
from deploy.ec2_prices import InstanceOffer, Price, Pricing
from deploy.pricing import open_prices


class HourlyQuote(NamedTuple):
    """The instance's price, and the bill of an hour of everything."""

    price: Price
    hour: RunBill


def hourly_quote(deployment: Deployment, *, live: bool) -> HourlyQuote:
    """What an hour of the deployment costs. Raises Unpriced without a price of the instance.

    live: false asks nobody
    """
    prices = open_prices(live=live)
    offer = InstanceOffer(deployment.instance.name, deployment.region, Pricing(deployment.market))
    price = prices.quote(offer).price
    services, addresses = prices.services(deployment.region), 0 if deployment.private else 1
    return HourlyQuote(price, hourly(price, services, deployment.volume_gib, addresses))
