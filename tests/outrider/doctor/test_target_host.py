"""What doctor finds on a target's host: scratch roots, stand-ins of programs, real files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grpc_comm.keys_file import make_key
from grpc_comm.security import make_certificate
from inference.errors import OutriderError
from outrider.cli import main
from outrider.doctor import certificates, machine, neuron, serving
from outrider.doctor.findings import Finding
from outrider.doctor.host import TargetHost
from outrider.models import EMBEDDED
from outrider.options.roles import TargetRole
from tests.support.artifacts import build
from tests.support.fake_neuron import VERSIONS, lay_out
from tests.support.wire_fixtures import background, free_port, successor_engine

FREE = "MemTotal:       33554432 kB\nMemAvailable:   30000000 kB\n"
FULL = "MemTotal:       33554432 kB\nMemAvailable:     900000 kB\n"
DEVICE = {
    "neuron_device": 0,
    "nc_count": 2,
    "memory_size": 34359738368,
    "neuroncore_ids": [0, 1],
    "neuron_processes": [],
}


def host_of(root: Path, **options: Any) -> TargetHost:
    return TargetHost(TargetRole(**options), root)


def put(root: Path, path: str, text: str, mode: int = 0o644) -> None:
    place = root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    place.chmod(mode)


def program(root: Path, path: str, printed: str) -> None:
    """A stand-in that prints this."""
    put(root, path, f"#!/bin/sh\ncat <<'END'\n{printed}\nEND\n", 0o755)


def faults(findings: Iterator[Finding]) -> list[str]:
    """Texts and remedies of all that is not fine."""
    bad = [finding for finding in findings if finding.severity != "fine"]
    assert all(finding.remedy for finding in bad)
    return [f"{one.severity}: {one.text}; {one.remedy}" for one in bad]


def one_fault(findings: Iterator[Finding]) -> str:
    (found,) = faults(findings)
    return found


def test_memory_that_is_left_is_told_and_little_is_warned_of(tmp_path: Path) -> None:
    put(tmp_path, "proc/meminfo", FREE)
    assert faults(machine.check_memory(host_of(tmp_path))) == []
    put(tmp_path, "proc/meminfo", FULL)
    assert "0.9 of 32.0 GiB" in one_fault(machine.check_memory(host_of(tmp_path)))


def test_weights_that_never_fit_are_a_fault_of_a_cpu_alone(tmp_path: Path) -> None:
    put(tmp_path, "proc/meminfo", FREE)
    with (tmp_path / "model.safetensors").open("wb") as sparse:
        sparse.truncate(40 << 30)
    served = {"model": str(tmp_path)}
    assert "take 40.0" in one_fault(machine.check_memory(host_of(tmp_path, **served)))
    assert faults(machine.check_memory(host_of(tmp_path, **served, device="cuda"))) == []


@pytest.mark.parametrize(
    ("free", "kind"), [(0.5, "fault"), (5, "warning"), (50, None)], ids=["full", "little", "much"]
)
def test_little_disk_is_warned_of_and_a_full_one_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: float, kind: str | None
) -> None:
    left = SimpleNamespace(free=int(free * machine.GIB))
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: left)
    found = faults(machine.check_disk(host_of(tmp_path)))
    assert [one.partition(":")[0] for one in found] == ([kind] if kind else [])


@pytest.mark.parametrize(("said", "kind"), [("yes", ""), ("no", "fault: not set"), (None, "warn")])
def test_a_clock_that_nobody_sets_is_found(tmp_path: Path, said: str | None, kind: str) -> None:
    if said is not None:
        program(tmp_path, "usr/bin/timedatectl", said)
    assert "".join(faults(machine.check_clock(host_of(tmp_path)))).startswith(kind)
    assert kind or faults(machine.check_clock(host_of(tmp_path))) == []


def test_a_port_is_free_ours_or_anothers(tmp_path: Path) -> None:
    free = host_of(tmp_path, port=free_port(), metrics_port=free_port())
    assert faults(serving.check_ports(free)) == []
    with background(successor_engine()) as server:
        ours = host_of(tmp_path, port=server.address.port, metrics_port=free_port())
        assert [one.text for one in serving.check_ports(ours)] == [
            f"a target answers on 127.0.0.1:{server.address.port}"
        ]
        others = host_of(tmp_path, port=free_port(), metrics_port=server.address.port)
        assert "ss -ltnp" in one_fault(serving.check_ports(others))


def test_a_unit_that_failed_is_a_fault_with_its_log(tmp_path: Path) -> None:
    host = host_of(tmp_path)
    assert list(serving.check_service(host)) == []
    put(tmp_path, "etc/systemd/system/outrider-target.service", "")
    program(tmp_path, "usr/bin/systemctl", "active")
    assert faults(serving.check_service(host)) == []
    program(tmp_path, "usr/bin/systemctl", "failed")
    assert "journalctl -u outrider-target.service" in one_fault(serving.check_service(host))


def test_an_artefact_with_a_changed_file_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "artifact"
    manifest = build(directory)
    host = host_of(tmp_path, artifact=str(directory))
    assert manifest.model in next(iter(serving.check_served(host))).text
    (directory / next(iter(manifest.files))).write_bytes(b"other")
    with pytest.raises(OutriderError, match="SHA-256 differs"):
        list(serving.check_served(host_of(tmp_path, artifact=str(directory))))


@pytest.fixture
def secured(tmp_path: Path) -> dict[str, Any]:
    """Options with a certificate and keys."""
    files = make_certificate(tmp_path / "tls", ["localhost"])
    keys = tmp_path / "keys.json"
    make_key(keys, "laptop")
    return {
        "tls_cert": str(files.certificate),
        "tls_key": str(files.key),
        "keys_file": str(keys),
        "host": "0.0.0.0",
    }


@pytest.mark.parametrize(
    ("days", "kind"), [(-2, "fault: "), (0, None), (810, "warning: "), (830, "fault: ")]
)
def test_a_certificate_is_told_of_before_it_ends(
    secured: dict[str, Any], monkeypatch: pytest.MonkeyPatch, days: int, kind: str | None
) -> None:
    class Later(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) + timedelta(days=days)

    monkeypatch.setattr(certificates, "datetime", Later)
    found = faults(certificates.check_certificates(host_of(Path("/"), **secured)))
    assert [one.startswith(kind or "-") for one in found] == ([True] if kind else [])


def test_a_key_that_others_may_read_or_that_is_anothers_is_refused(
    secured: dict[str, Any], tmp_path: Path
) -> None:
    key = Path(secured["tls_key"])
    key.chmod(0o644)
    with pytest.raises(OutriderError, match="chmod 600"):
        list(certificates.check_certificates(host_of(Path("/"), **secured)))
    shutil.copyfile(make_certificate(tmp_path / "other", ["localhost"]).key, key)
    key.chmod(0o600)
    with pytest.raises(OutriderError, match="another's"):
        list(certificates.check_certificates(host_of(Path("/"), **secured)))


def test_a_keys_file_that_others_may_write_is_refused(secured: dict[str, Any]) -> None:
    Path(secured["keys_file"]).chmod(0o666)
    with pytest.raises(OutriderError, match="chmod go-w"):
        list(certificates.check_keys(host_of(Path("/"), **secured)))


@pytest.fixture
def trn1(
    tmp_path: Path, packages: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Iterator[Finding]]:
    """Findings of a trn1 host with this driver, these packages and these processes."""

    def findings(
        driver: str | None = "2.27.4.0",
        versions: dict[str, str] = VERSIONS,
        devices: list[dict[str, Any]] | None = None,
        device: bool = True,
        **options: Any,
    ) -> Iterator[Finding]:
        lay_out(monkeypatch, packages, versions, device=device)
        (packages / "product_name").write_text("trn1.2xlarge\n")
        if driver is not None:
            put(tmp_path, "sys/module/neuron/version", driver)
        if devices is not None:
            program(tmp_path, "opt/aws/neuron/bin/neuron-ls", json.dumps(devices))
        return neuron.check_neuron(host_of(tmp_path, **options))

    return findings


Trn1 = Callable[..., Iterator[Finding]]


def test_a_sound_neuron_host_has_driver_packages_and_free_cores(trn1: Trn1) -> None:
    found = list(trn1(devices=[DEVICE]))
    assert faults(iter(found)) == []
    assert {one.subject for one in found} == {"driver", "packages", "cores"}


def test_a_missing_device_names_the_driver_to_install(trn1: Trn1) -> None:
    assert "aws-neuronx-dkms" in one_fault(trn1(device=False, driver=None, devices=[DEVICE]))


def test_transformers_5_beside_neurons_packages_is_a_fault(trn1: Trn1) -> None:
    found = trn1(versions=VERSIONS | {"transformers": "5.0.0"}, devices=[DEVICE])
    assert "transformers 5.0.0" in next(one.text for one in found if one.severity == "fault")


@pytest.mark.parametrize(("driver", "said"), [("2.26.5.0", "too old"), ("2.27.0.0", None)])
def test_a_driver_is_held_against_the_sdk(trn1: Trn1, driver: str, said: str | None) -> None:
    found = faults(trn1(driver=driver, devices=[DEVICE]))
    assert bool(found) == bool(said)
    assert said is None or said in found[0]


def test_who_holds_the_cores_is_named(trn1: Trn1) -> None:
    held = DEVICE | {"neuron_processes": [{"pid": 77, "command": "python train.py"}]}
    assert "process 77: python train.py; end it (kill 77)" in one_fault(trn1(devices=[held]))


def test_our_own_target_may_hold_the_cores(trn1: Trn1) -> None:
    ours = {"pid": 77, "command": "/opt/outrider/venv/bin/python outrider --config x"}
    assert faults(trn1(devices=[DEVICE | {"neuron_processes": [ours]}])) == []


def test_without_neurons_tools_the_cores_are_unknown(trn1: Trn1) -> None:
    assert "aws-neuronx-tools" in one_fault(trn1())


def test_a_host_without_and_not_for_neuron_has_no_such_findings(tmp_path: Path) -> None:
    assert list(neuron.check_neuron(host_of(tmp_path))) == []


def test_the_command_shows_all_as_json_and_its_exit_code_says_whether_there_are_faults(
    tmp_path: Path, secured: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "target.yaml"
    options = secured | {"role": "target", "port": free_port(), "model": str(EMBEDDED / "target")}
    config.write_text(json.dumps(options))
    words = ["doctor", "--target_config", str(config), "--json"]
    main(words)
    sound = json.loads(capsys.readouterr().out)
    Path(secured["tls_key"]).chmod(0o666)
    assert main(words) == 1
    spoilt = json.loads(capsys.readouterr().out)
    assert spoilt["faults"] == sound["faults"] + 1
    assert "chmod 600" in json.dumps(spoilt)


def test_a_machine_with_a_neuron_device_is_a_targets_host_unless_a_client_asks(
    packages: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lay_out(monkeypatch, packages, VERSIONS, device=True)
    monkeypatch.setenv("OUTRIDER_PORT", str(free_port()))  # as in a container
    main(["doctor", "--json"])
    assert "packages" in {one["subject"] for one in json.loads(capsys.readouterr().out)["findings"]}
    assert main(["doctor", "--json", "--target_host", "127.0.0.1:1"]) == 1
    assert "draft" in {one["subject"] for one in json.loads(capsys.readouterr().out)["findings"]}


def test_a_target_file_that_is_none_is_refused_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["doctor", "--target_config", str(tmp_path / "none.yaml")])
    assert capsys.readouterr().err.count("\n") == 1
