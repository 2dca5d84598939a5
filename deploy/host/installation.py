"""The beginning of every host's user data: Outrider from a wheel of known digest, and the time at
which the host ends.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.aws import check_region
from inference.backends.neuron_sdk import INDEX, WHEELS
from inference.errors import InvalidRequest

SHA256 = re.compile(r"[0-9a-f]{64}")
_BUCKET = r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"
_KEY = r"[A-Za-z0-9!_.*'()/-]"
S3_PREFIX = re.compile(rf"{_BUCKET}(/{_KEY}*)?")
S3_OBJECT = re.compile(rf"{_BUCKET}/{_KEY}+")
PARAMETER = re.compile(r"/?[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*")
_WHEEL = re.compile(rf"{_BUCKET}/{_KEY}*\.whl")

_LIBRARIES = "aws-neuronx-runtime-lib aws-neuronx-collectives"
"""apt's packages that AWS's base image lacks beside its driver and tools."""
_HERE = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class Installation:
    """Outrider on a host that ends itself. Raises InvalidRequest for a value that cannot be."""

    region: str
    wheel: str  # s3://BUCKET/.../outrider-VERSION-py3-none-any.whl
    wheel_sha256: str
    hub_token: str | None = None  # SecureString with the token that the model's hub asks for
    venv: str | None = None  # of AWS's machine image for Neuron; None: a new one
    lifetime_hours: float  # since boot until the host is powered off

    def __post_init__(self) -> None:
        check_region(self.region)
        need(self.wheel, _WHEEL, "s3://BUCKET/.../NAME.whl")
        need(self.wheel_sha256, SHA256, "64 hexadecimal digits")
        if self.hub_token is not None:
            need(self.hub_token, PARAMETER, "the name of a parameter")
        if not 0 < self.lifetime_hours < float("inf"):
            raise InvalidRequest(f"a lifetime of {self.lifetime_hours} h: more than 0 is needed")

    def assignments(self, extras: str) -> dict[str, str]:
        """Return the variables of shell that install.sh and the end of the host read.

        extras: those of Outrider's package, such as torch,aws
        """
        return {
            "region": self.region,
            "wheel": self.wheel,
            "wheel_sha256": self.wheel_sha256,
            "hub_token_parameter": self.hub_token or "",
            "image_venv": self.venv or "",
            "neuron_wheels": "\n".join((f"--extra-index-url {INDEX}", *WHEELS))
            if self.venv
            else "",
            "neuron_libraries": _LIBRARIES if self.venv else "",
            "extras": extras,
            "lifetime_minutes": str(max(1, round(self.lifetime_hours * 60))),
        }


def script(values: Mapping[str, str], *parts: str, main: str) -> str:
    """Return a script for cloud-init: variables, parts of shell, install.sh, then what acts.

    values: by the name of their variable; an empty one says that there is no such thing
    main: name of the file beside this one that ends the script
    """
    assigned = (f"{name}={shlex.quote(value)}\n" for name, value in values.items())
    files = ((_HERE / name).read_text() for name in ("install.sh", main))
    return "".join(["#!/bin/bash\n", *assigned, *parts, *files])


def need(value: str, form: re.Pattern[str], needed: str) -> None:
    """Raise InvalidRequest where the value has another form."""
    if not form.fullmatch(value):
        raise InvalidRequest(f"{value!r}: {needed} is needed")
