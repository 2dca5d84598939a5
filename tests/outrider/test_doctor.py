"""Findings of `outrider doctor`, and a target's health as containers ask for it."""

from __future__ import annotations

import json
from pathlib import Path

import moto
import pytest

import outrider
from grpc_comm.certificate import make_certificate
from grpc_comm.security import SecurityOptions
from outrider.doctor import check_credentials
from tests.support.commands import Run
from tests.support.wire_fixtures import background, free_port, successor_engine

HEALTH = ["doctor", "--health", "--port"]


@pytest.mark.usefixtures("aws_keys")
def test_credentials_name_their_account_and_missing_ones_are_no_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with moto.mock_aws():
        found = check_credentials()
    assert (found.severity, found.text) == ("fine", "AWS account 123456789012, region us-east-1")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    found = check_credentials()
    assert found.severity == "warning"
    assert "aws configure" in found.text


def test_doctor_says_what_draft_and_target_can_do_and_fails_without_a_target(run: Run) -> None:
    with outrider.serve(port=0, batch=1) as target:
        told = run("doctor", "--target_host", target.address)
    assert told.code == 0
    for word in ("cores", "tokens/s alone", "round trip", "of a forward", "AWS"):
        assert word in told.out
    away = run("doctor", "--target_host", "127.0.0.1:1")
    assert away.code == 1
    assert "127.0.0.1:1" in away.out


def test_a_target_that_takes_sessions_is_healthy_and_nobody_is_not(run: Run) -> None:
    with background(successor_engine()) as server:
        assert run(*HEALTH, server.address.port).code == 0
    away = run(*HEALTH, free_port(), "--json")
    (found,) = json.loads(away.out)["findings"]
    assert (away.code, found["severity"]) == (1, "fault")


def test_the_targets_own_certificate_is_trusted_whatever_its_name(tmp_path: Path, run: Run) -> None:
    ours, other = (
        make_certificate(tmp_path / folder, ["target.example.com"]) for folder in ("ours", "other")
    )
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text("secret")
    security = SecurityOptions(tls_cert=ours.certificate, tls_key=ours.key, token_file=token)
    with background(successor_engine(), security=security) as server:
        for files, code in ((ours, 0), (other, 1), (None, 1)):
            proof = ["--tls_cert", files.certificate, "--tls_key", files.key] if files else []
            assert run(*HEALTH, server.address.port, *proof).code == code
