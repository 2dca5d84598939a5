"""Ports that are none, and TLS files that do not hold what they should, are told in one line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from grpc_comm.certificate import Issued, issue
from grpc_comm.client.connection import connect
from grpc_comm.security import SecurityOptions
from grpc_comm.transport import Address
from inference.errors import InvalidRequest
from outrider.cli import main
from outrider.link.emulated_link import main as link
from outrider.options.parsing import roles_of
from outrider.target.spawn import role_command, role_environment
from tests.support.wire_fixtures import WAIT, background, successor_engine

NO_PORTS = ["70000", "65536", "-1", "4464.0", "x", "", "9" * 5000]


@pytest.mark.parametrize("flag", ["port", "metrics_port"])
@pytest.mark.parametrize("port", ["70000", "65536", "-1", "4464.5", "x", "", "9" * 5000])
def test_no_role_takes_a_port_that_is_none(
    port: str, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for role in roles_of(flag):
        with pytest.raises(SystemExit) as refusal:
            main(["--role", role, f"--{flag}={port}"])
        (line,) = capsys.readouterr().err.splitlines()
        assert refusal.value.code == 2
        assert f"--{flag} {port[:20]}" in line
        assert "65535" in line


@pytest.mark.parametrize("port", NO_PORTS)
def test_an_address_with_a_port_that_is_none_is_refused_in_one_line(
    port: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    target = f"127.0.0.1:{port}"
    for role in ("draft", "fused_client"):
        with pytest.raises(SystemExit) as refusal:
            main(["--role", role, "--prompt", "x", "--target_host", target])
        assert refusal.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "a port is " in line or "an address is HOST:PORT" in line
    for words in (["--to", target], ["--to", "127.0.0.1:1", "--listen", target]):
        assert link(words) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(("error: a port is ", "error: an address is HOST:PORT"))


@pytest.mark.parametrize("port", [70_000, 65_536, -1])
def test_a_server_does_not_listen_on_a_port_that_is_none(port: int) -> None:
    with pytest.raises(InvalidRequest, match=f"from 0 to 65535: got {port}"):
        background(successor_engine(), Address("127.0.0.1", port))


PEM, PKCS8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8


def encrypted(key: bytes) -> bytes:
    private = serialization.load_pem_private_key(key, None)
    return private.private_bytes(PEM, PKCS8, serialization.BestAvailableEncryption(b"secret"))


def run(command: list[str]) -> tuple[int, list[str]]:
    """Exit code, and lines on stderr."""
    settings = {"env": role_environment(), "timeout": 3 * WAIT}
    ended = subprocess.run(command, stderr=subprocess.PIPE, text=True, **settings)
    return ended.returncode, ended.stderr.splitlines()


Spoil = Callable[[Issued], Issued]
BAD: dict[str, tuple[str, str, Spoil]] = {
    "no certificate": ("cert", "a certificate", lambda pair: pair._replace(certificate=b"")),
    "half a certificate": (
        "cert",
        "a certificate",
        lambda pair: pair._replace(certificate=pair.certificate[:200]),
    ),
    "a key as a certificate": (
        "cert",
        "a certificate",
        lambda pair: pair._replace(certificate=pair.key),
    ),
    "binary": ("cert", "a certificate", lambda pair: pair._replace(certificate=b"\xff\0\x01")),
    "no key": ("key", "a private key", lambda pair: pair._replace(key=b"\n")),
    "a certificate as a key": (
        "key",
        "a private key",
        lambda pair: pair._replace(key=pair.certificate),
    ),
    "a key with a passphrase": (
        "key",
        "without a passphrase",
        lambda pair: pair._replace(key=encrypted(pair.key)),
    ),
    "another's key": (
        "key",
        "this one is another's",
        lambda pair: pair._replace(key=issue(["x"]).key),
    ),
    "no authority": ("ca", "a certificate", lambda pair: pair._replace(ca=b"x")),
}


def spoilt(folder: Path, spoil: Spoil) -> SecurityOptions:
    issued = spoil(issue(["localhost"]))
    files = {"ca": issued.ca, "cert": issued.certificate, "key": issued.key}
    for name, content in files.items():
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o600)
    return SecurityOptions(**{f"tls_{name}": folder / name for name in files})


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_tls_file_is_named_at_both_ends_with_what_is_wrong(bad: str, tmp_path: Path) -> None:
    name, words, spoil = BAD[bad]
    security = spoilt(tmp_path, spoil)
    for end in (
        lambda: background(successor_engine(), security=security),
        lambda: connect("127.0.0.1:1", security=security),
    ):
        with pytest.raises(InvalidRequest) as refusal:
            end()
        assert str(refusal.value).startswith(f"--tls_{name} {tmp_path / name}: ")
        assert words in str(refusal.value)


def test_a_sound_pair_on_a_port_in_use_is_not_called_bad(tmp_path: Path) -> None:
    security = spoilt(tmp_path, lambda pair: pair)
    with (
        background(successor_engine(), security=security) as server,
        pytest.raises(InvalidRequest, match="in use"),
    ):
        background(successor_engine(), server.address, security=security)


def test_a_target_with_a_bad_certificate_says_one_line_before_it_loads(tmp_path: Path) -> None:
    spoilt(tmp_path, BAD["another's key"][2])
    files = ("--tls_cert", str(tmp_path / "cert"), "--tls_key", str(tmp_path / "key"))
    command = role_command("target", "--port", "0", "--model", str(tmp_path), *files)
    code, (line,) = run(command)
    assert code == 1
    assert line.startswith(f"error: --tls_key {tmp_path / 'key'}: ")


LISTEN = """
from grpc_comm.transport import parse_address  # as in every command, ours comes before grpc
from inference.errors import InvalidRequest
from tests.support.wire_fixtures import background, successor_engine
import sys
try:
    background(successor_engine(), parse_address(sys.argv[1]))
except InvalidRequest as error:
    print(error, file=sys.stderr)
"""


@pytest.mark.parametrize(("verbosity", "lines"), [(None, 1), ("ERROR", 2)])
def test_lines_of_grpcs_core_are_written_only_for_a_user_who_asks_for_them(
    verbosity: str | None, lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The port is in use: the core writes why, beside our own line."""
    monkeypatch.delenv("GRPC_VERBOSITY", raising=False)
    if verbosity is not None:
        monkeypatch.setenv("GRPC_VERBOSITY", verbosity)
    with background(successor_engine()) as server:
        command = [sys.executable, "-c", LISTEN, str(server.address)]
        _, said = run(command)
    assert len(said) == lines
    assert said[-1].startswith(f"cannot listen on {server.address}: is the port in use")
