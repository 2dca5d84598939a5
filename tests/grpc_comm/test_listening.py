"""Invalid ports and wrong TLS files are reported in one line."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from grpc_comm.certificate import issue
from grpc_comm.client.connection import connect
from grpc_comm.security import SecurityOptions
from grpc_comm.transport import Address
from outrider.cli import main
from outrider.measure.link import main as link
from outrider.options.commands import verbs_with
from outrider.target.spawn import role_command, role_environment
from tests.support.refusals import assert_refused, assert_usage_error
from tests.support.wire_fixtures import WAIT, background, successor_engine

NO_PORTS = ["70000", "65536", "-1", "4464.5", "x", "", "9" * 5000]


@pytest.mark.parametrize("flag", ["port", "metrics_port"])
@pytest.mark.parametrize("port", NO_PORTS)
def test_no_role_takes_a_port_that_is_none(
    port: str, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for verb in verbs_with(flag):
        assert_usage_error(
            capsys, main, [verb, f"--{flag}={port}"], [f"--{flag} {port[:20]}", "65535"]
        )


@pytest.mark.parametrize("port", NO_PORTS)
def test_an_address_with_a_port_that_is_none_is_refused_in_one_line(
    port: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target = f"127.0.0.1:{port}"
    for role in ("draft", "fused_client"):
        words = ["--role", role, "--prompt", "x", "--target_host", target]
        assert_usage_error(capsys, main, words, [port[:20]])
    for ends in ([target, "127.0.0.1:0"], ["127.0.0.1:1", target]):
        assert link([*ends, "0", "0"]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(("error: a port is ", "error: an address is HOST:PORT"))
    if port in ("70000", "65536", "-1"):
        address = Address("127.0.0.1", int(port))
        assert_refused(lambda: background(successor_engine(), address), [port, "65535"])


def encrypted(key: bytes) -> bytes:
    return serialization.load_pem_private_key(key, None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )


def run(command: list[str]) -> tuple[int, list[str]]:
    """Exit code, and lines on stderr."""
    ended = subprocess.run(
        command, stderr=subprocess.PIPE, text=True, env=role_environment(), timeout=3 * WAIT
    )
    return ended.returncode, ended.stderr.splitlines()


SOUND = issue(["localhost"])
BAD: dict[str, tuple[str, bytes, str]] = {
    "no certificate": ("cert", b"", "a certificate"),
    "half a certificate": ("cert", SOUND.certificate[:200], "a certificate"),
    "a key as a certificate": ("cert", SOUND.key, "a certificate"),
    "binary": ("cert", b"\xff\0\x01", "a certificate"),
    "no key": ("key", b"\n", "a private key"),
    "a certificate as a key": ("key", SOUND.certificate, "a private key"),
    "a key with a passphrase": ("key", encrypted(SOUND.key), "without a passphrase"),
    "another's key": ("key", issue(["x"]).key, "the two do not match"),
    "no authority": ("ca", b"x", "a certificate"),
}
"""What one of the files is in place of what it should be, and what is said of it."""


def written(folder: Path, **spoilt: bytes) -> SecurityOptions:
    files = {"ca": SOUND.ca, "cert": SOUND.certificate, "key": SOUND.key} | spoilt
    for name, content in files.items():
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o600)
    return SecurityOptions(tls_ca=folder / "ca", tls_cert=folder / "cert", tls_key=folder / "key")


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_tls_file_is_named_at_both_ends_with_what_is_wrong(bad: str, tmp_path: Path) -> None:
    name, content, words = BAD[bad]
    security = written(tmp_path, **{name: content})
    for end in (
        lambda: background(successor_engine(), security=security),
        lambda: connect("127.0.0.1:1", security=security),
    ):
        line = assert_refused(end, [words])
        assert line.startswith(f"--tls_{name} {tmp_path / name}: ")


def test_a_target_with_a_bad_certificate_says_one_line_before_it_loads(tmp_path: Path) -> None:
    written(tmp_path, key=BAD["another's key"][1])
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
    verbosity: str | None, lines: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The port is in use: the core writes why, beside our own line."""
    monkeypatch.delenv("GRPC_VERBOSITY", raising=False)
    if verbosity is not None:
        monkeypatch.setenv("GRPC_VERBOSITY", verbosity)
    with background(successor_engine()) as server:
        command = [sys.executable, "-c", LISTEN, str(server.address)]
        _, said = run(command)
        pair = written(tmp_path)  # which is sound, and not called bad
        second = partial(background, successor_engine(), server.address, security=pair)
        assert_refused(second, [str(server.address), "in use"])
    assert len(said) == lines
    assert said[-1].startswith(f"cannot listen on {server.address}: is the port in use")
