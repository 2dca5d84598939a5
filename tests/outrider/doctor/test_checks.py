"""The check of AWS's credentials, against a stand-in of AWS and without any."""

from __future__ import annotations

from pathlib import Path

import moto
import pytest

from outrider.doctor.checks import check_credentials


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
