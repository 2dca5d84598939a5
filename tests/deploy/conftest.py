"""Fixtures of this room."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from grpc_comm.certificate import make_certificate
from grpc_comm.keys import make_key
from outrider.models.found_model import EMBEDDED
from tests.support.cloud import IMAGE, AwsAccount, intercept, moto_account
from tests.support.scratch_host import PINNED, ScratchHost, build_wheel, scratch_host


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Outrider's wheel, which takes seconds to build."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate, a keys file, and the token of its one key."""
    directory = tmp_path_factory.mktemp("credentials")
    make_certificate(directory, ["localhost", "127.0.0.1"])
    token = directory / "token"
    token.write_text(make_key(directory / "keys.json", "laptop"))
    token.chmod(0o600)
    return directory


@pytest.fixture
def host(request: pytest.FixtureRequest, wheel: Path, credentials: Path) -> Iterator[ScratchHost]:
    """A host on which nothing was run, with what it may fetch. A test may say which packages its
    image has beside the usual ones.
    """
    with scratch_host() as bare:
        bare.make_image_venv(PINNED | getattr(request, "param", {}))
        bare.put_object(f"s3://bucket/{wheel.name}", wheel)
        bare.put_object("s3://bucket/target", EMBEDDED / "target")
        for name, file in (("cert", "cert.pem"), ("key", "key.pem"), ("keys", "keys.json")):
            bare.put_object(f"ssm/outrider/{name}", credentials / file)
        yield bare


@pytest.fixture(scope="module")
def moto() -> Iterator[None]:
    with moto_account():
        yield


@pytest.fixture
def aws(moto: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AwsAccount:
    """The stand-in of AWS without faults, for commands of a user with an empty home."""
    account = AwsAccount()
    intercept(account, monkeypatch)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("config", "cache"):
        monkeypatch.setenv(f"XDG_{name.upper()}_HOME", str(tmp_path / "home" / name))
    return account


@pytest.fixture
def calls(aws_keys: None, monkeypatch: pytest.MonkeyPatch) -> AwsAccount:
    """An account whose calls have the replies that a test gives, and others fail."""
    account = AwsAccount()
    intercept(account, monkeypatch)
    sending = "botocore.httpsession.URLLib3Session.send"
    monkeypatch.setattr(sending, lambda *_: pytest.fail("a request left for the network"))
    return account


@pytest.fixture
def installed(tmp_path: Path) -> list[str]:
    """Flags of a command that starts a host: what it runs, and Outrider for it."""
    wheel = tmp_path / "outrider-0.1.0-py3-none-any.whl"
    wheel.write_bytes(b"a wheel")
    return ["--image", IMAGE, "--wheel", str(wheel)]
