"""`outrider deploy prove`: proves a target on a temporary EC2 instance.

Not yet run on AWS. The instance runs `outrider prove`, by the script that all jobs use.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from annotated_types import Gt, Le

from compile.aws import Aws
from compile.compile_options import JobOptions
from deploy.bucket import own_bucket
from deploy.host.user_data import RESULTS
from deploy.instance import InstanceKind, check_image
from deploy.job import HostJob, job_host, prepare
from inference.command import FAILED
from inference.flags.command_line import CommandOptions
from inference.flags.group import Metavar
from inference.flags.values import Directory, ModelName
from inference.model.checkpoints.hub import pin_model

EXAMPLES = """examples:
  outrider deploy prove --instance trn1.2xlarge --model Qwen/Qwen2.5-1.5B-Instruct
  outrider deploy prove --instance g6.xlarge --model Qwen/Qwen2.5-1.5B-Instruct \\
    --draft_model Qwen/Qwen2.5-0.5B-Instruct
"""
"""The commands as typed by users."""

PRECISIONS = ("bfloat16", "float32")
"""Precisions that are proved in turn, even if an earlier one fails."""


class ProofOptions(JobOptions, CommandOptions, title="proof"):
    """Run `outrider prove` in bfloat16 and in float32 on a temporary instance, and download the
    reports.
    """

    instance: Annotated[str, Metavar("TYPE")] = "trn1.2xlarge"
    """EC2 type: trn1, inf2, with NVIDIA GPUs, or with CPUs only"""
    model: ModelName | None = None
    """target: hub NAME or NAME@REVISION (default: the embedded pair)"""
    draft_model: ModelName | None = None
    """draft on the instance's CPU or GPU (default: copied text only)"""
    lifetime_hours: Annotated[float, Gt(0), Le(24), Metavar("HOURS")] = 2.0
    """maximum lifetime of the instance"""
    out: Directory = "proof"
    """directory for the reports"""
    yes: bool = False
    """do not ask for confirmation; required if stdin is not a terminal"""
    dry_run: bool = False
    """print the plan and its price, and start nothing"""


def run(options: ProofOptions) -> int:
    """Prove, and download the reports. Returns 1 unless outputs are equal in each precision."""
    aws = Aws(options.region)
    pinned = None if options.model is None else pin_model(options.model)
    host = job_host(aws, "proof", options.instance, options)
    check_image(host.instance.compile_target, options.image)
    job = HostJob(
        "proof",
        host,
        own_bucket(aws.account, aws.region),
        tuple(
            words_on_host(options, host.instance, pinned.name if pinned else None, precision)
            for precision in PRECISIONS
        ),
        wheel=options.wheel,
        venv=host.instance.venv,
        needs_token=pinned is not None and pinned.needs_token,
    )
    prove = prepare(aws, job, dry_run=options.dry_run, confirmed=options.yes)
    if prove is None:
        return 0 if options.dry_run else FAILED
    try:
        prove()
    finally:
        equal = _bring(aws, job, Path(options.out))
    return 0 if equal else FAILED


def words_on_host(
    options: ProofOptions, instance: InstanceKind, model: str | None, precision: str
) -> tuple[str, ...]:
    """Return the arguments of `python -m` on the instance.

    model: NAME@COMMIT; None for the embedded pair
    """
    words = ["outrider", "prove"]
    words += [f"--target_model={model}"] if model else []
    words += [f"--draft_model={options.draft_model}"] if options.draft_model else []
    words += ["--draft=copy"] if model and not options.draft_model else []
    words += [f"--device={instance.kind}", f"--dtype={precision}"]
    return (*words, f"--out={RESULTS}/{precision}")


def _bring(aws: Aws, job: HostJob, out: Path) -> bool:
    """Download the files of all proofs, and print their reports. Returns whether there is a report
    for each precision, with all outputs equal.
    """
    files = job.results(aws)
    for name, content in files.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(content)
    equal = True
    for precision in PRECISIONS:
        names = f"{precision}/report.md", f"{precision}/report.json"
        if not files.keys() >= {*names}:
            print(f"{precision}: not proved, the instance made no report; its log says why")
            equal = False
            continue
        page, record = (files[name].decode() for name in names)
        print(page)
        equal &= bool(json.loads(record)["equal"])
    print(f"brought to {out}")
    return equal
