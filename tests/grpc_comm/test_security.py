"""Plaintext stays on this machine, and a target that others can reach authenticates callers."""

from __future__ import annotations

import os
import shlex
import ssl
import stat
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from grpc_comm import certificate
from grpc_comm.certificate import CertificateFiles, make_certificate
from grpc_comm.client.connection import connect
from grpc_comm.security import SecurityOptions, channel_security, read_token
from grpc_comm.server.guard import server_security
from grpc_comm.transport import Address
from inference.errors import InvalidRequest, OutriderError, Unavailable
from tests.support.refusals import assert_refused
from tests.support.wire_fixtures import assert_serves, background, opened, successor_engine

EVERYWHERE, HERE = Address("0.0.0.0", 0), Address("127.0.0.1", 0)
ELSEWHERE = Address("target.example", 50051)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> CertificateFiles:
    return make_certificate(tmp_path_factory.mktemp("tls"), ["localhost", "127.0.0.1"])


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("token") / "token", b" open-sesame \nsecond line\n")


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    path.chmod(0o600)
    return path


def a_round_trip(address: str, options: SecurityOptions) -> None:
    with connect(address, security=options) as connection:
        session = opened(connection)
        assert_serves(session)
        session.close()


def test_tls_with_a_token_serves_by_name_and_address(files: CertificateFiles, token: Path) -> None:
    theirs = SecurityOptions(tls_cert=files.certificate, tls_key=files.key, token_file=token)
    with background(successor_engine(), security=theirs) as server:
        for host in ("localhost", "127.0.0.1"):
            a_round_trip(
                f"{host}:{server.address.port}", SecurityOptions(tls_ca=files.ca, token_file=token)
            )
    assert read_token(token) == "open-sesame"
    plain = SecurityOptions(token_file=token)  # which may be on this machine
    with background(successor_engine(), security=plain) as server:
        a_round_trip(str(server.address), plain)


@pytest.mark.parametrize("given", [b"open-sesam", b"open-sesame2", None])
def test_a_wrong_or_missing_token_is_refused_in_words(
    given: bytes | None, token: Path, tmp_path: Path
) -> None:
    options = SecurityOptions(
        token_file=None if given is None else write(tmp_path / "token", given)
    )
    demanding = background(successor_engine(), security=SecurityOptions(token_file=token))
    with demanding as server, pytest.raises(InvalidRequest, match="token"):
        connect(str(server.address), security=options)


@pytest.fixture(scope="module")
def expired(tmp_path_factory: pytest.TempPathFactory) -> CertificateFiles:
    """A pair whose time ended 75 days ago."""

    class Past(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) - timedelta(days=certificate.DAYS + 75)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certificate, "datetime", Past)
        return make_certificate(tmp_path_factory.mktemp("expired"), ["localhost", "127.0.0.1"])


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> CertificateFiles:
    return make_certificate(tmp_path_factory.mktemp("foreign"), ["localhost", "127.0.0.1"])


@pytest.mark.parametrize(
    ("theirs", "ours", "advice"),
    [
        ("tls", "plaintext", "it uses TLS: give --tls_ca FILE"),
        ("plaintext", "tls", "it does not use TLS: omit --tls_ca"),
        ("mutual tls", "tls", "it requires a client certificate: give --tls_cert"),
        ("tls", "another authority", "its certificate is refused: "),
    ],
)
def test_a_client_that_speaks_otherwise_than_the_target_is_told_what_to_give(
    theirs: str, ours: str, advice: str, files: CertificateFiles, foreign: CertificateFiles
) -> None:
    pair = SecurityOptions(tls_cert=files.certificate, tls_key=files.key)
    kinds = {
        "plaintext": SecurityOptions(),
        "tls": pair if theirs == "tls" else SecurityOptions(tls_ca=files.ca),
        "mutual tls": replace(pair, tls_ca=files.ca),
        "another authority": SecurityOptions(tls_ca=foreign.ca),
    }
    with (
        background(successor_engine(), security=kinds[theirs]) as server,
        pytest.raises(Unavailable, match=f"answers at .*: {advice}"),
    ):
        connect(str(server.address), security=kinds[ours], timeout=2)


