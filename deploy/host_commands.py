"""Runs a command on a target's host through AWS Systems Manager, which needs no open port."""

from __future__ import annotations

import time
from typing import NamedTuple

from deploy.aws import Aws, aws_refusals
from inference.errors import Unavailable

POLL_SECONDS = 1.0
_MOST_SECONDS = 60
_UNDER_WAY = ("Pending", "InProgress", "Delayed")

PROGRESS = (
    "systemctl is-active outrider-target.service; "
    "grep '^outrider setup:' /var/log/cloud-init-output.log | tail -n 1; true"
)
"""Prints two lines: the unit's state, and how far the setup of the host is."""


class HostProgress(NamedTuple):
    """The progress of a host: whether it serves or has failed, and its state and step in words."""

    serving: bool
    failed: bool
    words: str


def run_on_host(aws: Aws, instance_id: str, command: str) -> str:
    """Run the command on the host and return what it prints. Raises Unavailable where the host does
    not answer (its agent needs a minute or two after the start), or the command fails.
    """
    client = aws.client("ssm")
    with aws_refusals():
        try:
            sent = client.send_command(
                InstanceIds=[instance_id],
                DocumentName="AWS-RunShellScript",
                Parameters={"commands": [command], "executionTimeout": [str(_MOST_SECONDS)]},
            )
        except client.exceptions.InvalidInstanceId as error:
            raise Unavailable(
                f"{instance_id} does not answer yet: Systems Manager does not know it"
            ) from error
    command_id, ends = sent["Command"]["CommandId"], time.monotonic() + _MOST_SECONDS
    while time.monotonic() < ends:
        with aws_refusals():
            try:
                told = client.get_command_invocation(CommandId=command_id, InstanceId=instance_id)
            except client.exceptions.InvocationDoesNotExist:  # for a moment after sending
                told = {"Status": "Pending"}
        if told["Status"] not in _UNDER_WAY:
            break
        time.sleep(POLL_SECONDS)
    else:
        raise Unavailable(f"{instance_id} did not answer within {_MOST_SECONDS} s")
    if told["Status"] != "Success":
        said = told.get("StandardErrorContent", "").strip() or told["Status"]
        raise Unavailable(f"{instance_id}: the command failed: {said}")
    return str(told["StandardOutputContent"])


def progress(aws: Aws, instance_id: str) -> HostProgress:
    """The progress of the host. Raises Unavailable where it does not answer."""
    state, _, setup = run_on_host(aws, instance_id, PROGRESS).strip().partition("\n")
    step = setup.removeprefix("outrider setup:").strip()
    failed = "FAILED" in step or state == "failed"
    return HostProgress(state == "active", failed, f"{state}; setup: {step or 'not begun'}")
