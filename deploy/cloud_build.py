"""Builds an artefact on an EC2 instance: `outrider compile --on TYPE`.

The build is a job (deploy/job.py), which uploads the artefact and its graphs to the bucket.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from compile.aws import Aws
from compile.compile_options import CompileOptions, InstanceOptions
from compile.plan.memory import GIB, build_memory, device_of
from compile.request import find_checkpoint, make_request, names_layers
from compile.store import open_store, pull
from deploy.bucket import own_bucket
from deploy.ec2 import host_size
from deploy.host.user_data import ARTEFACT
from deploy.instance import NEURON_IMAGE, NEURON_VENV, check_image
from deploy.job import HostJob, job_host, prepare
from inference.command import say
from inference.errors import InvalidRequest
from inference.flags.group import flags_of
from inference.model.checkpoints.hub import pin_model

_NOT_FOR_THE_HOST = {
    *("out", "push", "pull", "digest", "graph_store", "dry_run", "debug"),
    *flags_of(InstanceOptions),
}
_NEURON_DISK_GIB, _CPU_DISK_GIB = 250, 100
_LARGER = {"r7i.xlarge": 32, "r7i.2xlarge": 64, "r7i.4xlarge": 128, "r7i.8xlarge": 256}
"""Types to suggest if an instance has too little memory, with their memory in GiB."""


def build_on(options: CompileOptions) -> int:
    """Build on an instance; with --dry_run, only print the plan. Returns 0."""
    check(options)
    aws = Aws(options.region)
    job, store = plan(aws, options)
    run = prepare(aws, job, dry_run=options.dry_run, confirmed=True)
    if run is None:
        return 0
    digest = run()
    print(f"built and pushed: {store}, digest {digest}")
    print(f"serve it: {up_command(options, store, digest)}")
    if options.out is not None:
        pull(open_store(store), digest, Path(options.out), say)
        print(f"{options.out}: every file checked")
    return 0


def up_command(options: CompileOptions, store: str, digest: str) -> str:
    """Return the command that serves the artefact on the smallest suitable instance."""
    instance: str | None = "c7i.2xlarge"
    if options.device != "cpu":
        instance = device_of(options.device).instance(options.tensor_parallel or 1)
    return (
        f"outrider deploy up NAME --instance {instance or 'TYPE'} --artifact {store} "
        f"--digest {digest}"
    )


def check(options: CompileOptions) -> None:
    """Raise InvalidRequest for options that do not work with a build on an instance."""
    if options.pull is not None or options.target is None:
        raise InvalidRequest("--on builds: it needs --target, and no --pull")
    if options.push is not None and not options.push.startswith("s3://"):
        raise InvalidRequest(f"--push {options.push}: with --on it is s3://BUCKET/PREFIX")
    check_image(options.device, options.image)


def pinned(options: CompileOptions) -> tuple[CompileOptions, bool]:
    """Return the options with all hub models pinned to commits, and whether any needs a token.

    Raises InvalidRequest for a model that an instance could not download.
    """
    sources = {name: getattr(options, name) for name in ("model", "draft_model", "features")}
    if options.features is not None and names_layers(options.features):
        del sources["features"]
    models = {name: pin_model(source) for name, source in sources.items() if source is not None}
    names: dict[str, Any] = {name: model.name for name, model in models.items()}
    return options.replace(**names), any(model.needs_token for model in models.values())


def plan(aws: Aws, options: CompileOptions) -> tuple[HostJob, str]:
    """Return the job of a build, and the store for its artefact. Raises InvalidRequest if the
    instance has too little memory.
    """
    options, needs_token = pinned(options)
    need, neuron = _memory(aws, options), options.device != "cpu"
    host = job_host(
        aws,
        "build",
        options.on or "",
        options,
        image=NEURON_IMAGE if neuron else None,
        disk_gib=_NEURON_DISK_GIB if neuron else _CPU_DISK_GIB,
    )
    bucket = own_bucket(aws.account, aws.region)
    if options.push is not None:
        bucket = options.push.removeprefix("s3://").partition("/")[0]
    store = options.push or f"s3://{bucket}/artefacts"
    graphs = options.graph_store or f"s3://{bucket}/graphs"
    writes = {"Store": _prefix(bucket, store), "Graphs": _prefix(bucket, graphs)}
    job = HostJob(
        "build",
        replace(host, parameters={**host.parameters, **writes}),
        bucket,
        (("compile", *host_arguments(options, store, graphs)),),
        wheel=options.wheel,
        venv=NEURON_VENV if neuron else None,
        needs_token=needs_token,
        notes={
            "memory": f"this build needs about {need / GIB:.0f} GiB",
            "store": f"{store}; it is kept",
        },
    )
    return job, store


def _memory(aws: Aws, options: CompileOptions) -> int:
    checkpoint = find_checkpoint(options.replace(dry_run=True))
    need = build_memory(checkpoint.config, make_request(options, checkpoint).spec)
    on = options.on or ""
    has = host_size(aws, on).memory_gib * GIB
    if need > has:
        larger = (name for name, gib in _LARGER.items() if gib * GIB >= need)
        raise InvalidRequest(
            f"--on {on} has {has / GIB:g} GiB of memory, and this build needs about "
            f"{need / GIB:.0f}: {next(larger, 'a larger type')} has enough"
        )
    return need


def _prefix(bucket: str, store: str) -> str:
    """Return the prefix of a store in the build's bucket. The instance may only write there."""
    name, _, key = store.removeprefix("s3://").partition("/")
    if name != bucket or not store.startswith("s3://"):
        raise InvalidRequest(f"--graph_store {store}: with --on it is s3://{bucket}/PREFIX")
    return f"{key.rstrip('/')}/" if key else ""


def host_arguments(options: CompileOptions, store: str, graphs: str) -> tuple[str, ...]:
    """Return the arguments of `python -m compile` on the instance: the user's, and the outputs."""
    words = list[str]()
    for name, flag in flags_of(CompileOptions).items():
        if name in _NOT_FOR_THE_HOST or (value := options.values()[name]) == flag.field.default:
            continue
        for item in value if flag.repeated else (value,):
            text = ",".join(map(str, item)) if isinstance(item, tuple) else item
            words.append(f"--{name}" if item is True else f"--{name}={text}")
    if options.device != "cpu":
        words.append(f"--graph_store={graphs}")
    return (*words, f"--out={ARTEFACT}", f"--push={store}")
