"""Builds an artefact on an instance of EC2: `outrider compile --on TYPE`.

The instance has a stack of its own, as a target has, and writes artefact, compiled graphs, log and
state to the bucket. The stack is removed whatever comes of the build. If this machine is lost, the
instance ends itself at the end of its build, or of its lifetime.
"""

from __future__ import annotations

import json
import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from compile.compile_options import CompileOptions, InstanceOptions
from compile.plan.device import GIB, device_of
from compile.plan.memory import build_memory
from compile.request import find_checkpoint, make_request, names_layers
from compile.store import open_store, pull
from deploy.aws import Aws
from deploy.bucket import HostBucket, build_wheel, put_wheel
from deploy.deployment import Deployment, hub_token_parameter
from deploy.handover import put_hub_token, withdraw_secrets
from deploy.host.build_script import ARTEFACT, LOAD, BuildSettings, build_script
from deploy.instance_kind import NEURON_IMAGE, NEURON_VENV, InstanceKind, check_image
from deploy.instance_price import InstancePrices, NoPrice, cost_so_far
from deploy.instance_types import find_type
from deploy.launch import Launch
from deploy.places import SubnetInZone, find_image, places_for
from deploy.running_instance import describe_instance, living_instance
from deploy.stack import StackState, TargetStack
from inference.command import glance, say
from inference.errors import InvalidRequest, OutriderError, Unavailable
from inference.flags.group import flags_of
from inference.model.hub import pin_model

POLL_SECONDS = 5.0
_NOT_FOR_THE_HOST = {
    *("out", "push", "pull", "digest", "graph_store", "load", "dry_run", "debug"),
    *flags_of(InstanceOptions),
}
_NEURON_DISK_GIB, _CPU_DISK_GIB = 250, 100
_LARGER = {"r7i.xlarge": 32, "r7i.2xlarge": 64, "r7i.4xlarge": 128, "r7i.8xlarge": 256}
"""Types that are named where another has too little memory, with their GiB."""


@dataclass(frozen=True)
class CloudBuild:
    """A build on an instance: what is built, on what, and where it goes."""

    options: CompileOptions
    deployment: Deployment
    bucket: str
    store: str  # s3://BUCKET/PREFIX of artefacts
    need: int  # bytes of memory
    needs_token: bool = False  # of the hub, for one of its models

    @property
    def graphs(self) -> str:
        """The store of compiled graphs, in the same bucket."""
        return self.options.graph_store or f"s3://{self.bucket}/graphs"

    @property
    def reports(self) -> str:
        return f"builds-of/{self.deployment.name}"


def build_on(options: CompileOptions) -> int:
    """Build on an instance; with --dry_run, say how. Returns 0."""
    check(options)
    aws = Aws(options.where.region)
    build = plan(aws, options)
    places = places_for(aws, build.deployment.instance, None)
    find_image(aws, build.deployment.image_parameter)
    print(*plan_lines(build, places), sep="\n", flush=True)
    if options.dry_run:
        return 0
    user_data = build_script(prepare(aws, build))
    launch = Launch(aws, build.deployment, say, glance)
    with removed_afterwards(aws, build):
        if build.needs_token:
            put_hub_token(aws, build.deployment.name)
        state = launch.start(places, user_data, build.bucket)
        digest = wait(aws, build, state)
    print(f"built and pushed: {build.store}, digest {digest}")
    print(f"serve it: {up_command(build, digest)}")
    if options.out is not None:
        pull(open_store(build.store), digest, Path(options.out), say)
        print(f"{options.out}: every file checked")
    return 0


def up_command(build: CloudBuild, digest: str) -> str:
    """The command that serves what was built, on the smallest instance that can."""
    options, instance = build.options, "c7i.2xlarge"
    if options.device != "cpu":
        instance = device_of(options.device).instance(options.tensor_parallel or 1) or "TYPE"
    return (
        f"outrider deploy up NAME --instance {instance} --artifact {build.store} --digest {digest}"
    )


