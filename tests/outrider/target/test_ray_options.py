"""What `outrider deploy ray` takes, and what it refuses before Ray is started."""

from __future__ import annotations

import os

import pytest

from inference.flags.command_line import parse_flags
from outrider.target.ray_fleet import RayOptions
from tests.support.commands import Run


def options(*flags: str) -> RayOptions:
    return parse_flags(RayOptions, "outrider deploy ray", ["--insecure", *flags])


def test_each_replica_takes_the_targets_flags_and_not_the_ingresss_address() -> None:
    target = options("--batch", "8", "--port", "7", "--host", "0.0.0.0").target
    assert (target.batch, target.host, target.port) == (8, "127.0.0.1", 50051)


REFUSED: list[tuple[str, ...]] = [
    ("", "--keys_file FILE"),
    ("--insecure --replicas 3,2", "--replicas"),
    ("--insecure --tls_cert a", "--tls_cert"),
]


@pytest.mark.parametrize("refused", REFUSED)
def test_a_fleet_that_cannot_be_is_refused(refused: tuple[str, ...], run: Run) -> None:
    flags, *shown = refused
    run("deploy", "ray", *flags.split()).assert_usage_error(*shown)


def test_what_this_machine_lacks_is_said_and_not_waited_for(run: Run) -> None:
    many = 2 * (os.cpu_count() or 1)
    run("deploy", "ray", "--insecure", "--replicas", many).assert_failed("RAY_ADDRESS")
