"""Findings of `outrider doctor`, and a target's health as containers ask for it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import moto
import pytest

from grpc_comm.certificate import CertificateFiles, make_certificate
from grpc_comm.security import SecurityOptions
from outrider.doctor import check_credentials
from tests.support.commands import Run
from tests.support.repository import ROOT
from tests.support.wire_fixtures import background, free_port, successor_engine

HEALTH = ["doctor", "--health", "--port"]


def test_credentials_name_their_account(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with moto.mock_aws():
        found = check_credentials()
    assert (found.severity, found.text) == ("fine", "AWS account 123456789012, region us-east-1")


def test_missing_credentials_are_no_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    found = check_credentials()
    assert found.severity == "warning"
    assert "aws configure" in found.text


def test_a_target_that_takes_sessions_is_healthy_and_nobody_is_not(run: Run) -> None:
    with background(successor_engine()) as server:
        assert run(*HEALTH, server.address.port).code == 0
    away = run(*HEALTH, free_port(), "--json")
    (found,) = json.loads(away.out)["findings"]
    assert (away.code, found["severity"]) == (1, "fault")


@pytest.fixture
def files(tmp_path: Path) -> CertificateFiles:
    """For a name that is not this machine's address."""
    return make_certificate(tmp_path, ["target.example.com"])


def test_the_targets_own_certificate_is_trusted_whatever_its_name(
    files: CertificateFiles, tmp_path: Path, run: Run
) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    token.chmod(0o600)
    security = SecurityOptions(tls_cert=files.certificate, tls_key=files.key, token_file=token)
    other = make_certificate(tmp_path / "other", ["target.example.com"])
    with background(successor_engine(), security=security) as server:
        proofs = [["--tls_cert", one.certificate, "--tls_key", one.key] for one in (files, other)]
        asked = (run(*HEALTH, server.address.port, *proof) for proof in (*proofs, []))
        assert [one.code for one in asked] == [0, 1, 1]


def test_asking_for_health_needs_no_torch() -> None:
    code = (
        "import sys; from outrider.cli import main; main(['doctor', '--health', '--port', '1']);"
        "print({'torch', 'transformers'} & set(sys.modules))"
    )
    asked = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert asked.stdout.endswith("set()\n")
