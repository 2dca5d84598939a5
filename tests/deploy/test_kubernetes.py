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
FORMS = ("cpu", "cuda", "neuron")

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


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> dict[str, Manifest]:
    return rendered(request.param)


def pod_of(documents: dict[str, Manifest]) -> Manifest:
    pod: Manifest = documents["StatefulSet"]["spec"]["template"]["spec"]
    return pod


def target_of(documents: dict[str, Manifest]) -> Manifest:
    (target,) = pod_of(documents)["containers"]
    assert isinstance(target, dict)
    return target


def options_of(documents: dict[str, Manifest]) -> TargetRole:
    """What our own command line makes of the container's arguments."""
    target = target_of(documents)
    assert target["command"] == ["outrider", "target"]
    options = parse(["target", *target["args"]])
    assert isinstance(options, TargetRole)
    return options


def test_every_form_is_valid(form: dict[str, Manifest]) -> None:
    for document in form.values():
        kubernetes_validate.validate(document, VERSION, strict=True)


def test_the_containers_arguments_are_flags_of_our_own(form: dict[str, Manifest]) -> None:
    options = options_of(form)
    for container in pod_of(form).get("initContainers", []):
        outrider, verb, *flags = container["command"]
        assert (outrider, verb) == ("outrider", "compile")
        pulled = parse_compile([*flags, *container["args"]])
        assert (pulled.pull, str(pulled.out)) == ("s3://BUCKET/DIR", options.artifact)


def test_probes_and_service_ask_where_the_target_listens(form: dict[str, Manifest]) -> None:
    options, target = options_of(form), target_of(form)
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


def test_a_pod_lives_longer_than_its_target_drains(form: dict[str, Manifest]) -> None:
    assert pod_of(form)["terminationGracePeriodSeconds"] >= options_of(form).grace + 15


def test_every_selector_finds_the_pods(form: dict[str, Manifest]) -> None:
    labels = form["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    assert form["Service"]["spec"]["selector"] == labels
    for kind, name in [("StatefulSet", "selector"), ("PodDisruptionBudget", "selector")]:
        assert form[kind]["spec"][name]["matchLabels"] == labels
    assert form["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    assert form["StatefulSet"]["spec"]["serviceName"] == form["Service"]["metadata"]["name"]


def test_secrets_are_mounted_where_the_target_reads_them_and_others_may_not(
    form: dict[str, Manifest],
) -> None:
    options, pod = options_of(form), pod_of(form)
    mounts = {mount["name"]: mount["mountPath"] for mount in target_of(form)["volumeMounts"]}
    assert str(options.keys_file).startswith(mounts["keys"])
    assert str(options.tls_key).startswith(mounts["tls"])
    secrets = [volume["secret"] for volume in pod["volumes"] if "secret" in volume]
    assert {secret["defaultMode"] for secret in secrets} == {0o440}
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]


def test_pods_keep_to_the_restricted_standard_and_write_to_volumes_only(
    form: dict[str, Manifest],
) -> None:
    pod = pod_of(form)
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not pod["automountServiceAccountToken"]
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "memory" in container["resources"]["limits"]
        named = {volume["name"] for volume in pod["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} <= named


def test_all_that_the_image_writes_to_is_a_volume_and_its_user_is_the_pods(
    form: dict[str, Manifest],
) -> None:
    """The image makes its directories for its user; the root of a pod is read-only."""
    dockerfile = (ROOT / "deploy" / "docker" / "Dockerfile").read_text()
    user = form["StatefulSet"]["spec"]["template"]["spec"]["securityContext"]
    assert f"USER {user['runAsUser']}:{user['runAsGroup']}\n" in dockerfile
    owned = re.search(r"install -d .*? -g outrider (.*)", dockerfile)
    assert owned is not None
    for container in [*pod_of(form)["containers"], *pod_of(form).get("initContainers", [])]:
        written = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert {*owned[1].split(), "/tmp"} <= written


@pytest.mark.parametrize(
    ("form", "resource"), [("cuda", "nvidia.com/gpu"), ("neuron", "aws.amazon.com/neuron")]
)
def test_a_device_comes_from_its_plugin_and_the_target_uses_it(form: str, resource: str) -> None:
    documents = rendered(form)
    assert target_of(documents)["resources"]["limits"][resource] == 1
    (toleration,) = pod_of(documents)["tolerations"]
    assert toleration["key"] == resource
    assert options_of(documents).device == form


def test_keda_scales_the_stateful_set_that_is_there() -> None:
    (scaled,) = read(K8S / "keda.yaml")
    stateful_set = rendered("cpu")["StatefulSet"]
    reference = scaled["spec"]["scaleTargetRef"]
    assert reference["kind"] == stateful_set["kind"]
    assert reference["name"] == stateful_set["metadata"]["name"]
    (trigger,) = scaled["spec"]["triggers"]
    assert "outrider_sessions" in trigger["metadata"]["query"]
