"""Stand-ins of the models' hub, whose repositories are directories, and of AWS: moto in this
process, with what it lacks.
"""

from __future__ import annotations

import hashlib
import json
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import pytest

from deploy.instance import NEURON_IMAGE

COMMIT = "5" * 40
TOKEN = "hf_standin" + "0" * 24


@contextmanager
def hub_server(models: Mapping[str, Path], *, gated: str = "") -> Iterator[str]:
    """Serve directories by name; yields the address. gated: the model that takes TOKEN"""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            api, _, rest = self.path.partition("/api/models/")
            name = "/".join((rest or api.lstrip("/")).split("?")[0].split("/")[:2])
            if name not in models:
                return self._send(404, b"", {"X-Error-Code": "RepoNotFound"})
            if rest:
                return self._send(200, json.dumps(self._listing(name, rest)).encode())
            if name == gated and self.headers.get("Authorization") != f"Bearer {TOKEN}":
                return self._send(401, b"", {"X-Error-Code": "GatedRepo"})
            file = models[name] / self.path.rpartition("/")[2]
            if not file.is_file():
                return self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
            body = file.read_bytes()
            etag = hashlib.sha256(body).hexdigest()
            return self._send(200, body, {"X-Repo-Commit": COMMIT, "ETag": f'"{etag}"'})

        do_HEAD = do_GET

        def _listing(self, name: str, rest: str) -> object:
            if "/tree/" not in rest:
                return {"id": name, "sha": COMMIT, "siblings": []}
            return [
                {"type": "file", "path": path.name, "size": path.stat().st_size, "oid": path.name}
                for path in models[name].iterdir()
            ]

        def _send(self, status: int, body: bytes, headers: Mapping[str, str] = {}) -> None:
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def use_hub(address: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Let the hub of this process be there, with a cache in the folder and without a token."""
    from huggingface_hub import constants, file_download

    patch.setattr(constants, "ENDPOINT", address)
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    for module in (constants, file_download):
        patch.setattr(module, "HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
    patch.setattr(constants, "HF_HUB_CACHE", str(folder / "hub"))
    patch.setattr(constants, "HF_TOKEN_PATH", str(folder / "no token"))
    patch.delenv("HF_TOKEN", raising=False)


ACCOUNT, REGION = "123456789012", "us-east-1"
IMAGE = "/outrider/ami"
SERVING = "active\noutrider setup: done, the target is ready\n"
FAILED = "inactive\noutrider setup: FAILED at: model (exit code 1)\n"

Fault = Callable[["AwsAccount", dict[str, Any]], object]
"""What happens in place of a call with these parameters: it returns a reply or raises. A fault that
returns None leaves the reply to moto.
"""


class Killed(BaseException):
    """The command was killed."""


class AwsAccount:
    """moto's account, with what moto lacks: hosts that say how far they are, and faults."""

    def __init__(self) -> None:
        self.faults: dict[str, Fault] = {}
        self.host = SERVING
        self.calls: list[str] = []
        self.region = REGION  # of the last call
        self.silent = False

    def reply(self, action: str, parameters: dict[str, Any]) -> Any:
        """The reply to a call; None for that of moto."""
        if self.silent:
            raise Killed
        self.calls.append(action)
        if action in self.faults:
            return self.faults[action](self, parameters)
        hosts = {"Status": "Success", "StandardOutputContent": self.host}
        replies = {
            "SendCommand": {"Command": {"CommandId": "0" * 36}},
            "GetCommandInvocation": hosts,
            "GetProducts": {"PriceList": []},
        }
        return replies.get(action)

    @property
    def instances(self) -> list[str]:
        """Ids of the instances that run."""
        alive = {"Name": "instance-state-name", "Values": ["pending", "running"]}
        found = boto3.client("ec2").describe_instances(Filters=[alive])["Reservations"]
        return [row["InstanceId"] for group in found for row in group["Instances"]]

    @property
    def stacks(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = boto3.client("cloudformation").describe_stacks()["Stacks"]
        return rows


@contextmanager
def moto_account() -> Iterator[None]:
    """moto with a default network, AWS's own policies, and two parameters that name an image."""
    from moto import mock_aws
    from moto.ssm.models import ssm_backends

    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "MOTO_EC2_LOAD_DEFAULT_AMIS": "false",  # which takes seconds
            "AWS_DEFAULT_REGION": REGION,
        }.items():
            patch.setenv(name, value)
        with mock_aws(config={"iam": {"load_aws_managed_policies": True}}):
            image = boto3.client("ec2").register_image(Name="base")["ImageId"]
            boto3.client("ssm").put_parameter(Name=IMAGE, Value=image, Type="String")
            parameters = vars(ssm_backends[ACCOUNT][REGION])["_parameters"]
            parameters[NEURON_IMAGE] = parameters[IMAGE]  # only AWS may make one of such a name
            yield


def intercept(account: AwsAccount, patch: pytest.MonkeyPatch) -> None:
    """Let the account reply to all calls of this process before moto does."""
    from botocore.client import BaseClient
    from botocore.validate import validate_parameters

    real = vars(BaseClient)["_make_api_call"]

    def call(client: Any, action: str, parameters: dict[str, Any]) -> Any:
        account.region = client.meta.region_name
        reply = account.reply(action, parameters)
        operation = client.meta.service_model.operation_model(action)
        validate_parameters(parameters, operation.input_shape)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Tried to parse")  # moto makes no schedules
            return real(client, action, parameters) if reply is None else reply

    patch.setattr(BaseClient, "_make_api_call", call)


def refused(code: str, after: str = "") -> Fault:
    """A call that AWS refuses once the action `after` was called."""

    def fault(account: AwsAccount, _parameters: object) -> None:
        from botocore.exceptions import ClientError

        if not after or after in account.calls:
            raise ClientError({"Error": {"Code": code, "Message": "no"}}, account.calls[-1])

    return fault


def killed(account: AwsAccount, _parameters: object) -> None:
    """A command is killed at a call: AWS hears nothing that it still asks for while it ends."""
    account.silent = True
    raise Killed


def failing(reason: str, zone: str | None = None) -> Fault:
    """CreateStack where CloudFormation finds out later that a resource cannot be made, in this zone
    or in all. It cancels the others, and then removes the stack or leaves it, as OnFailure says.
    """

    def fault(_account: AwsAccount, asked: dict[str, Any]) -> object:
        from moto.cloudformation.models import cloudformation_backends

        given = {row["ParameterKey"]: row["ParameterValue"] for row in asked["Parameters"]}
        subnets = boto3.client("ec2").describe_subnets(SubnetIds=[given["SubnetId"]])["Subnets"]
        if zone not in (None, subnets[0]["AvailabilityZone"]):
            return None
        backend = cloudformation_backends[ACCOUNT][REGION]
        tags = {row["Key"]: row["Value"] for row in asked["Tags"]}
        stack = backend.create_stack(asked["StackName"], '{"Resources": {}}', {}, tags=tags)
        for said in (reason, "Resource creation cancelled", "The following resource(s) failed"):
            stack._add_stack_event("CREATE_FAILED", said)
        stack.status = "ROLLBACK_COMPLETE"
        if asked.get("OnFailure") == "DELETE":
            backend.delete_stack(asked["StackName"])
        return {"StackId": stack.stack_id}

    return fault
