"""What `outrider deploy ray` takes, and what it refuses before Ray is started."""

from __future__ import annotations

import os

import pytest

from inference.flags.command_line import parse_flags
from outrider.aws_verbs import deploy as main
from outrider.target.ray_command import RayOptions


def options(*flags: str) -> RayOptions:
    return parse_flags(RayOptions, "outrider deploy ray", ["--insecure", *flags])


def test_each_replica_takes_the_targets_flags_and_not_the_ingresss_address() -> None:
    target = options("--batch", "8", "--port", "7", "--host", "0.0.0.0", "--waiting", "3").target
    assert (target.batch, target.waiting) == (8, 3)
    assert (target.host, target.port) == ("127.0.0.1", 50051)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "--keys_file FILE"),
        (["--insecure", "--replicas", "3", "--most_replicas", "2"], "--most_replicas 2 is below"),
        (["--insecure", "--tls_cert", "a"], "no flag --tls_cert"),
    ],
)
def test_a_fleet_that_cannot_be_is_refused(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["ray", *flags])
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--cpus", str(2 * (os.cpu_count() or 1))], "lower --cpus"),
        pytest.param(
            ["--cpus", "0", "--neuron_cores", "2"],
            "no Neuron device",
            marks=pytest.mark.skipif(os.path.exists("/dev/neuron0"), reason="it has one"),
        ),
    ],
)
def test_what_this_machine_lacks_is_said_and_not_waited_for(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ray", "--insecure", *flags]) == 1
    assert said in capsys.readouterr().err
