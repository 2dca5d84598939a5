"""Images: linted, and the image's command run as its user on a read-only root.

No image is built here: there is no container daemon in tests.
"""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import outrider
from grpc_comm.certificate import make_certificate
from grpc_comm.keys import make_key
from outrider.processes import READY
from tests.house import ROOMS
from tests.support.repository import ROOT, tool
from tests.support.scratch_host import IMAGE_VENV, ScratchHost, read_dockerfile, scratch_host
from tests.support.wire_fixtures import free_port

DOCKER = ROOT / "deploy" / "docker"
DOCKERFILES = sorted(DOCKER.glob("Dockerfile*"))
SERVED = {
    "OUTRIDER_HOST": "0.0.0.0",
    "OUTRIDER_TLS_CERT": "/run/secrets/cert.pem",
    "OUTRIDER_TLS_KEY": "/run/secrets/key.pem",
    "OUTRIDER_KEYS_FILE": "/run/secrets/keys.json",
    "OUTRIDER_GRACE": "20",
}
"""Options of a target in a container, as docs/fleet.md gives them."""


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_hadolint_finds_nothing(path: Path) -> None:
    assert subprocess.run([tool("hadolint"), path], capture_output=True).stdout == b""


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_base_images_of_the_hub_have_a_digest_and_awss_a_tag_that_can_be_named(path: Path) -> None:
    bases = [line.split()[1] for line in path.read_text().splitlines() if line.startswith("FROM ")]
    for base in bases:
        assert base == "${NEURON_IMAGE}" or re.search(r"@sha256:[0-9a-f]{64}$", base)


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_layers_get_the_product_and_nothing_else_of_the_directory(path: Path) -> None:
    allowed = {*ROOMS, "pyproject.toml", "constraints.txt", "README.md", "LICENSE"}
    copied = {
        source.partition("/")[0]
        for line in path.read_text().splitlines()
        if line.startswith("COPY ") and "--from" not in line
        for source in line.split()[1:-1]
    }
    assert copied <= allowed


@pytest.fixture
def container(tmp_path: Path, wheel: Path) -> Iterator[tuple[ScratchHost, Path]]:
    """A host with the packages of the image, its directories and secrets, and a read-only root."""
    make_certificate(tmp_path, ["target", "localhost"])
    token = tmp_path / "token"
    token.write_text(make_key(tmp_path / "keys.json", "serve"))
    token.chmod(0o600)
    with scratch_host() as host:
        host.make_image_venv({})
        host.put_object(wheel.name, wheel)
        pip = [f"{IMAGE_VENV}/bin/python", "-m", "pip", "install", "--no-deps", "--no-index"]
        installed = host.run(*pip, f"/srv/aws/{wheel.name}")
        assert installed.returncode == 0, installed.stderr
        for name in ("cert.pem", "key.pem", "keys.json"):
            host.write(f"/run/secrets/{name}", (tmp_path / name).read_text(), 0o640)
        for words in (
            ["ln", "-s", IMAGE_VENV, "/opt/outrider"],
            ["chown", "-R", "0:10001", "/run/secrets"],
            ["mkdir", "-p", "/var/lib/outrider", "/var/cache/outrider"],
            ["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/var/cache/outrider"],
            ["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/var/lib/outrider"],
            ["mount", "-o", "remount,bind,ro", "/"],
        ):
            done = host.run(*words)
            assert done.returncode == 0, done.stderr
        assert host.run("touch", "/opt/file").returncode != 0
        yield host, tmp_path


@pytest.mark.extended
def test_the_images_command_serves_as_its_user_on_a_read_only_root_and_drains(
    container: tuple[ScratchHost, Path],
) -> None:
    host, credentials = container
    image = read_dockerfile(DOCKER / "Dockerfile")
    port = free_port()
    environment = image.environment | SERVED | {"OUTRIDER_PORT": str(port)}
    user, group = image.last("USER").split(":")
    become = ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups"]
    words = host.command(*become, "env", "-C", image.last("WORKDIR"))
    healthy = [*words, *image.words("HEALTHCHECK")]
    assert subprocess.run(healthy, env=environment, capture_output=True).returncode == 1
    with subprocess.Popen(
        [*words, *image.words("ENTRYPOINT"), *image.words("CMD")],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            assert any(line.startswith(READY) for line in process.stderr)
            asked = subprocess.run(healthy, env=environment, capture_output=True, text=True)
            assert (asked.returncode, "accepts sessions" in asked.stdout) == (0, True)
            authority, token = str(credentials / "ca.pem"), str(credentials / "token")
            address = f"localhost:{port}"
            with outrider.connect(
                address, tls_ca=authority, token_file=token, draft=False
            ) as engine:
                assert len(engine.generate("def main():", max_tokens=8, seed=1).token_ids) == 8
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
