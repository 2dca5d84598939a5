"""The roles that generate no text: certificates, keys, model downloads, and checks."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from inference.flags.values import Directory, File, ModelName, Name
from outrider.options import groups, network
from outrider.options.roles import TO_A_TARGET, Role


class MakeCertRole(Role, network.HostOptions, title="security"):
    """create a self-signed certificate for a target"""

    COMMON: ClassVar = ("host", "out")
    role: Literal["cert"] = "cert"
    out: Directory = "certificates"
    """directory for the certificate and its keys"""


class MakeKeyRole(Role, title="security"):
    """create a client's key and print its token once"""

    COMMON: ClassVar = ("name", "keys_file")
    role: Literal["keys"] = "keys"
    name: Name
    """name of the client"""
    keys_file: File
    """file of clients' keys, to which the new key is added"""


class PullRole(Role, title="models and devices"):
    """download a model from the hub, or resume a download"""

    COMMON: ClassVar = ("name",)
    BARE: ClassVar = "name"
    role: Literal["pull"] = "pull"
    name: ModelName
    """hub name or directory of the model"""


class ListRole(Role, title="models and devices"):
    """list local models and the pairs among them"""

    COMMON: ClassVar = ("directory", "json")
    role: Literal["list"] = "list"
    directory: Directory | None = None
    """further directories to search, as A,B"""
    as_json: bool = Field(default=False, alias="json")
    """one JSON object on stdout"""


class DoctorRole(Role, groups.DeviceOptions, groups.QuantizationOptions):
    """check this machine, the target, the link and AWS credentials"""

    COMMON: ClassVar = ("model", "device", *TO_A_TARGET, "health", "json")
    role: Literal["doctor"] = "doctor"
    connection: network.ConnectionOptions = network.ConnectionOptions()
    health: bool = False
    """only check that the target accepts sessions; with --tls_cert and no other TLS flag, only that
    certificate is trusted"""
    as_json: bool = Field(default=False, alias="json")
    """one JSON object on stdout"""
