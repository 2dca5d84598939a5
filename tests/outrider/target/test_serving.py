"""A target as a process: its start and end, the service manager, the command for its clients, and
its emulated distance.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import outrider
from grpc_comm.client.connection import connect
from grpc_comm.security import SecurityOptions
from grpc_comm.transport import Address
from inference.flags.command_line import parse_flags
from outrider.options.commands import parse
from outrider.options.roles import ServingRole, TargetRole
from outrider.processes import READY
from outrider.target.ray_fleet import RayOptions
from outrider.target.spawn import child_environment, role_command
from outrider.target.target import chat_command, notify
from tests.support.commands import Run
from tests.support.refusals import assert_refused

LINK = [sys.executable, "-m", "outrider.measure.link", "127.0.0.1:1", "127.0.0.1:0", "0", "0"]
TARGET = role_command("target", "--port", "0", "--batch", "1")


@pytest.mark.parametrize(
    ("command", "by"),
    [(TARGET, "input"), (LINK, "SIGTERM"), (LINK, "input")],
    ids=["target by input", "link by SIGTERM", "link by input"],
)
def test_a_process_ends_when_it_is_told_to_and_when_its_starter_and_input_are_gone(
    command: list[str], by: str
) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command,
        stdin=pipe,
        stdout=pipe,
        stderr=subprocess.STDOUT,
        text=True,
        env=child_environment(),
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert any(line.startswith(READY) for line in process.stdout)
        assert process.poll() is None
        process.terminate() if by == "SIGTERM" else process.stdin.close()
        assert process.wait(60) == 0


def test_states_come_as_one_datagram_and_a_manager_that_is_gone_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, abstract = str(tmp_path / "manager"), "outrider-test-notify"
    for address, variable in ((path, path), (f"\0{abstract}", f"@{abstract}")):
        monkeypatch.setenv("NOTIFY_SOCKET", variable)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(address)
            notify("READY=1", "STATUS=serving")
            assert manager.recv(100) == b"READY=1\nSTATUS=serving"
    capsys.readouterr()
    notify("STOPPING=1")
    assert "STOPPING=1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "bound", "command"),
    [
        ("", "127.0.0.1:50051", "outrider chat"),
        ("", "127.0.0.1:50612", "outrider chat --target_host 127.0.0.1:50612"),
        ("--insecure", "0.0.0.0:50051", "outrider chat --target_host HOST:50051"),
        (
            "--tls_cert c --tls_key k --keys_file f",
            "0.0.0.0:50051",
            "outrider chat --target_host HOST:50051 --tls_ca CA_FILE --token_file FILE",
        ),
    ],
)
def test_a_target_prints_the_command_that_chats_with_it(
    flags: str, bound: str, command: str
) -> None:
    options = parse(["target", *flags.split()])
    assert isinstance(options, ServingRole)
    host, _, port = bound.rpartition(":")
    assert chat_command(options, Address(host, int(port))) == command


PROFILE = "llama-3.1-8b-trn1.2xlarge-measured"
ROUND_TRIP = 0.2


def test_an_emulated_target_with_certificates_made_here_is_as_far_away_as_its_round_trip(
    tmp_path: Path, run: Run
) -> None:
    assert run("cert", "--host", "localhost", "--out", tmp_path).code == 0
    ca, cert, key = (str(tmp_path / f"{name}.pem") for name in ("ca", "cert", "key"))
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text("secret\n")
    served = outrider.serve(
        port=0, batch=1, emulate=PROFILE, rtt=ROUND_TRIP * 1e3, token_file=str(token),
        tls_cert=cert, tls_key=key,
    )  # fmt: skip
    with served as target:
        address = f"localhost:{target.address.rpartition(':')[2]}"
        security = SecurityOptions(tls_ca=Path(ca), token_file=token)
        with connect(address, security=security) as client:
            assert client.probe() >= ROUND_TRIP
            assert client.description.emulated
            assert client.description.device.endswith("200 ms away")
        text = ["run", "x", "--target_host", address, "--tls_ca", ca, "--max_new_tokens", "2"]
        (made,) = run(*text, "--token_file", token, "--json").records
        assert len(made["token_ids"]) == 2
        run(*text).assert_failed("token")


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        ({"rtt": 20.0}, ["--rtt", "--emulate"]),
        ({"rtt": -1.0, "emulate": PROFILE}, ["--rtt", "-1", "above 0"]),
        ({"rtt": 1e6, "emulate": PROFILE}, ["--rtt", "10000"]),
    ],
)
def test_a_distance_is_bounded_and_is_that_of_an_emulated_target(
    flags: dict[str, Any], shown: list[str]
) -> None:
    assert_refused(lambda: TargetRole(**flags), shown)


def test_a_fleets_replica_takes_the_targets_flags_and_not_the_ingresss_address() -> None:
    words = ["--insecure", "--batch", "8", "--port", "7", "--host", "0.0.0.0"]
    target = parse_flags(RayOptions, "outrider deploy ray", words).target
    assert (target.batch, target.host, target.port) == (8, "127.0.0.1", 50051)


def test_a_fleet_that_cannot_be_is_refused_and_what_this_machine_lacks_is_not_waited_for(
    run: Run,
) -> None:
    for flags, needed in (
        ("", "--keys_file FILE"),
        ("--insecure --replicas 3,2", "--replicas"),
        ("--insecure --tls_cert a", "--tls_cert"),
    ):
        run("deploy", "ray", *flags.split()).assert_usage_error(needed)
    many = 2 * (os.cpu_count() or 1)
    run("deploy", "ray", "--insecure", "--replicas", many).assert_failed("RAY_ADDRESS")
