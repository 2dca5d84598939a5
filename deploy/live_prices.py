"""Prices asked of AWS now, through boto3. It only ever asks: nothing here can buy, start or change
anything.

Written against botocore's models and public replies; not yet run against AWS.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from datetime import date, datetime, timezone
from typing import Any, TypeVar

from deploy.price import NoPrice, Offer, Price, Pricing, SourceDown, TransferPrice
from deploy.price_list import (
    BLOCK_HOURS,
    SPOT_PRODUCTS,
    capacity_block_usd,
    on_demand_filters,
    on_demand_usd,
    spot_usd,
    transfer_filters,
    transfer_usd_per_gb,
)

PRICE_LIST_REGION = "us-east-1"
"""The price list is served from three regions only, whatever region it is asked about."""
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
T = TypeVar("T")


class LivePrices:
    """The price list, spot history and capacity block offerings of EC2; a PriceSource.

    client: makes a boto3 client for (service, region). Without credentials or network everything is
    given up after the first call.
    """

    name = "AWS"

    def __init__(self, client: Callable[[str, str], Any] | None = None) -> None:
        self._client = functools.cache(client or make_client)
        self._down: str | None = None

    def price(self, offer: Offer) -> Price:
        usd, source = {
            Pricing.ON_DEMAND: self._on_demand,
            Pricing.SPOT: self._spot,
            Pricing.CAPACITY_BLOCK: self._capacity_block,
        }[offer.pricing](offer)
        return Price(offer, usd, _today(), source)

    def transfer(self, region: str) -> TransferPrice:
        rows = self._ask(
            "pricing:GetProducts",
            lambda: self._products("AWSDataTransfer", transfer_filters(region)),
        )
        return TransferPrice(
            region,
            0.0,
            transfer_usd_per_gb(rows, region),
            _today(),
            "AWS price list; traffic in is free",
        )

    def _on_demand(self, offer: Offer) -> tuple[float, str]:
        rows = self._ask(
            "pricing:GetProducts", lambda: self._products("AmazonEC2", on_demand_filters(offer))
        )
        return on_demand_usd(rows, offer), "AWS price list"

    def _spot(self, offer: Offer) -> tuple[float, str]:
        now = datetime.now(timezone.utc)

        def history() -> list[Any]:
            pages = self._client("ec2", offer.region).get_paginator("describe_spot_price_history")
            asked = {
                "InstanceTypes": [offer.instance_type],
                "ProductDescriptions": [SPOT_PRODUCTS[0]],
                "StartTime": now,
            }
            return [row for page in pages.paginate(**asked) for row in page["SpotPriceHistory"]]

        usd, zone = spot_usd(self._ask("ec2:DescribeSpotPriceHistory", history))
        return usd, f"EC2 spot history, {zone}"

    def _capacity_block(self, offer: Offer) -> tuple[float, str]:
        def offerings() -> list[Any]:
            pages = self._client("ec2", offer.region).get_paginator(
                "describe_capacity_block_offerings"
            )
            asked = {
                "InstanceType": offer.instance_type,
                "InstanceCount": 1,
                "CapacityDurationHours": BLOCK_HOURS,
            }
            return [
                row for page in pages.paginate(**asked) for row in page["CapacityBlockOfferings"]
            ]

        usd, block = capacity_block_usd(self._ask("ec2:DescribeCapacityBlockOfferings", offerings))
        return usd, f"EC2 capacity block offering, {block}"

    def _products(self, service: str, filters: list[dict[str, str]]) -> list[str]:
        pages: Iterable[Any] = (
            self._client("pricing", PRICE_LIST_REGION)
            .get_paginator("get_products")
            .paginate(ServiceCode=service, FormatVersion="aws_v1", Filters=filters)
        )
        return [row for page in pages for row in page["PriceList"]]

    def _ask(self, permission: str, call: Callable[[], T]) -> T:
        """A call with its errors as ours."""
        if self._down:
            raise SourceDown(self._down)
        try:
            return _translated(permission, call)
        except SourceDown as error:
            self._down = str(error)
            raise


def make_client(service: str, region: str) -> Any:
    """A boto3 client that gives up within seconds; raises SourceDown where there is no boto3 or
    no credentials.
    """
    try:
        import boto3
        from botocore.config import Config
    except ImportError as error:
        raise SourceDown("boto3 is not installed: pip install 'outrider[aws]'") from error
    session = boto3.Session()
    if session.get_credentials() is None:
        raise SourceDown("there are no AWS credentials here")
    retries = {"mode": "standard", "max_attempts": _ATTEMPTS}
    return session.client(
        service,
        region,
        config=Config(
            retries=retries, connect_timeout=_CONNECT_SECONDS, read_timeout=_READ_SECONDS
        ),
    )


def _translated(permission: str, call: Callable[[], T]) -> T:
    try:
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        return call()  # which says what is missing
    try:
        return call()
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        if code in _REFUSED_ALTOGETHER:
            raise SourceDown(f"the credentials are refused ({code})") from error
        if code in _DENIED:
            raise NoPrice(f"denied: the credentials lack {permission}") from error
        raise NoPrice(f"{permission}: {error}") from error
    except BotoCoreError as error:
        raise SourceDown(str(error)) from error


def _today() -> date:
    return datetime.now(timezone.utc).date()