@pytest.mark.parametrize("ours", ["plaintext", "tls"])
def test_an_http_server_at_the_targets_address_is_named_as_one(
    ours: str, files: CertificateFiles
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        if ours == "tls":
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(files.certificate, files.key)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        security = SecurityOptions(tls_ca=files.ca) if ours == "tls" else SecurityOptions()
        with pytest.raises(Unavailable, match=r"that is an HTTP server, perhaps `outrider serve`"):
            connect(f"127.0.0.1:{server.server_address[1]}", security=security, timeout=2)
        server.shutdown()


def test_a_client_needs_a_certificate_of_the_authority_that_the_target_was_given(
    files: CertificateFiles, expired: CertificateFiles, foreign: CertificateFiles
) -> None:
    for authority, theirs in ((files, None), (files, foreign), (expired, expired), (files, files)):
        pair = SecurityOptions(tls_cert=files.certificate, tls_key=files.key)
        ours = SecurityOptions(tls_ca=files.ca)
        if theirs is not None:
            ours = replace(ours, tls_cert=theirs.certificate, tls_key=theirs.key)
        demanding = replace(pair, tls_ca=authority.ca)
        with background(successor_engine(), security=demanding) as server:
            if theirs is files:
                a_round_trip(str(server.address), ours)
                continue
            with pytest.raises(Unavailable):
                connect(str(server.address), security=ours, timeout=1)


def test_a_target_whose_certificate_is_expired_or_names_another_host_is_not_trusted(
    expired: CertificateFiles, tmp_path: Path
) -> None:
    for theirs in (expired, make_certificate(tmp_path, ["target.example"])):
        options = SecurityOptions(tls_cert=theirs.certificate, tls_key=theirs.key)
        with background(successor_engine(), security=options) as server, pytest.raises(Unavailable):
            connect(str(server.address), security=SecurityOptions(tls_ca=theirs.ca), timeout=1)


def test_listening_to_other_machines_needs_tls_and_a_token(
    files: CertificateFiles, token: Path
) -> None:
    tls: dict[str, Any] = {"tls_cert": files.certificate, "tls_key": files.key}
    for options in (SecurityOptions(), SecurityOptions(**tls), SecurityOptions(token_file=token)):
        assert_refused(partial(server_security, options, EVERYWHERE), ["0.0.0.0"])
    protected = server_security(SecurityOptions(**tls, token_file=token), EVERYWHERE)
    assert protected.credentials is not None
    assert protected.keys.required
    assert not server_security(SecurityOptions(insecure=True), EVERYWHERE).keys.required


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "::1", "localhost"])
def test_this_machine_may_be_served_in_plaintext(host: str) -> None:
    security = server_security(SecurityOptions(), Address(host, 0))
    assert (security.credentials, security.keys.required) == (None, False)
    assert channel_security(SecurityOptions(), Address(host, 1)) == (None, ())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "localhost.example", "target"])
def test_plaintext_on_any_other_host_is_refused_before_a_server_starts(host: str) -> None:
    assert_refused(lambda: background(successor_engine(), Address(host, 0)), [host])


def test_a_token_never_travels_in_plaintext_to_another_machine(token: Path) -> None:
    for insecure in (False, True):
        options = SecurityOptions(token_file=token, insecure=insecure)
        assert_refused(partial(channel_security, options, ELSEWHERE), [ELSEWHERE.host])
        assert_refused(partial(server_security, options, EVERYWHERE), [EVERYWHERE.host])


