"""`outrider deploy up`: starts a target on AWS, and brings what reaches it to this machine."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import replace

from compile.store import open_store, push
from deploy.aws import Aws
from deploy.bucket import HostBucket, put_wheel
from deploy.commands.options import DeploymentOptions
from deploy.commands.status import host_commands
from deploy.deployment import Deployment, hub_token_parameter, secret_parameters
from deploy.handover import Handover, put_hub_token, withdraw_secrets
from deploy.host.user_data import HostSettings, user_data
from deploy.instance_price import NoPrice, Price
from deploy.launch import Launch
from deploy.plan import ask_account, dry_run, find_price, plan_lines
from deploy.running_instance import (
    InstanceEnded,
    RunningInstance,
    living_instance,
    progress,
)
from deploy.served import pinned_model, read_served
from deploy.stack import StackState
from grpc_comm.client.named_targets import (
    NamedTarget,
    find_target,
    forget_target,
    named_targets,
    read_target,
    targets_directory,
)
from inference.command import FAILED, glance, say
from inference.errors import InvalidRequest, OutriderError, Unavailable
from inference.flags.values import Count, File
from inference.model.hub import PinnedModel

EXAMPLES = """examples:
  outrider deploy up demo --instance c7i.2xlarge             the embedded target on CPUs
  outrider deploy up demo --instance c7i.2xlarge --dry_run   what that would create, and its price
  outrider deploy up demo --artifact s3://bucket/artefacts --digest HEX
  outrider deploy up demo --instance g6.xlarge --model Qwen/Qwen2.5-7B --spot
  outrider deploy up demo --instance c7i.2xlarge --allow_cidr 203.0.113.7/32
"""
"""Commands that users type. One given again goes on where an earlier one was broken off."""

_FIRST_LOCAL_PORT = 50151
_POLL_SECONDS = 5.0


class UpOptions(DeploymentOptions, title="start"):
    """Start a target on AWS: a CloudFormation stack that serves what is named here. The same
    command goes on where an earlier one was broken off; `outrider deploy down` removes all.
    """

    wheel: File | None = None
    """Outrider for the host (default: built from this checkout)"""
    yes: bool = False
    """start without asking; needed where stdin is no terminal"""
    no_wait: bool = False
    """end when the host has been started, before it serves"""
    patience_minutes: Count = 45
    """how long to wait until the host serves"""
    dry_run: bool = False
    """print what would be created and what that costs, and start nothing"""


def run(options: UpOptions) -> int:
    """Start the target, wait until it serves, and say how to reach it. Returns 0."""
    if options.dry_run:
        print(*dry_run(options), sep="\n")
        return 0
    try:
        return _up(options)
    except KeyboardInterrupt:
        say(
            "interrupted: the same command goes on from here, and "
            f"`outrider deploy down {options.name}` removes what was made, which is paid for"
        )
        raise


def _up(options: UpOptions) -> int:
    aws = options.aws()
    deployment = options.deployment(aws.region)
    launch = Launch(aws, deployment)
    state = launch.standing()
    if state is None:
        state = _start(options, aws, deployment, launch)
        if state is None:
            return FAILED
    try:
        instance = _serve(options, aws, deployment, state)
    except OutriderError as error:
        if not isinstance(error, InstanceEnded):
            _say_that_it_is_paid(deployment.name)
        raise
    print(*_words(deployment, instance, state), sep="\n")
    return 0


def _say_that_it_is_paid(name: str) -> None:
    say(
        f"an instance of {name} may be running, and it is paid for: `outrider deploy down {name}` "
        "ends it and removes all; the same command goes on with it"
    )


def _serve(
    options: UpOptions, aws: Aws, deployment: Deployment, state: StackState
) -> RunningInstance:
    """The stack's instance, which has its credentials and, unless nobody waits, serves."""
    if find_target(deployment.name) is None:
        raise InvalidRequest(
            f"{deployment.stack} was started from another machine, which has its credentials: "
            f"copy {targets_directory() / deployment.name} from there"
        )
    instance = living_instance(aws, state.instance_id or "")
    target = read_target(deployment.name)
    handover = Handover(deployment.name, target.directory / "handover")
    if not target.complete:
        _hand_over(aws, deployment, target, instance, handover)
    if not options.no_wait:
        _wait_until_serving(aws, instance, options.patience_minutes)
        withdraw_secrets(aws, deployment.name)
        handover.end()
    return instance


def _remember(deployment: Deployment) -> None:
    """Keep the target's name and region here, before anything is made there."""
    forget_target(deployment.name)  # an earlier one, whose instance ended
    taken = {read_target(name).reached.port for name in named_targets()}
    port = next(port for port in range(_FIRST_LOCAL_PORT, 65536) if port not in taken)
    NamedTarget(deployment.name, f"127.0.0.1:{port}", deployment.region).write()