def check(options: CompileOptions) -> None:
    """Raises InvalidRequest for what an instance cannot be asked for."""
    if options.pull is not None or options.target is None:
        raise InvalidRequest("--on builds: it needs --target, and no --pull")
    if options.push is not None and not options.push.startswith("s3://"):
        raise InvalidRequest(f"--push {options.push}: with --on it is s3://BUCKET/PREFIX")
    check_image(options.device, options.where.image)


def pinned(options: CompileOptions) -> tuple[CompileOptions, bool]:
    """The options with each model of the hub at its commit, and whether one needs a token.

    Raises InvalidRequest for a model that an instance could not read.
    """
    named = {name: getattr(options, name) for name in ("model", "draft_model", "features")}
    if options.features is not None and names_layers(options.features):
        del named["features"]
    models = {name: pin_model(given) for name, given in named.items() if given is not None}
    names: dict[str, Any] = {name: model.name for name, model in models.items()}
    return options.but(**names), any(model.needs_token for model in models.values())


def plan(aws: Aws, options: CompileOptions) -> CloudBuild:
    """The build. Raises InvalidRequest where the instance has too little memory for it."""
    on = options.where.on or ""
    options, needs_token = pinned(options)
    checkpoint = find_checkpoint(options.but(dry_run=True))
    need = build_memory(checkpoint.config, make_request(options, checkpoint).spec)
    has = find_type(aws, on).memory_gib * GIB
    if need > has:
        larger = (name for name, gib in _LARGER.items() if gib * GIB >= need)
        raise InvalidRequest(
            f"--on {on} has {has / GIB:g} GiB of memory, and this build needs about "
            f"{need / GIB:.0f}: {next(larger, 'a larger type')} has enough"
        )
    neuron = options.device != "cpu"
    deployment = Deployment(
        name=f"build-{secrets.token_hex(4)}",
        region=aws.region,
        instance=InstanceKind(on),
        purpose="build",
        market="spot" if options.where.spot else "on-demand",
        image=options.where.image or (NEURON_IMAGE if neuron else None),
        disk_gib=_NEURON_DISK_GIB if neuron else _CPU_DISK_GIB,
        lifetime_hours=options.where.most_hours,
    )
    bucket = deployment.bucket_name(aws.account)
    if options.push is not None:
        bucket = options.push.removeprefix("s3://").partition("/")[0]
    store = options.push or f"s3://{bucket}/artefacts"
    build = CloudBuild(options, deployment, bucket, store, need, needs_token)
    writes = replace(deployment, store=_prefix(build, store), graphs=_prefix(build, build.graphs))
    return replace(build, deployment=writes)


def _prefix(build: CloudBuild, store: str) -> str:
    """The prefix of a store in the build's bucket, which is all that its instance may write to."""
    bucket, _, key = store.removeprefix("s3://").partition("/")
    if bucket != build.bucket or not store.startswith("s3://"):
        raise InvalidRequest(f"--graph_store {store}: with --on it is s3://{build.bucket}/PREFIX")
    return f"{key.rstrip('/')}/" if key else ""


def plan_lines(build: CloudBuild, places: list[SubnetInZone]) -> Iterator[str]:
    """The plan, line by line: what is going to be started, and what it costs."""
    deployment = build.deployment
    yield f"instance    {deployment.instance.name}, {deployment.market}, in {places[0].zone}"
    yield f"memory      this build needs about {build.need / GIB:.0f} GiB"
    yield f"image       {deployment.image_parameter}"
    yield f"volume      {deployment.volume_gib} GiB gp3, encrypted, deleted with the instance"
    yield f"builds      python -m compile {' '.join(host_arguments(build))}"
    if build.needs_token:
        yield "token       yours of the hub: a SecureString, which the instance reads and deletes"
    yield f"store       {build.store}; it is kept"
    yield f"stack       {deployment.stack}: removed after the build, whatever comes of it"
    yield f"ends        itself after {deployment.lifetime_hours:g} h at most (--most_hours)"
    try:
        price = InstancePrices().find(
            deployment.instance.name, deployment.region, deployment.market
        )
    except NoPrice as error:
        yield f"$/h         {error}"
        return
    most = price.usd_per_hour * deployment.lifetime_hours
    yield f"$/h         {price}; at most ${most:.2f} in all, for the instance alone"


