"""`outrider deploy doctor` against a stand-in of AWS: each finding, and what it says to do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import moto
import pytest

from deploy.__main__ import main


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """An account that moto keeps, and a machine without the plugin; nothing leaves it."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(
        "botocore.httpsession.URLLib3Session.send",
        lambda *_: pytest.fail("a request left for the network"),
    )
    with moto.mock_aws():
        yield


def doctor(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """Findings by their subject."""
    code = main(["doctor", "--json", *words])
    told = json.loads(capsys.readouterr().out)
    assert code == (1 if told["faults"] else 0)
    return {finding["subject"]: finding for finding in told["findings"]}


def quota_of(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let AWS tell this quota; moto has none of EC2's."""
    from botocore.client import BaseClient

    ask = BaseClient._make_api_call

    def answer(self: Any, operation: str, asked: dict[str, Any]) -> Any:
        if operation == "GetServiceQuota":
            return {"Quota": {"QuotaCode": asked["QuotaCode"], "Value": value}}
        return ask(self, operation, asked)

    monkeypatch.setattr(BaseClient, "_make_api_call", answer)


@pytest.mark.usefixtures("account")
@pytest.mark.parametrize(("value", "severity"), [(0.0, "fault"), (8.0, "fine")])
def test_a_quota_is_held_against_the_instance(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    value: float,
    severity: str,
) -> None:
    quota_of(value, monkeypatch)
    found = doctor(capsys, "--instance", "trn1.2xlarge", "--region", "us-east-1")["quota"]
    assert found["severity"] == severity
    assert ("--desired-value 8" in found["remedy"]) == (severity == "fault")


@pytest.mark.usefixtures("account")
def test_what_aws_does_not_tell_is_a_warning_and_a_missing_plugin_a_fault(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = doctor(capsys, "--instance", "m7i.2xlarge", "--region", "us-east-1")
    assert found["credentials"]["text"] == "of account 123456789012"
    assert found["quota"]["severity"] == "warning"
    assert "Session Manager plugin" in found["tunnel"]["remedy"]


@pytest.mark.usefixtures("account")
def test_a_region_without_the_instance_is_a_fault(capsys: pytest.CaptureFixture[str]) -> None:
    offered = doctor(capsys, "--instance", "m5.large", "--region", "us-east-1")["region"]
    assert offered["severity"] == "fine"
    missing = doctor(capsys, "--instance", "trn2.48xlarge", "--region", "eu-south-1")["region"]
    assert missing["severity"] == "fault"


@pytest.mark.usefixtures("account")
def test_an_image_that_is_gone_is_a_fault(capsys: pytest.CaptureFixture[str]) -> None:
    found = doctor(capsys, "--instance", "trn1.2xlarge", "--region", "us-east-1")["image"]
    assert found["severity"] == "fault"
    assert "--image" in found["text"]
    for_trn2 = doctor(capsys, "--instance", "trn2.48xlarge", "--region", "us-east-2")["image"]
    assert "trn2 runs by native PyTorch" in for_trn2["text"]


def test_without_credentials_nothing_else_is_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    found = doctor(capsys)
    assert "aws configure" in found["credentials"]["text"]
    assert set(found) == {"tunnel", "credentials"}
