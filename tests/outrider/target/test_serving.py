"""A target as a process: its start and end, the service manager, the command for its clients, and
its emulated distance.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

import outrider
from grpc_comm.certificate import make_certificate
from grpc_comm.client.connection import connect
from grpc_comm.security import SecurityOptions
from grpc_comm.transport import Address
from inference.errors import OutriderError
from outrider.options.commands import parse
from outrider.options.roles import ServingRole, TargetRole
from outrider.processes import READY
from outrider.target.spawn import child_environment, role_command
from outrider.target.target import chat_command, notify
from tests.support.refusals import assert_refused

STARTED = {
    "target": role_command("target", "--port", "0", "--batch", "1"),
    "link": [
        *(sys.executable, "-m", "outrider.measure.link"),
        *("127.0.0.1:1", "127.0.0.1:0", "0", "0"),
    ],
}


@pytest.mark.parametrize(
    ("kind", "by"), [("target", "input"), ("link", "SIGTERM"), ("link", "input")]
)
def test_a_process_ends_when_it_is_told_to_and_when_its_starter_and_input_are_gone(
    kind: str, by: str
) -> None:
    with subprocess.Popen(
        STARTED[kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
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


def test_states_come_as_one_datagram(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "manager"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "manager"))
        notify("READY=1", "STATUS=serving")
        assert manager.recv(100) == b"READY=1\nSTATUS=serving"


def test_an_abstract_socket_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0outrider-test-notify")
        monkeypatch.setenv("NOTIFY_SOCKET", "@outrider-test-notify")
        notify("STOPPING=1")
        assert manager.recv(100) == b"STOPPING=1"


def test_a_manager_that_is_gone_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "none"))
    notify("READY=1")
    assert "READY=1" in capsys.readouterr().err


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


def test_an_emulated_target_is_encrypted_and_as_far_away_as_its_round_trip(
    tmp_path: Path,
) -> None:
    files = make_certificate(tmp_path, ["localhost"])
    token = tmp_path / "token"
    token.write_text("secret\n")
    token.chmod(0o600)
    served = outrider.serve(
        port=0, batch=1, emulate=PROFILE, rtt=ROUND_TRIP * 1e3, token_file=str(token),
        tls_cert=str(files.certificate), tls_key=str(files.key),
    )  # fmt: skip
    with served as target:
        address = f"localhost:{target.address.rpartition(':')[2]}"
        security = SecurityOptions(tls_ca=files.ca, token_file=token)
        with connect(address, security=security) as client:
            assert client.probe() >= ROUND_TRIP
            assert client.description.emulated
            assert client.description.device.endswith("200 ms away")
        with (
            pytest.raises(OutriderError),
            connect(address, security=SecurityOptions(tls_ca=files.ca)) as client,
        ):
            client.probe()


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        ({"rtt": 20.0}, ["--rtt", "--emulate"]),
        ({"rtt": -1.0, "emulate": PROFILE}, ["--rtt", "-1", "above 0"]),
        ({"rtt": 1e6, "emulate": PROFILE}, ["--rtt", "10000"]),
    ],
)
def test_a_distance_is_bounded_and_is_that_of_an_emulated_target(
    flags: dict[str, object], shown: list[str]
) -> None:
    assert_refused(lambda: TargetRole(**flags), shown)  # type: ignore[arg-type]
