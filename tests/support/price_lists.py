"""Rows of AWS's price list, and a boto3 client that answers with what a test wrote down."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import boto3
from botocore.stub import Stubber

from deploy.aws_prices import LivePrices
from deploy.ec2_prices import InstanceOffer


def product(offer: InstanceOffer, *dimensions: tuple[str, str, str], **attributes: str) -> str:
    """A row of the price list: dimensions are (unit, dollars, beginning of the tier)."""
    terms = {
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "capacitystatus": "Used",
        "preInstalledSw": "NA",
        "marketoption": "OnDemand",
    }
    terms |= {"licenseModel": "No License required", "operation": "RunInstances"}
    rates = {
        f"SKU.OFFER.{number}": {
            "unit": unit,
            "pricePerUnit": {"USD": usd},
            "beginRange": begin,
            "endRange": "Inf",
            "description": "",
        }
        for number, (unit, usd, begin) in enumerate(dimensions)
    }
    row = {
        "product": {
            "sku": "SKU",
            "attributes": {"instanceType": offer.instance_type, "regionCode": offer.region}
            | terms
            | attributes,
        },
        "serviceCode": "AmazonEC2",
        "terms": {
            "OnDemand": {
                "SKU.OFFER": {"effectiveDate": "2026-09-01T00:00:00Z", "priceDimensions": rates}
            }
        },
    }
    return json.dumps(row)


def hourly(offer: InstanceOffer, usd: str, **attributes: str) -> str:
    return product(offer, ("Hrs", usd, "0"), **attributes)


def live(service: str, script: Callable[[Stubber], object]) -> LivePrices:
    """LivePrices whose client of this service answers by the script."""
    client = boto3.client(
        service,
        region_name="us-east-1",
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )
    stubber = Stubber(client)
    script(stubber)
    stubber.activate()

    def make(asked: str, region: str) -> Any:
        assert asked == service
        return client

    return LivePrices(make)
