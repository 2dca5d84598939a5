"""What a deployment costs an hour: the instance, its volume and its public address."""

from __future__ import annotations

from dataclasses import dataclass

from deploy.deployment import Deployment
from deploy.ec2_prices import InstanceOffer, Price, Pricing, Service, ServiceOffer
from deploy.pricing import PriceChain, Unpriced, open_prices

_HOURS_PER_MONTH = 730


@dataclass(frozen=True)
class HourlyCost:
    """US dollars an hour, and why some of them are not known."""

    instance: Price | None
    beside: float  # for volume and address, as far as they are known
    unknown: tuple[str, ...] = ()

    @property
    def usd(self) -> float | None:
        """All together; None without the instance's price."""
        return None if self.instance is None else self.instance.usd_per_hour + self.beside


def hourly_cost(deployment: Deployment, *, live: bool) -> HourlyCost:
    """What the deployment costs.

    live: false asks nobody
    """
    prices, unknown = open_prices(live=live), []
    instance, beside = None, 0.0
    pricing = Pricing(deployment.market)
    try:
        offer = InstanceOffer(deployment.instance.name, deployment.region, pricing)
        instance = prices.quote(offer).price
    except Unpriced as error:
        unknown.append(str(error))
    units = {Service.VOLUME: deployment.volume_gib / _HOURS_PER_MONTH, Service.ADDRESS: 1.0}
    for service, amount in units.items():
        try:
            beside += amount * _rate(prices, service, deployment.region)
        except Unpriced as error:
            unknown.append(str(error))
    return HourlyCost(instance, beside, tuple(unknown))


def _rate(prices: PriceChain, service: Service, region: str) -> float:
    return prices.service(ServiceOffer(service, region)).rate