def host_arguments(build: CloudBuild) -> tuple[str, ...]:
    """The words after `python -m compile` on the instance: the user's own, and where to."""
    options, words = build.options, list[str]()
    for name, flag in flags_of(CompileOptions).items():
        if name in _NOT_FOR_THE_HOST or (value := options.values()[name]) == flag.field.default:
            continue
        for one in value if flag.repeated else (value,):
            text = ",".join(map(str, one)) if isinstance(one, tuple) else one
            words.append(f"--{name}" if one is True else f"--{name}={text}")
    if options.load is not None:
        words.append(f"--load={LOAD}")
    if options.device != "cpu":
        words.append(f"--graph_store={build.graphs}")
    return (*words, f"--out={ARTEFACT}", f"--push={build.store}")


def prepare(aws: Aws, build: CloudBuild) -> BuildSettings:
    """Put into the bucket what the instance needs; returns what it is told."""
    bucket, options = HostBucket(aws, build.bucket), build.options
    bucket.make()
    with tempfile.TemporaryDirectory(prefix="outrider-") as directory:
        given = options.where.wheel
        wheel = Path(given) if given else build_wheel(Path(directory))
        url, sha256 = put_wheel(bucket, wheel)
    load = None
    if options.load is not None:
        load = bucket.put(f"{build.reports}/load.json", Path(options.load))
    return BuildSettings(
        region=aws.region,
        wheel=url,
        wheel_sha256=sha256,
        arguments=host_arguments(build),
        reports=f"s3://{build.bucket}/{build.reports}",
        load=load,
        hub_token=hub_token_parameter(build.deployment.name) if build.needs_token else None,
        venv=None if options.device == "cpu" else NEURON_VENV,
        lifetime_hours=build.deployment.lifetime_hours,
    )


@contextmanager
def removed_afterwards(aws: Aws, build: CloudBuild) -> Iterator[None]:
    """Removes the build's stack at the end, also after an error or Ctrl-C, and says what the
    instance has cost.
    """
    stack = TargetStack(aws, build.deployment.stack)
    try:
        yield
    finally:
        try:
            state = stack.state()
            if state is not None:
                say(f"removing {stack.name}")
                stack.remove(state, glance)
            withdraw_secrets(aws, build.deployment.name)
        except (OutriderError, KeyboardInterrupt):
            say(
                f"{stack.name} was not removed: `outrider deploy down {build.deployment.name}` "
                f"does it; its instance ends itself after {build.deployment.lifetime_hours:g} h"
            )
            raise
        if state is not None:
            say(f"{stack.name} is removed; its log is s3://{build.bucket}/{build.reports}/log.txt")
            say(f"cost of the build: {cost(aws, state)}")


def cost(aws: Aws, state: StackState) -> str:
    """The build's cost, or the reason why it is not known."""
    try:
        instance = describe_instance(aws, state.instance_id) if state.instance_id else None
    except OutriderError as error:  # it must not hide what came of the build
        return f"not known: {error}"
    return cost_so_far(instance, aws.region) if instance else "nothing, it had no instance"


def wait(aws: Aws, build: CloudBuild, state: StackState) -> str:
    """The digest of the artefact, when it was built. Raises Unavailable where it was not."""
    began = time.monotonic()
    while True:
        told = _status(aws, build)
        if told["state"] == "built":
            return told["digest"]
        if told["state"] == "failed":
            raise Unavailable(f"the build failed at: {told['step']}\n{_log(aws, build)}")
        instance = living_instance(aws, state.instance_id or "")
        glance(f"{instance.instance_id}: {told['step']}, {time.monotonic() - began:.0f} s")
        time.sleep(POLL_SECONDS)


def _status(aws: Aws, build: CloudBuild) -> dict[str, str]:
    content = HostBucket(aws, build.bucket).read(f"{build.reports}/status.json")
    told: dict[str, str] = json.loads(content) if content else {}
    return {"state": "running", "step": "starting", "digest": ""} | told


def _log(aws: Aws, build: CloudBuild) -> str:
    """The last lines of what the instance printed."""
    content = HostBucket(aws, build.bucket).read(f"{build.reports}/log.txt") or b""
    return "\n".join(content.decode("utf-8", "replace").splitlines()[-15:])
