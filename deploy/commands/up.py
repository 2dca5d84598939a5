"""`outrider deploy up`: starts a target on AWS, and stores its address and credentials locally."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from compile.aws import DEFAULT_REGION, Aws
from compile.store import open_store, push
from deploy.bucket import HostBucket, put_wheel
from deploy.commands.options import UpOptions
from deploy.commands.status import host_commands
from deploy.ec2 import InstanceEnded, RunningInstance, living_instance, progress, with_image
from deploy.handover import (
    hand_over,
    hub_token_parameter,
    put_hub_token,
    secret_parameters,
    withdraw_secrets,
)
from deploy.host.user_data import PORT, HostSettings, user_data
from deploy.instance import Host
from deploy.plan import Offer, ask, ask_aws, target_plan
from deploy.prices import Price
from deploy.stack import StackState, TargetStack, Wait, running_stack, start_stack
from grpc_comm.client.named_targets import (
    NamedTarget,
    find_target,
    forget_target,
    named_targets,
    read_target,
    targets_directory,
)
from inference.command import FAILED, say
from inference.errors import InvalidRequest, MissingExtra, OutriderError, Unavailable
from inference.model.checkpoints.hub import PinnedModel, pin_model

EXAMPLES = """examples:
  outrider deploy up demo --instance c7i.2xlarge             the embedded target on CPUs
  outrider deploy up demo --instance c7i.2xlarge --dry_run   its resources and price
  outrider deploy up demo --artifact s3://bucket/artefacts --digest HEX
  outrider deploy up demo --instance g6.xlarge --model Qwen/Qwen2.5-7B --spot
  outrider deploy up demo --instance c7i.2xlarge --allow_cidr 203.0.113.7/32
"""

_FIRST_LOCAL_PORT = 50151
_POLL_SECONDS = 5.0
_START_MINUTES = 45


def run(options: UpOptions) -> int:
    """Start the target, wait until it serves, and print how to connect. Returns 0."""
    try:
        return _dry_run(options) if options.dry_run else _up(options)
    except KeyboardInterrupt:
        say(
            "interrupted: run the same command to continue; "
            f"`outrider deploy down {options.name}` removes the resources, which are billed"
        )
        raise


def _dry_run(options: UpOptions) -> int:
    """Print the plan, even without credentials."""
    aws = None
    try:
        aws = options.aws()
    except (MissingExtra, Unavailable) as error:
        say(str(error))
    host = options.host(aws.region if aws else options.region or DEFAULT_REGION)
    offer = ask_aws(aws, with_image(aws, host) if aws else host, options.subnet)
    print(target_plan(options, offer))
    return 0


def _up(options: UpOptions) -> int:
    aws = options.aws()
    host = with_image(aws, options.host(aws.region))
    state = running_stack(aws, host) or _start(options, aws, host)
    if state is None:
        return FAILED
    try:
        instance = _serve(options, aws, host, state)
    except OutriderError as error:
        if not isinstance(error, InstanceEnded):
            _say_that_it_is_paid(options.name)
        raise
    print(*_words(options, host.region, instance), sep="\n")
    return 0


def _say_that_it_is_paid(name: str) -> None:
    say(
        f"an instance of {name} may still be running and billed: `outrider deploy down {name}` "
        "removes it; run the same command to continue"
    )


def _start(options: UpOptions, aws: Aws, host: Host) -> StackState | None:
    """Start the stack; return None if the user declines."""
    offer = ask_aws(aws, host, options.subnet)
    plan, model = target_plan(options, offer), pinned_model(options)
    print(plan, flush=True)
    if not (options.yes or ask()):
        return None
    bucket = HostBucket(aws, options.bucket_name(offer.account, host.region))
    bucket.make()
    _remember(host)
    try:
        settings = _settings(options, offer, bucket, model)
        return start_stack(aws, host, offer.places, user_data(settings), bucket.name)
    except OutriderError:
        if _may_exist(aws, host):
            _say_that_it_is_paid(options.name)
        else:
            forget_target(options.name)
            say(
                f"nothing of {options.name} runs. s3://{bucket.name} keeps what was uploaded; "
                f"`outrider deploy down {options.name} --with_bucket --region {aws.region}` "
                "removes Outrider's own bucket"
            )
        raise


def _may_exist(aws: Aws, host: Host) -> bool:
    """Return whether a stack of this host may exist; True if AWS does not answer."""
    try:
        return TargetStack(aws, host.stack).state() is not None
    except OutriderError:
        return True


def _remember(host: Host) -> None:
    """Store the target's name and region locally, before anything is created on AWS."""
    forget_target(host.name)  # an earlier target, whose instance has ended
    used_ports = {read_target(name).reached.port for name in named_targets()}
    port = next(port for port in range(_FIRST_LOCAL_PORT, 65536) if port not in used_ports)
    NamedTarget(host.name, f"127.0.0.1:{port}", host.region).write()


