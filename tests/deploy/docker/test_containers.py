"""Images: linted, and the image's command run as its user on a read-only root.

No image is built here: there is no container daemon in tests.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import outrider
from outrider.processes import READY
from tests.house import ROOMS
from tests.support.repository import ROOT, tool
from tests.support.scratch_host import IMAGE_VENV, ScratchHost, scratch_host, variables
from tests.support.wire_fixtures import free_port

DOCKER = ROOT / "deploy" / "docker"
SERVED = {
    "OUTRIDER_HOST": "0.0.0.0",
    "OUTRIDER_TLS_CERT": "/run/secrets/cert.pem",
    "OUTRIDER_TLS_KEY": "/run/secrets/key.pem",
    "OUTRIDER_KEYS_FILE": "/run/secrets/keys.json",
    "OUTRIDER_GRACE": "20",
}
"""Options of a target in a container, as docs/fleet.md gives them."""


@pytest.mark.parametrize("path", sorted(DOCKER.glob("Dockerfile*")), ids=lambda path: path.name)
def test_an_image_is_linted_has_a_pinned_base_and_gets_the_product_alone(path: Path) -> None:
    assert subprocess.run([tool("hadolint"), path], capture_output=True).stdout == b""
    words = [line.split() for line in path.read_text().splitlines() if line]
    for base in (line[1] for line in words if line[0] == "FROM"):
        assert base == "${NEURON_IMAGE}" or re.search(r"@sha256:[0-9a-f]{64}$", base)
    copies = [line for line in words if line[0] == "COPY" and "--from" not in line[1]]
    sources = {source.partition("/")[0] for line in copies for source in line[1:-1]}
    assert sources <= {*ROOMS, "pyproject.toml", "constraints.txt", "README.md", "LICENSE"}


def last_stage() -> dict[str, str]:
    """The instructions of the image's last stage by name, the last of each."""
    text = re.sub(r"^#.*\n", "", (DOCKER / "Dockerfile").read_text(), flags=re.MULTILINE)
    stage = text.replace("\\\n", " ").rpartition("\nFROM ")[2]
    return dict(line.split(maxsplit=1) for line in stage.splitlines()[1:] if line.strip())


def words_of(instruction: str) -> list[str]:
    """The words of an instruction in exec form; of HEALTHCHECK, of its command."""
    words: list[str] = json.loads(instruction[instruction.index("[") :])
    return words


@pytest.fixture
def container(wheel: Path, credentials: Path) -> Iterator[ScratchHost]:
    """A host with the packages of the image, its directories and secrets, and a read-only root."""
    with scratch_host() as host:
        host.make_image_venv({})
        host.put_object(wheel.name, wheel)
        for name in ("cert.pem", "key.pem", "keys.json"):
            host.write(f"/run/secrets/{name}", (credentials / name).read_text(), 0o640)
        tmpfs = ["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs"]
        pip = [f"{IMAGE_VENV}/bin/python", "-m", "pip", "install", "--no-deps", "--no-index"]
        for words in (
            [*pip, f"/srv/aws/{wheel.name}"],
            ["ln", "-s", IMAGE_VENV, "/opt/outrider"],
            ["chown", "-R", "0:10001", "/run/secrets"],
            ["mkdir", "-p", "/var/lib/outrider", "/var/cache/outrider"],
            [*tmpfs, "/var/cache/outrider"],
            [*tmpfs, "/var/lib/outrider"],
            ["mount", "-o", "remount,bind,ro", "/"],
        ):
            done = host.run(*words)
            assert done.returncode == 0, done.stderr
        assert host.run("touch", "/opt/file").returncode != 0
        yield host


@pytest.mark.extended
def test_the_images_command_serves_as_its_user_on_a_read_only_root_and_drains(
    container: ScratchHost, credentials: Path
) -> None:
    image, port = last_stage(), free_port()
    environment = variables(image["ENV"]) | SERVED | {"OUTRIDER_PORT": str(port)}
    user, group = image["USER"].split(":")
    become = ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups"]
    words = container.command(*become, "env", "-C", image["WORKDIR"])
    healthy = [*words, *words_of(image["HEALTHCHECK"])]
    assert subprocess.run(healthy, env=environment, capture_output=True).returncode == 1
    command = [*words, *words_of(image["ENTRYPOINT"]), *words_of(image["CMD"])]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stderr=pipe, text=True) as process:
        try:
            assert process.stderr is not None
            assert any(line.startswith(READY) for line in process.stderr)
            asked = subprocess.run(healthy, env=environment, capture_output=True, text=True)
            assert (asked.returncode, "accepts sessions" in asked.stdout) == (0, True)
            authority, token = str(credentials / "ca.pem"), str(credentials / "token")
            with outrider.connect(
                f"localhost:{port}", tls_ca=authority, token_file=token, draft=False
            ) as engine:
                assert len(engine.generate("def main():", max_tokens=8, seed=1).token_ids) == 8
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
