"""Starts a deployment's stack: in the first zone that has the instance, or goes on with one that
stands already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from deploy.aws import Aws
from deploy.deployment import Deployment
from deploy.instance_kind import InstanceKind, Market
from deploy.instance_types import find_type
from deploy.places import SubnetInZone
from deploy.running_instance import describe_instance
from deploy.stack import Cause, Glance, LaunchFailure, StackState, TargetStack
from deploy.stack_template import stack_parameters, template_body
from inference.errors import InvalidRequest, OutriderError, Unavailable

Say = Callable[[str], None]


class Launch:
    """The start of one deployment.

    say, glance: hear what happened, and how things are at this moment
    """

    def __init__(self, aws: Aws, deployment: Deployment, say: Say, glance: Glance) -> None:
        self._aws, self._deployment = aws, deployment
        self._say, self._glance = say, glance
        self._stack = TargetStack(aws, deployment.stack)

    def standing(self) -> StackState | None:
        """The stack of an earlier `up`, where its instance runs; what is left of any other is
        removed. Raises InvalidRequest where it runs something else.
        """
        state = self._stack.state()
        if state is None:
            return None
        state = self._stack.settled(state, self._glance)
        if state.whole and state.instance_id is not None:
            self._check_same(state)
            instance = describe_instance(self._aws, state.instance_id)
            if instance is not None and instance.alive:
                self._say(f"{self._stack.name} stands already: going on with it")
                return state
        self._say(f"{self._stack.name} is {state.status} without a running instance: removing it")
        self._stack.remove(state, self._glance)
        return None

    def may_stand(self) -> bool:
        """Whether a stack of this deployment may be there; true where AWS does not say."""
        try:
            return self._stack.state() is not None
        except OutriderError:
            return True

    def start(self, places: Sequence[SubnetInZone], user_data: str, bucket: str) -> StackState:
        """Start the stack in the first of these places that takes it."""
        body = template_body(user_data)
        for place in places:
            self._say(f"starting {self._deployment.instance.name} in {place.zone}")
            lifetime = timedelta(hours=self._deployment.lifetime_hours)
            ends_at = (datetime.now(UTC) + lifetime).strftime("%Y-%m-%dT%H:%MZ")
            parameters = stack_parameters(self._deployment, place, bucket, ends_at)
            state = self._stack.settled(self._stack.create(body, parameters), self._glance)
            if state.whole:
                return state
            failure = self._stack.failure(state)
            if failure.cause is not Cause.NO_CAPACITY:
                raise self._refusal(failure)
            self._say(f"{place.zone} has no {self._deployment.instance.name} free")
        zones = [place.zone for place in places]
        raise Unavailable(
            capacity_remedy(self._deployment.instance, self._deployment.market, zones)
        )

    def _refusal(self, failure: LaunchFailure) -> InvalidRequest | Unavailable:
        deployment, reason = self._deployment, failure.reason
        if failure.cause is Cause.NO_QUOTA:
            cpus = find_type(self._aws, deployment.instance.name).vcpus
            return InvalidRequest(
                quota_remedy(
                    deployment.instance, deployment.market, deployment.region, cpus, reason
                )
            )
        if failure.cause is Cause.DENIED:
            return InvalidRequest(
                f"AWS denies {failure.resource} to these credentials: {reason}; docs/deploy.md "
                "lists what they must be allowed"
            )
        if failure.cause is Cause.NO_IMAGE:
            return InvalidRequest(
                f"the machine image of {deployment.image_parameter} cannot be used: {reason}"
            )
        return Unavailable(f"{deployment.stack} could not be made: {failure.resource}: {reason}")

    def _check_same(self, state: StackState) -> None:
        """Raise InvalidRequest where the stack was made for another deployment."""
        asked = {
            "InstanceType": self._deployment.instance.name,
            "Port": str(self._deployment.port),
            "AllowCidr": self._deployment.allow_cidr or "",
            "Private": str(self._deployment.private).lower(),
            "Market": self._deployment.market,
            "Served": self._deployment.served,
        }
        for key, value in asked.items():
            stands = state.parameters.get(key)
            if stands != value:
                raise InvalidRequest(
                    f"{self._stack.name} stands with {key} {stands or 'none'}, and "
                    f"{value or 'none'} is asked for: `outrider deploy down "
                    f"{self._deployment.name}` first, or choose another name"
                )


def quota_remedy(
    instance: InstanceKind, market: Market, region: str, virtual_cpus: int, reason: str
) -> str:
    """The request to make to AWS where the quota is too small. The first request of a new account
    is often answered within a day.
    """
    quota = instance.quota(market)
    return (
        f"the account may not run {instance.name} in {region}: its quota {quota.name!r} is too "
        f"small, {virtual_cpus} vCPU more are needed. Ask AWS for them: "
        "aws service-quotas request-service-quota-increase --service-code ec2 "
        f"--quota-code {quota.code} --desired-value {virtual_cpus} --region {region} "
        f"(AWS said: {reason})"
    )


def capacity_remedy(instance: InstanceKind, market: Market, zones: list[str]) -> str:
    """The advice where no zone has such an instance free: what to try."""
    other = {
        "on-demand": "--spot",
        "spot": "without --spot",
        "capacity-block": "the zone of the block (--subnet)",
    }[market]
    return (
        f"AWS has no {instance.name} free ({market}) in {', '.join(zones)}. Try again later, "
        f"another --region, or {other}"
    )
