"""The manifests for Kubernetes are valid, say what our own command line takes, and keep to the
rules of the `restricted` pod security standard.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonpatch
import kubernetes_validate
import pytest
import yaml

from compile.compile_options import parse as parse_compile
from outrider.options.commands import parse
from outrider.options.roles import TargetRole
from tests.support.repository import ROOT

VERSION = "1.37"
K8S = ROOT / "deploy" / "k8s"

Manifest = dict[str, Any]


def read(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def rendered(form: str) -> dict[str, Manifest]:
    """The manifests of a kustomization, by kind: its base with its JSON patches (RFC 6902)."""
    (kustomization,) = read(K8S / form / "kustomization.yaml")
    documents: dict[str, Manifest] = {}
    for resource in kustomization["resources"]:
        path = K8S / form / resource
        parts = (
            rendered(path.resolve().name) if path.is_dir() else {d["kind"]: d for d in read(path)}
        )
        documents |= parts
    for patch in kustomization.get("patches", []):
        (operations,) = read(K8S / form / patch["path"])
        target = documents[patch["target"]["kind"]]
        assert target["metadata"]["name"] == patch["target"]["name"]
        documents[patch["target"]["kind"]] = jsonpatch.apply_patch(target, operations)
    return documents


@pytest.fixture(params=["cpu", "cuda", "neuron"])
def form(request: pytest.FixtureRequest) -> dict[str, Manifest]:
    return rendered(request.param)


def pod_of(documents: dict[str, Manifest]) -> tuple[Manifest, Manifest, list[Manifest]]:
    """The pod, its target's container, and all of its containers."""
    pod: Manifest = documents["StatefulSet"]["spec"]["template"]["spec"]
    (target,) = pod["containers"]
    return pod, target, [target, *pod.get("initContainers", [])]


def options_of(target: Manifest) -> TargetRole:
    """What our own command line makes of the container's arguments."""
    assert target["command"] == ["outrider", "target"]
    options = parse(["target", *target["args"]])
    assert isinstance(options, TargetRole)
    return options


def test_every_form_is_valid(form: dict[str, Manifest]) -> None:
    for document in form.values():
        kubernetes_validate.validate(document, VERSION, strict=True)


def test_probes_and_service_ask_where_the_target_listens_and_pods_outlive_its_drain(
    form: dict[str, Manifest],
) -> None:
    pod, target, (_, *pulling) = pod_of(form)
    options = options_of(target)
    for container in pulling:
        outrider, verb, *flags = container["command"]
        assert (outrider, verb) == ("outrider", "compile")
        pulled = parse_compile([*flags, *container["args"]])
        assert (pulled.pull, str(pulled.out)) == ("s3://BUCKET/DIR", options.artifact)
    ports = {port["name"]: port["containerPort"] for port in target["ports"]}
    assert options.host == "0.0.0.0"
    assert options.metrics == ("0.0.0.0", ports["metrics"])
    assert ports["grpc"] == options.port
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert target[probe]["httpGet"] == {"path": "/healthz", "port": "metrics"}
    (port,) = form["Service"]["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (options.port, "grpc")
    assert form["Service"]["spec"]["clusterIP"] == "None"
    rules = form["NetworkPolicy"]["spec"]["ingress"]
    assert [rule["ports"][0]["port"] for rule in rules] == ["grpc", "metrics"]
    assert pod["terminationGracePeriodSeconds"] >= options.grace + 15


def test_every_selector_finds_the_pods(form: dict[str, Manifest]) -> None:
    labels = form["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    assert form["Service"]["spec"]["selector"] == labels
    for kind in ("StatefulSet", "PodDisruptionBudget"):
        assert form[kind]["spec"]["selector"]["matchLabels"] == labels
    assert form["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    assert form["StatefulSet"]["spec"]["serviceName"] == form["Service"]["metadata"]["name"]


def test_pods_keep_to_the_restricted_standard_write_to_volumes_only_and_read_their_secrets(
    form: dict[str, Manifest],
) -> None:
    """The image makes its directories for its user; the root of a pod is read-only."""
    pod, target, containers = pod_of(form)
    user, options = pod["securityContext"], options_of(target)
    assert user["runAsNonRoot"]
    assert user["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not pod["automountServiceAccountToken"]
    dockerfile = (ROOT / "deploy" / "docker" / "Dockerfile").read_text()
    assert f"USER {user['runAsUser']}:{user['runAsGroup']}\n" in dockerfile
    (owned,) = re.findall(r"install -d .*? -g outrider (.*)", dockerfile)
    for container in containers:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "memory" in container["resources"]["limits"]
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert mounts.keys() <= {volume["name"] for volume in pod["volumes"]}
        assert {*owned.split(), "/tmp"} <= {*mounts.values()}
    mounts = {mount["name"]: mount["mountPath"] for mount in target["volumeMounts"]}
    assert str(options.keys_file).startswith(mounts["keys"])
    assert str(options.tls_key).startswith(mounts["tls"])
    secrets = [volume["secret"] for volume in pod["volumes"] if "secret" in volume]
    assert {secret["defaultMode"] for secret in secrets} == {0o440}
    assert user["fsGroup"] == user["runAsGroup"]


@pytest.mark.parametrize(
    ("name", "resource"), [("cuda", "nvidia.com/gpu"), ("neuron", "aws.amazon.com/neuron")]
)
def test_a_device_comes_from_its_plugin_and_the_target_uses_it(name: str, resource: str) -> None:
    pod, target, _ = pod_of(rendered(name))
    assert target["resources"]["limits"][resource] == 1
    (toleration,) = pod["tolerations"]
    assert toleration["key"] == resource
    assert options_of(target).device == name


def test_keda_scales_the_stateful_set_that_is_there() -> None:
    (scaled,) = read(K8S / "keda.yaml")
    stateful_set = rendered("cpu")["StatefulSet"]
    reference = scaled["spec"]["scaleTargetRef"]
    assert reference["kind"] == stateful_set["kind"]
    assert reference["name"] == stateful_set["metadata"]["name"]
    (trigger,) = scaled["spec"]["triggers"]
    assert "outrider_sessions" in trigger["metadata"]["query"]