def test_prompts_travel_in_plaintext_only_if_the_user_says_so(files: CertificateFiles) -> None:
    assert_refused(lambda: channel_security(SecurityOptions(), ELSEWHERE), [ELSEWHERE.host])
    assert channel_security(SecurityOptions(insecure=True), ELSEWHERE).credentials is None
    assert channel_security(SecurityOptions(tls_ca=files.ca), ELSEWHERE).credentials is not None
    assert channel_security(SecurityOptions(tls=True), ELSEWHERE).credentials is not None


def test_half_a_certificate_is_refused(files: CertificateFiles) -> None:
    assert_refused(lambda: SecurityOptions(tls_cert=files.certificate), ["--tls_key"])
    authority = SecurityOptions(tls_ca=files.ca)
    assert_refused(lambda: server_security(authority, HERE), ["--tls_cert"])


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"  \nsecond", b"two words", "schlüssel".encode(), b"a\x00b"]
)
def test_a_token_that_cannot_be_one_is_refused(content: bytes, tmp_path: Path) -> None:
    file = write(tmp_path / "token", content)
    assert_refused(lambda: read_token(file), ["--token_file", str(file)])


def secrets(files: CertificateFiles, folder: Path) -> tuple[Path, Path]:
    token = write(folder / "a token", b"open-sesame")
    return token, write(folder / "key.pem", files.key.read_bytes())


@pytest.mark.skipif(os.name != "posix", reason="modes are those of POSIX")
@pytest.mark.parametrize("mode", [0o644, 0o604, 0o606, 0o660, 0o444])
def test_a_token_or_tls_key_that_others_may_read_or_write_is_refused_with_the_remedy(
    mode: int, files: CertificateFiles, tmp_path: Path
) -> None:
    token, key = secrets(files, tmp_path)
    pair: dict[str, Any] = {"tls_cert": files.certificate, "tls_key": key}
    for secret, options in ((token, {"token_file": token}), (key, pair)):
        secret.chmod(mode)
        for security in (server_security, channel_security):
            remedy = f"(mode {mode:04o}): chmod 600 {shlex.quote(str(secret))} ("
            line = assert_refused(partial(security, SecurityOptions(**options), HERE), [remedy])
            assert line.startswith("--t")


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o440, 0o640])
def test_a_token_and_a_tls_key_may_be_read_by_owner_and_group(
    mode: int, files: CertificateFiles, tmp_path: Path
) -> None:
    token, key = secrets(files, tmp_path)
    for secret in (token, key):
        secret.chmod(mode)  # 0440: a secret of Kubernetes whose defaultMode says so
    options = SecurityOptions(tls_cert=files.certificate, tls_key=key, token_file=token)
    assert server_security(options, EVERYWHERE).keys.required
    assert channel_security(options, ELSEWHERE).metadata


@pytest.mark.parametrize("field", ["token_file", "tls_ca"])
def test_a_file_that_cannot_be_read_is_named(field: str, tmp_path: Path) -> None:
    missing: dict[str, Any] = {field: tmp_path / "missing"}
    options = SecurityOptions(**missing)
    assert_refused(lambda: channel_security(options, HERE), [f"--{field}", "missing"])


def test_the_key_is_readable_by_its_owner_only_and_never_overwritten(
    files: CertificateFiles,
) -> None:
    assert [path.name for path in files] == ["ca.pem", "cert.pem", "key.pem"]
    assert [stat.S_IMODE(path.stat().st_mode) for path in files] == [0o644, 0o644, 0o600]
    before, folder = files.key.read_bytes(), files.key.parent
    assert_refused(lambda: make_certificate(folder, ["localhost"]), [str(folder)])
    assert files.key.read_bytes() == before


@pytest.mark.parametrize("hosts", [[], [""], ["https://target"], ["target:50051"], ["two words"]])
def test_what_a_certificate_cannot_name_is_refused(hosts: list[str], tmp_path: Path) -> None:
    asked = partial(make_certificate, tmp_path / "tls", hosts)
    assert_refused(asked, hosts, OutriderError)
    assert not (tmp_path / "tls").exists()