def pinned_model(options: UpOptions) -> PinnedModel | None:
    """Return the hub model to serve, pinned to a commit; None if no such model is served.

    Raises InvalidRequest for a model that this machine cannot access.
    """
    if options.model is None or options.model.startswith("s3://"):
        return None
    return pin_model(options.model)


def _settings(
    options: UpOptions, offer: Offer, bucket: HostBucket, model: PinnedModel | None
) -> HostSettings:
    """Upload Outrider's wheel and a local artefact, and return the host's settings."""
    url, sha256 = put_wheel(bucket, options.wheel)
    store, digest = options.artifact, options.digest
    if options.own_artifact is not None:
        store = f"s3://{bucket.name}/artefacts"
        digest = push(options.own_artifact, open_store(store), say)
    instance, flags = offer.host.instance, dict[str, str | int | float | bool]()
    if instance.kind != "cpu":
        flags["device"] = instance.kind
    if isinstance(offer.price, Price):
        flags["usd_per_hour"] = offer.price.usd_per_hour
    return HostSettings(
        region=offer.host.region,
        wheel=url,
        wheel_sha256=sha256,
        secrets=secret_parameters(options.name),
        artifact_store=store,
        digest=digest,
        model=model.name if model else options.model,
        hub_token=hub_token_parameter(options.name) if model and model.needs_token else None,
        flags=flags,
        host="127.0.0.1" if options.allow_cidr is None else "0.0.0.0",  # noqa: S104
        venv=instance.venv,
        idle_minutes=options.idle_minutes,
        lifetime_hours=options.lifetime_hours,
    )


def _serve(options: UpOptions, aws: Aws, host: Host, state: StackState) -> RunningInstance:
    """Return the stack's instance once it has its credentials and serves."""
    target = find_target(options.name)
    if target is None:
        raise InvalidRequest(
            f"{host.stack} was started from another machine, which has its credentials: "
            f"copy {targets_directory() / options.name} from there"
        )
    instance = living_instance(aws, state.instance_id or "")
    if not target.complete:
        hosts = ["localhost", "127.0.0.1"]
        if options.allow_cidr is not None:
            hosts.append(instance.address)
            target = replace(target, address=f"{instance.address}:{PORT}")
        model = pinned_model(options)
        if model and model.needs_token:
            put_hub_token(aws, options.name)
        hand_over(aws, target, hosts)
        say(f"the host gets its credentials; this machine's part is in {target.directory}")
    _wait_until_serving(aws, instance)
    withdraw_secrets(aws, options.name)
    return instance


def _wait_until_serving(aws: Aws, instance: RunningInstance) -> None:
    """Wait until the host serves. Raises Unavailable if it fails, ends, or takes too long."""
    wait = Wait(instance.instance_id)
    while wait.seconds < _START_MINUTES * 60:
        try:
            start = progress(aws, instance.instance_id)
        except Unavailable as error:
            words = str(error)
        else:
            if start.serving:
                say(f"the target serves, {wait.seconds:.0f} s after its start")
                return
            if start.failed:
                raise Unavailable(
                    f"the host failed ({start.words}): `outrider deploy status` prints the "
                    "command that shows its log"
                )
            words = start.words
        living_instance(aws, instance.instance_id)
        wait.report(words)
        time.sleep(_POLL_SECONDS)
    raise Unavailable(
        f"the target does not serve after {_START_MINUTES} min: `outrider deploy status` shows its "
        "progress, the same command keeps waiting"
    )


def _words(options: UpOptions, region: str, instance: RunningInstance) -> Iterator[str]:
    name = options.name
    yield f"{name} runs on {instance.type} in {instance.zone} ({instance.instance_id})"
    commands = host_commands(name, region, instance)
    if "tunnel" in commands:
        yield "in a second shell, with AWS's CLI and its Session Manager plugin, keep this open:"
        yield f"  {commands['tunnel']}"
    yield f"  outrider chat --target {name}"
    yield (
        f"it ends itself after {options.idle_minutes} min without a session, and at "
        f"{instance.ends_at or 'the end of its lifetime'} in any case; "
        f"`outrider deploy down {name}` ends it now and removes all"
    )
