"""Stand-ins of the models' hub, whose repositories are directories, and of AWS: moto's server with
what it lacks, in a process of its own.

Beside moto there are hosts that take their secrets and say how far they are (Systems Manager's
commands), and faults that a test asks for: refused calls, and stacks that CloudFormation cannot
complete.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from deploy.instance import NEURON_IMAGE
from tests.support.repository import ROOT

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


ACCOUNT, REGION = "123456789012", "us-east-1"
IMAGE = "/outrider/ami"
SERVING = "active\noutrider setup: done, the target is ready\n"
FAILED = "inactive\noutrider setup: FAILED at: model (exit code 1)\n"
_CONTROL = "/outrider-test"


class AwsServer:
    """A running server, and the environment of a command that is to take it for AWS."""

    def __init__(self, address: str, home: Path) -> None:
        self.address, self.home = address, home

    @property
    def environment(self) -> dict[str, str]:
        others = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        return others | {
            "AWS_ENDPOINT_URL": self.address,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": REGION,
            "AWS_MAX_ATTEMPTS": "1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "HOME": str(self.home),
            "XDG_CONFIG_HOME": str(self.home / "config"),
            "XDG_CACHE_HOME": str(self.home / "cache"),
        }

    def control(self, **settings: Any) -> dict[str, Any]:
        """Set faults (each {action, code, message} for a refused call, {action, seconds} for one
        that hangs and comes to nothing, {action, page} for a proxy's answer, or {action:
        CreateStack, zone, reason} for a stack that fails; `after` is an action that must have been
        called before), what hosts answer, or whether they take secrets. Returns the actions that
        were called since.
        """
        request = urllib.request.Request(
            self.address + _CONTROL, data=json.dumps(settings).encode(), method="POST"
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            told: dict[str, Any] = json.load(answer)
        return told

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        """Start this Python with these arguments. What it says comes to its stdout."""
        return subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


@contextmanager
def aws_server(home: Path) -> Iterator[AwsServer]:
    """A server in a process of its own, without anything in its account but a default network."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.cloud"],
        cwd=ROOT,
        env=os.environ | {"MOTO_IAM_LOAD_MANAGED_POLICIES": "true"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield AwsServer(f"http://127.0.0.1:{int(process.stdout.readline())}", home)
    finally:
        process.kill()
        process.wait()


Reply = tuple[int, str, str]
"""Status, content type, body."""


class FaultyAws:
    """moto as a WSGI application, with the faults and hosts above."""

    def __init__(self, moto: Callable[..., Iterable[bytes]]) -> None:
        self._moto = moto
        self._faults: list[dict[str, Any]] = []
        self._host = SERVING
        self._takes_secrets = True
        self._calls: list[str] = []
        self._secrets: set[str] = set()
        self._turn = threading.Lock()

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        size = int(environ.get("CONTENT_LENGTH") or 0)
        body = environ["wsgi.input"].read(size)
        environ["wsgi.input"] = io.BytesIO(body)
        if environ["PATH_INFO"] == _CONTROL:
            return _send(start, (200, "application/json", json.dumps(self._set(json.loads(body)))))
        target = environ.get("HTTP_X_AMZ_TARGET", "")
        query = {name: values[0] for name, values in parse_qs(body.decode("latin-1")).items()}
        action = target.rpartition(".")[2] or query.get("Action", "")
        self._calls.append(action)
        if action == "PutParameter":
            self._secrets.add(json.loads(body)["Name"])
        reply = self._refused(action, query, bool(target)) or self._answered(action)
        if reply is not None:
            return _send(start, reply)
        with self._turn:  # two calls at once would make the resources of a new stack twice
            return self._moto(environ, start)

    def _set(self, settings: dict[str, Any]) -> dict[str, Any]:
        self._faults = settings.get("faults", self._faults)
        self._host = settings.get("host", self._host)
        self._takes_secrets = settings.get("takes_secrets", self._takes_secrets)
        called, self._calls = self._calls, []
        return {"called": called}

    def _refused(self, action: str, query: dict[str, str], as_json: bool) -> Reply | None:
        for fault in self._faults:
            if fault["action"] != action or fault.get("after", action) not in self._calls:
                continue
            if "seconds" in fault:
                time.sleep(fault["seconds"])
                return _error("RequestTimeout", "it hung", as_json)
            if "page" in fault:
                return 200, "text/html", fault["page"]
            if "code" in fault:
                return _error(fault["code"], fault["message"], as_json)
            given = {
                query[key]: query.get(key.replace("ParameterKey", "ParameterValue"), "")
                for key in query
                if key.endswith(".ParameterKey")
            }
            if fault.get("zone") in (None, _zone(given["SubnetId"])):
                return _failed_stack(query, fault["reason"])
        if action == "CreateStack" and "CAPABILITY_IAM" not in _members(query, "Capabilities"):
            said = "Requires capabilities : [CAPABILITY_IAM]"
            return _error("InsufficientCapabilitiesException", said, as_json)
        return None

    def _answered(self, action: str) -> Reply | None:
        """What moto does not answer: commands on hosts and the price list."""
        if action == "SendCommand":
            return _json({"Command": {"CommandId": "0" * 36}})
        if action == "GetCommandInvocation":
            if self._takes_secrets:
                _take_secrets(self._secrets)
            return _json({"Status": "Success", "StandardOutputContent": self._host})
        if action == "GetProducts":  # the price list, which moto lacks
            return _json({"FormatVersion": "aws_v1", "PriceList": []})
        return None


def _take_secrets(names: Iterable[str]) -> None:
    from moto.ssm.models import ssm_backends

    ssm_backends[ACCOUNT][REGION].delete_parameters(list(names))


def _zone(subnet: str) -> str:
    from moto.ec2.models import ec2_backends

    return str(ec2_backends[ACCOUNT][REGION].get_subnet(subnet).availability_zone)


def _members(query: dict[str, str], name: str) -> list[str]:
    """The values of a list in a query."""
    return [value for key, value in query.items() if key.startswith(f"{name}.member.")]


def _failed_stack(query: dict[str, str], reason: str) -> Reply:
    """Answer CreateStack as CloudFormation does where it finds out later that a resource cannot be
    made. It cancels the others, and then removes the stack or leaves it, as OnFailure says.
    """
    from moto.cloudformation.models import cloudformation_backends

    backend = cloudformation_backends[ACCOUNT][REGION]
    tags = {
        value: query[key.replace("Key", "Value")]
        for key, value in query.items()
        if key.startswith("Tags.member.") and key.endswith(".Key")
    }
    stack = backend.create_stack(
        name=query["StackName"], template='{"Resources": {}}', parameters={}, tags=tags
    )
    for said in (reason, "Resource creation cancelled", "The following resource(s) failed: [Host]"):
        stack._add_stack_event("CREATE_FAILED", said)
    stack.status = "ROLLBACK_COMPLETE"
    if query.get("OnFailure") == "DELETE":
        backend.delete_stack(query["StackName"])
    made = f"<CreateStackResult><StackId>{stack.stack_id}</StackId></CreateStackResult>"
    return 200, "text/xml", f"<CreateStackResponse>{made}</CreateStackResponse>"


def _error(code: str, message: str, as_json: bool) -> Reply:
    if as_json:
        return 400, "application/x-amz-json-1.1", json.dumps({"__type": code, "message": message})
    inner = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
    body = f"<ErrorResponse><Errors>{inner}</Errors>{inner}<RequestId>1</RequestId></ErrorResponse>"
    return 400, "text/xml", body


def _json(value: dict[str, Any]) -> Reply:
    return 200, "application/x-amz-json-1.1", json.dumps(value)


def _send(start: Callable[..., Any], reply: Reply) -> list[bytes]:
    status, kind, body = reply
    words = "OK" if status == 200 else "Bad Request"
    start(f"{status} {words}", [("Content-Type", kind), ("Content-Length", str(len(body)))])
    return [body.encode()]


def serve() -> None:
    """Serve on a free port, which is printed."""
    from moto.ec2.models import ec2_backends
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from moto.ssm.models import ssm_backends
    from werkzeug.serving import make_server

    image = next(iter(ec2_backends[ACCOUNT][REGION].describe_images())).id
    ssm_backends[ACCOUNT][REGION].put_parameter(
        name=IMAGE, description="", value=image, parameter_type="String", allowed_pattern="",
        keyid="", overwrite=False, tags=[], data_type="text", tier=None, policies=None,
    )  # fmt: skip
    known = vars(ssm_backends[ACCOUNT][REGION])["_parameters"]
    known[NEURON_IMAGE] = known[IMAGE]
    moto = DomainDispatcherApplication(create_backend_app)
    server = make_server("127.0.0.1", 0, FaultyAws(moto), threaded=True)
    print(server.port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    serve()
