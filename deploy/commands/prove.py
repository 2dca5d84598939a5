"""`outrider deploy prove`: proves a target on an instance of EC2, which is removed afterwards.

Not yet run on AWS: what runs on the instance is `outrider prove`, by the script of every job.
"""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Annotated

from annotated_types import Gt, Le

from deploy.aws import Aws
from deploy.bucket import HostBucket
from deploy.commands.up import ask
from deploy.deployment import Deployment
from deploy.host.user_data import RESULTS
from deploy.host_job import HostJob, end_lines, prepare, run_job
from deploy.instance_kind import InstanceKind, check_image
from deploy.places import find_image, places_for
from inference.command import FAILED
from inference.flags.command_line import CommandOptions
from inference.flags.group import Shown
from inference.flags.values import Directory, File, ModelName, Region
from inference.model.hub import pin_model

EXAMPLES = """examples:
  outrider deploy prove --instance trn1.2xlarge --model Qwen/Qwen2.5-1.5B-Instruct
  outrider deploy prove --instance g6.xlarge --model Qwen/Qwen2.5-1.5B-Instruct \\
    --draft_model Qwen/Qwen2.5-0.5B-Instruct
"""
"""Commands that users type."""

FILES = ("report.json", "report.md", "report.csv", "run.jsonl", "profile.json")
"""Files of a proof. The first two are its report; profile.json needs times that were measured."""


class ProofOptions(CommandOptions, title="proof"):
    """Run `outrider prove` on a temporary instance and download its reports."""

    instance: Annotated[str, Shown("TYPE")] = "trn1.2xlarge"
    """EC2 type: trn1, inf2, with NVIDIA GPUs, or with CPUs only"""
    model: ModelName | None = None
    """target: hub NAME or NAME@REVISION (default: the embedded pair)"""
    draft_model: ModelName | None = None
    """draft on the instance's CPU or GPU (default: copied text only)"""
    region: Region | None = None
    """AWS region (default: boto3's, else us-east-1)"""
    spot: bool = False
    """use a spot instance: cheaper, and AWS may end it at any time"""
    lifetime_hours: Annotated[float, Gt(0), Le(24), Shown("HOURS")] = 2.0
    """maximum lifetime of the instance"""
    image: Annotated[str, Shown("PARAMETER")] | None = None
    """public SSM parameter of the machine image (default: by instance type)"""
    wheel: File | None = None
    """Outrider wheel to install on the instance (default: built from this checkout)"""
    out: Directory = "proof"
    """directory for the reports"""
    yes: bool = False
    """do not ask for confirmation; required if stdin is not a terminal"""
    dry_run: bool = False
    """print the plan and its price, and start nothing"""


def run(options: ProofOptions) -> int:
    """Prove, and bring the reports here. Returns 1 where one says that something is not kept."""
    aws = Aws(options.region)
    pinned = None if options.model is None else pin_model(options.model)
    deployment = Deployment(
        name=f"proof-{secrets.token_hex(4)}",
        region=aws.region,
        instance=InstanceKind(options.instance),
        purpose="build",
        market="spot" if options.spot else "on-demand",
        image=options.image,
        lifetime_hours=options.lifetime_hours,
    )
    check_image(deployment.instance.compile_target, options.image)
    places = places_for(aws, deployment.instance, None)
    find_image(aws, deployment.image_parameter)
    proofs = commands(options, deployment.instance, pinned.name if pinned else None)
    print(f"instance    {deployment.instance.name}, {deployment.market}, in {places[0].zone}")
    print(*(f"runs        python -m {' '.join(words)}" for words in proofs.values()), sep="\n")
    print(*end_lines(deployment), sep="\n", flush=True)
    if options.dry_run or not (options.yes or ask()):
        return 0 if options.dry_run else FAILED
    job = HostJob(
        "proof",
        deployment,
        deployment.bucket_name(aws.account),
        tuple(proofs.values()),
        wheel=options.wheel,
        venv=deployment.instance.venv,
        needs_token=pinned is not None and pinned.needs_token,
    )
    user_data = prepare(aws, job)
    try:
        run_job(aws, job, places, user_data)
    finally:
        kept = [_bring(aws, job, name, Path(options.out) / name) for name in proofs]
    return 0 if all(kept) else FAILED


def commands(
    options: ProofOptions, instance: InstanceKind, model: str | None
) -> dict[str, tuple[str, ...]]:
    """Words behind `python -m` on the instance, by the name of the proof.

    model: at its commit; None for the embedded pair
    """
    words = ["outrider", "prove"]
    words += [f"--target_model={model}"] if model else []
    words += [f"--draft_model={options.draft_model}"] if options.draft_model else []
    words += ["--draft=copy"] if model and not options.draft_model else []
    return {"proof": (*words, f"--device={instance.kind}", f"--out={RESULTS}/proof")}


def _bring(aws: Aws, job: HostJob, name: str, out: Path) -> bool:
    """Copy a proof's files here, and print its report. Returns whether all texts were equal."""
    bucket = HostBucket(aws, job.bucket)
    contents = {file: bucket.read(f"{job.reports}/results/{name}/{file}") for file in FILES}
    found = {file: content for file, content in contents.items() if content is not None}
    out.mkdir(parents=True, exist_ok=True)
    for file, content in found.items():
        (out / file).write_bytes(content)
    if not set(FILES[:2]) <= found.keys():
        print(f"{name}: the instance made no report")
        return False
    print(found["report.md"].decode(), f"brought to {out}", sep="\n")
    return bool(json.loads(found["report.json"])["equal"])
