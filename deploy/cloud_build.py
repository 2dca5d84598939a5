"""Builds an artefact on an instance of EC2: `outrider compile --on TYPE`.

It is a job of an instance (deploy/host_job.py), which pushes artefact and graphs to the bucket.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from compile.compile_options import CompileOptions, InstanceOptions
from compile.plan.device import GIB, device_of
from compile.plan.memory import build_memory
from compile.request import find_checkpoint, make_request, names_layers
from compile.store import open_store, pull
from deploy.aws import Aws
from deploy.deployment import Deployment
from deploy.host.user_data import ARTEFACT
from deploy.host_job import HostJob, end_lines, prepare, run_job
from deploy.instance_kind import NEURON_IMAGE, NEURON_VENV, InstanceKind, check_image
from deploy.places import SubnetInZone, find_image, host_size, places_for
from inference.command import say
from inference.errors import InvalidRequest
from inference.flags.group import flags_of
from inference.model.hub import pin_model

_NOT_FOR_THE_HOST = {
    *("out", "push", "pull", "digest", "graph_store", "dry_run", "debug"),
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
    def job(self) -> HostJob:
        return HostJob(
            "build",
            self.deployment,
            self.bucket,
            (("compile", *host_arguments(self)),),
            wheel=self.options.where.wheel,
            venv=None if self.options.device == "cpu" else NEURON_VENV,
            needs_token=self.needs_token,
        )


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
    digest = run_job(aws, build.job, places, prepare(aws, build.job))
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
    has = host_size(aws, on).memory_gib * GIB
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
        lifetime_hours=options.where.lifetime_hours,
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
    yield from end_lines(deployment)


def host_arguments(build: CloudBuild) -> tuple[str, ...]:
    """The words after `python -m compile` on the instance: the user's own, and where to."""
    options, words = build.options, list[str]()
    for name, flag in flags_of(CompileOptions).items():
        if name in _NOT_FOR_THE_HOST or (value := options.values()[name]) == flag.field.default:
            continue
        for one in value if flag.repeated else (value,):
            text = ",".join(map(str, one)) if isinstance(one, tuple) else one
            words.append(f"--{name}" if one is True else f"--{name}={text}")
    if options.device != "cpu":
        words.append(f"--graph_store={build.graphs}")
    return (*words, f"--out={ARTEFACT}", f"--push={build.store}")
