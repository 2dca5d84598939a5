"""What a run has used and costs so far, by AWS's own records and prices. Reads only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from deploy.aws import Aws, aws_refusals
from deploy.aws_prices import LivePrices
from deploy.bill import (
    BYTES_PER_GB,
    Line,
    RunBill,
    RunUsage,
    charged_seconds,
    hire,
    make_bill,
    spot_hire,
)
from deploy.bucket import HostBucket
from deploy.deployment import own_bucket
from deploy.ec2_prices import InstanceOffer, NoPrice, Pricing
from deploy.pricing import PriceChain
from deploy.running_instance import RunningInstance
from deploy.stack import StackState
from inference.cost.accounting import SECONDS_PER_HOUR
from inference.errors import OutriderError

_MOST_POINTS = 1440  # that CloudWatch gives in one reply


@dataclass(frozen=True)
class Run:
    """An instance with its volume and bucket, from its launch until it ended, or until now."""

    instance: RunningInstance
    volume_gib: float
    bucket: str
    now: datetime
    addresses: int = 1  # public ones

    @property
    def until(self) -> datetime:
        return self.now if self.instance.alive else self.instance.ended or self.now

    @property
    def seconds(self) -> float:
        return max(0.0, (self.until - self.instance.launched).total_seconds())


def run_of(state: StackState, instance: RunningInstance) -> Run:
    """The run of a stack's instance until now."""
    given = state.parameters
    addresses = 0 if given.get("Private") == "true" else 1
    now = datetime.now(timezone.utc)
    return Run(instance, float(given["DiskGiB"]), given["Bucket"], now, addresses)


def read_usage(aws: Aws, run: Run) -> RunUsage:
    """What the run used beside its instance's hours."""
    hours = run.seconds / SECONDS_PER_HOUR
    return RunUsage(
        volume_gb_hours=run.volume_gib * charged_seconds(run.seconds) / SECONDS_PER_HOUR,
        address_hours=run.addresses * hours,
        bytes_out=_bytes_out(aws, run),
        stored_gb_hours=_stored_gb_hours(aws, run.bucket, hours),
    )


def bill_of(aws: Aws, run: Run, prices: PriceChain, live: bool = True) -> RunBill:
    """The bill of a run at these prices.

    live: whether the history of spot prices may be asked
    """
    usage, services = read_usage(aws, run), prices.services(aws.region)
    try:
        line = _instance_line(aws, run, prices, live)
    except NoPrice as error:
        rest = make_bill([], usage, services)
        return RunBill(rest.lines, (str(error), *rest.unknown))
    return make_bill([line], usage, services)


def _instance_line(aws: Aws, run: Run, prices: PriceChain, live: bool) -> Line:
    instance = run.instance
    offer = InstanceOffer(instance.type, aws.region, Pricing(instance.market))
    if offer.pricing is Pricing.SPOT and live:
        zone, launched = instance.zone, instance.launched
        history = LivePrices().spot_history(offer, zone, launched, run.until)
        return spot_hire(instance.type, zone, history, launched, run.seconds)
    return hire(prices.quote(offer).price, run.seconds)


def _bytes_out(aws: Aws, run: Run) -> float | None:
    """All bytes that left the instance, those to services of AWS included: an upper bound of the
    traffic to the internet. None where CloudWatch cannot be asked.
    """
    minutes = max(5, math.ceil(run.seconds / 60 / _MOST_POINTS))
    try:
        with aws_refusals():
            found = aws.client("cloudwatch").get_metric_statistics(
                Namespace="AWS/EC2",
                MetricName="NetworkOut",
                Dimensions=[{"Name": "InstanceId", "Value": run.instance.instance_id}],
                StartTime=run.instance.launched,
                EndTime=run.until + timedelta(minutes=1),  # later than a start just now
                Period=minutes * 60,
                Statistics=["Sum"],
            )
    except OutriderError:
        return None
    return float(sum(point["Sum"] for point in found["Datapoints"]))


def _stored_gb_hours(aws: Aws, bucket: str, hours: float) -> float | None:
    """What the bucket holds now, for the hours of the run; None for a bucket that also has other
    things, or that cannot be read.
    """
    try:
        if bucket != own_bucket(aws.account, aws.region):
            return None
        return HostBucket(aws, bucket).contents().size / BYTES_PER_GB * hours
    except OutriderError:
        return None