def _start(
    options: UpOptions, aws: Aws, deployment: Deployment, launch: Launch
) -> StackState | None:
    """The stack, started; None where the user wants none."""
    manifest, account = read_served(deployment), ask_account(aws, deployment)
    model = pinned_model(deployment)
    price = find_price(deployment, live=True)
    print(*plan_lines(deployment, manifest, account, price), sep="\n", flush=True)
    if not (options.yes or ask()):
        return None
    bucket = HostBucket(aws, deployment.bucket_name(account.number))
    bucket.make()
    _remember(deployment)
    try:
        settings = _settings(options, deployment, bucket, price, model)
        return launch.start(account.places, user_data(settings), bucket.name)
    except OutriderError:
        if launch.may_stand():
            _say_that_it_is_paid(deployment.name)
        else:
            forget_target(deployment.name)
            say(
                f"nothing of {deployment.name} runs. s3://{bucket.name} keeps what was uploaded; "
                f"`outrider deploy down {deployment.name} --with_bucket --region {aws.region}` "
                "removes Outrider's own bucket"
            )
        raise


def ask() -> bool:
    """Whether the user wants to pay for it. Raises InvalidRequest where nobody can be asked."""
    if not sys.stdin.isatty():
        raise InvalidRequest(
            "nothing was started: stdin is no terminal, so nobody can be asked; --yes starts"
        )
    return input("start this? [y/N] ").strip().lower() in ("y", "yes")


def _settings(
    options: UpOptions,
    deployment: Deployment,
    bucket: HostBucket,
    price: Price | NoPrice,
    model: PinnedModel | None,
) -> HostSettings:
    """Upload Outrider's wheel and an artefact that lies here; return the settings of the host."""
    url, sha256 = put_wheel(bucket, options.wheel)
    store, digest = deployment.artifact, deployment.digest
    if deployment.own_artifact is not None:
        store = f"s3://{bucket.name}/artefacts"
        digest = push(deployment.own_artifact, open_store(store), say)
    flags: dict[str, str | int | float | bool] = {}
    if deployment.instance.kind != "cpu":
        flags["device"] = deployment.instance.kind
    if isinstance(price, Price):
        flags["usd_per_hour"] = price.usd_per_hour
    return HostSettings(
        region=deployment.region,
        wheel=url,
        wheel_sha256=sha256,
        secrets=secret_parameters(deployment.name),
        artifact_store=store,
        digest=digest,
        model=model.name if model else deployment.model,
        hub_token=hub_token_parameter(deployment.name) if model and model.needs_token else None,
        flags=flags,
        host="127.0.0.1" if deployment.allow_cidr is None else "0.0.0.0",  # noqa: S104
        port=deployment.port,
        venv=deployment.instance.venv,
        idle_minutes=deployment.idle_minutes,
        lifetime_hours=deployment.lifetime_hours,
    )


def _hand_over(
    aws: Aws,
    deployment: Deployment,
    target: NamedTarget,
    instance: RunningInstance,
    handover: Handover,
) -> None:
    """Give the host its credentials, and this machine what reaches it."""
    hosts = ["localhost", "127.0.0.1"]
    if deployment.allow_cidr is not None:
        hosts.append(instance.address)
        target = replace(target, address=f"{instance.address}:{deployment.port}")
    credentials = handover.begin(hosts)
    model = pinned_model(deployment)
    if model and model.needs_token:
        put_hub_token(aws, deployment.name)
    handover.put(aws)
    target.write()
    target.write_secret("ca.pem", credentials.ca)
    target.write_secret("token", credentials.token)
    say(f"credentials are on their way to the host; this machine's part is in {target.directory}")


def _wait_until_serving(aws: Aws, instance: RunningInstance, minutes: int) -> None:
    """Wait for the host. Raises Unavailable where it fails, ends, or takes too long."""
    began = time.monotonic()
    while time.monotonic() - began < minutes * 60:
        try:
            there = progress(aws, instance.instance_id)
        except Unavailable as error:
            words = str(error)
        else:
            if there.serving:
                say(f"the target serves, {time.monotonic() - began:.0f} s after its start")
                return
            if there.failed:
                raise Unavailable(
                    f"the host failed ({there.words}): `outrider deploy status` prints the "
                    "command that shows its log"
                )
            words = there.words
        living_instance(aws, instance.instance_id)
        glance(f"{instance.instance_id}: {words}, {time.monotonic() - began:.0f} s")
        time.sleep(_POLL_SECONDS)
    raise Unavailable(
        f"the target does not serve after {minutes} min: `outrider deploy status` says how far it "
        "is, the same command waits on"
    )


def _words(deployment: Deployment, instance: RunningInstance, state: StackState) -> Iterator[str]:
    """Lines on what to do next, and on when the target ends."""
    name = deployment.name
    yield f"{name} runs on {instance.type} in {instance.zone} ({instance.instance_id})"
    commands = host_commands(name, deployment.region, instance, state)
    if "tunnel" in commands:
        yield "in a second shell, with AWS's CLI and its Session Manager plugin, keep this open:"
        yield f"  {commands['tunnel']}"
    yield f"  outrider chat --target {name}"
    yield (
        f"it ends itself after {deployment.idle_minutes} min without a session, and at "
        f"{instance.ends_at or 'the end of its lifetime'} in any case; "
        f"`outrider deploy down {name}` ends it now and removes all"
    )
