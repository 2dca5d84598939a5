"""doctor --health against real servers: who serves, who drains, whom to trust."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from grpc_comm.security import CertificateFiles, SecurityOptions, make_certificate
from outrider.cli import main
from tests.support.repository import ROOT
from tests.support.wire_fixtures import background, free_port, successor_engine


def healthy(*words: str) -> bool:
    code = main(["doctor", "--health", *words])
    assert code in (0, 1)
    return code == 0


def test_a_target_that_takes_sessions_is_healthy_and_nobody_is_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with background(successor_engine()) as server:
        assert healthy("--port", str(server.address.port))
    assert not healthy("--port", str(free_port()), "--json")
    (found,) = json.loads(capsys.readouterr().out.partition("\n")[2])["findings"]
    assert found["severity"] == "fault"


@pytest.fixture
def files(tmp_path: Path) -> CertificateFiles:
    """For a name that is not this machine's address."""
    return make_certificate(tmp_path, ["target.example.com"])


def test_the_targets_own_certificate_is_trusted_whatever_its_name(
    files: CertificateFiles, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    token.chmod(0o600)
    security = SecurityOptions(tls_cert=files.certificate, tls_key=files.key, token_file=token)
    other = make_certificate(tmp_path / "other", ["target.example.com"])
    with background(successor_engine(), security=security) as server:
        port = ["--port", str(server.address.port)]
        assert healthy(*port, "--tls_cert", str(files.certificate), "--tls_key", str(files.key))
        assert not healthy(*port, "--tls_cert", str(other.certificate), "--tls_key", str(other.key))
        assert not healthy(*port)


def test_asking_for_health_needs_no_torch() -> None:
    code = (
        "import sys; from outrider.cli import main; main(['doctor', '--health', '--port', '1']);"
        "print({'torch', 'transformers'} & set(sys.modules))"
    )
    asked = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert asked.stdout.endswith("set()\n")
