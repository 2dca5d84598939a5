"""Starts a host's stack in the first zone with capacity, or continues an earlier start."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from compile.aws import Aws
from deploy.deployment import Host
from deploy.instance.places import SubnetInZone, host_size
from deploy.instance.running import describe_instance
from deploy.stack import (
    LaunchFailure,
    StackState,
    TargetStack,
    stack_parameters,
    template_body,
)
from inference.command import say
from inference.errors import InvalidRequest, OutriderError, Unavailable

_OTHER_WAYS = {
    "on-demand": "--spot",
    "spot": "without --spot",
    "capacity-block": "the zone of the block (--subnet)",
}
"""What to try if no zone has capacity, by how the instance is bought."""


class Launch:
    """The launch of one host."""

    def __init__(self, aws: Aws, host: Host) -> None:
        self._aws, self._host = aws, host
        self._stack = TargetStack(aws, host.stack)

    def standing(self) -> StackState | None:
        """Return the stack of an earlier `up` if its instance runs; otherwise remove what is left
        of it. Raises InvalidRequest if the instance has other settings.
        """
        state = self._stack.state()
        if state is None:
            return None
        state = self._stack.settled(state)
        if state.whole and state.instance_id is not None:
            self._check_same(state)
            instance = describe_instance(self._aws, state.instance_id)
            if instance is not None and instance.alive:
                say(f"{self._stack.name} already runs: continuing")
                return state
        say(f"{self._stack.name} is {state.status} without a running instance: removing it")
        self._stack.remove(state)
        return None

    def may_stand(self) -> bool:
        """Return whether a stack of this host may exist; True if AWS does not answer."""
        try:
            return self._stack.state() is not None
        except OutriderError:
            return True

    def start(self, places: Sequence[SubnetInZone], user_data: str, bucket: str) -> StackState:
        """Start the stack in the first of these subnets whose zone has capacity."""
        body, instance = template_body(user_data), self._host.instance.name
        for place in places:
            say(f"starting {instance} in {place.zone}")
            ends_at = datetime.now(UTC) + timedelta(hours=self._host.lifetime_hours)
            parameters = stack_parameters(self._host) | {
                "VpcId": place.vpc,
                "SubnetId": place.subnet,
                "Bucket": bucket,
                "EndsAt": ends_at.strftime("%Y-%m-%dT%H:%MZ"),
            }
            state = self._stack.settled(self._stack.create(body, parameters))
            if state.whole:
                return state
            failure = self._stack.failure(state)
            if failure.cause != "capacity":
                raise self._refusal(failure)
            say(f"{place.zone} has no {instance} free")
        market = self._host.market
        raise Unavailable(
            f"AWS has no {instance} free ({market}) in "
            f"{', '.join(place.zone for place in places)}. Try again later, another --region, or "
            f"{_OTHER_WAYS[market]}"
        )

    def _refusal(self, failure: LaunchFailure) -> InvalidRequest | Unavailable:
        """Return the exception for a stack that could not be created: the reason and the remedy."""
        host, reason = self._host, failure.reason
        if failure.cause == "quota":
            instance, region = host.instance, host.region
            quota = instance.quota(host.market)
            cpus = host_size(self._aws, instance.name).vcpus
            return InvalidRequest(
                f"the account may not run {instance.name} in {region}: its quota {quota.name!r} "
                f"is too small, {cpus} vCPU more are needed. Ask AWS for them: "
                "aws service-quotas request-service-quota-increase --service-code ec2 "
                f"--quota-code {quota.code} --desired-value {cpus} --region {region} "
                f"(AWS said: {reason})"
            )
        if failure.cause == "denied":
            return InvalidRequest(
                f"AWS denies {failure.resource} to these credentials: {reason}; docs/deploy.md "
                "lists what they must be allowed"
            )
        if failure.cause == "image":
            return InvalidRequest(
                f"the machine image of {host.image_parameter} cannot be used: {reason}"
            )
        return Unavailable(f"{host.stack} could not be created: {failure.resource}: {reason}")

    def _check_same(self, state: StackState) -> None:
        """Raise InvalidRequest if the stack was created with other settings."""
        requested = stack_parameters(self._host)
        for key in ("InstanceType", "AllowCidr", "Private", "Market", "Served"):
            present, value = state.parameters.get(key), requested.get(key, "")
            if present != value:
                raise InvalidRequest(
                    f"{self._stack.name} runs with {key} {present or 'none'}, and "
                    f"{value or 'none'} is requested: `outrider deploy down "
                    f"{self._host.name}` first, or choose another name"
                )
