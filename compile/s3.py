"""Keeps a store's objects on S3. Every upload carries SHA-256 checksums, which S3 compares with
what arrives.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from inference.errors import BadArtifact, InvalidRequest, Unavailable
from inference.extras import require

_ONE_PUT = 64 << 20
"""Files of more bytes than this are uploaded in parts."""
_REFUSALS = ["NoSuchBucket", "403", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch"]
T = TypeVar("T")


class S3Objects:
    """Objects under s3://BUCKET/PREFIX, with credentials and region as boto3 finds them."""

    def __init__(self, url: str) -> None:
        self._url, path = url, url.removeprefix("s3://").strip("/")
        self._bucket, _, prefix = path.partition("/")
        if not self._bucket:
            raise InvalidRequest(f"{url}: a store on S3 is s3://BUCKET or s3://BUCKET/PREFIX")
        self._prefix = f"{prefix}/" if prefix else ""
        self._client: Any = self._ask(lambda: import_module("boto3").client("s3"))

    def has(self, name: str) -> bool:
        of = {"Bucket": self._bucket, "Key": self._prefix + name}
        return self._ask(lambda: self._client.head_object(**of), absent=None) is not None

    def put(self, name: str, path: Path, sha256: str) -> None:
        key, checksum = self._prefix + name, base64.b64encode(bytes.fromhex(sha256)).decode()
        if path.stat().st_size > _ONE_PUT:
            settings = {"ChecksumAlgorithm": "SHA256", "Metadata": {"sha256": sha256}}
            self._ask(
                lambda: self._client.upload_file(str(path), self._bucket, key, ExtraArgs=settings)
            )
            return
        with path.open("rb") as body:
            self._ask(
                lambda: self._client.put_object(
                    Bucket=self._bucket, Key=key, Body=body, ChecksumSHA256=checksum
                )
            )

    def put_once(self, name: str, content: bytes) -> bool:
        checksum = base64.b64encode(hashlib.sha256(content).digest()).decode()
        settings = {
            "Bucket": self._bucket,
            "Key": self._prefix + name,
            "Body": content,
            "ChecksumSHA256": checksum,
            "IfNoneMatch": "*",
        }
        return self._ask(lambda: self._client.put_object(**settings), absent=None) is not None

    def get(self, name: str, path: Path) -> None:
        def download() -> bool:
            self._client.download_file(self._bucket, self._prefix + name, str(path))
            return True

        if not self._ask(download, absent=False):
            raise BadArtifact(f"{self._url} has no {name}")

    def _ask(self, call: Callable[[], T], **absent: T) -> T:
        """Make a call and translate its errors into ours. With `absent`, that value is returned
        where the object is missing, or exists already.
        """
        from_boto = _boto_errors()
        try:
            return call()
        except from_boto as error:
            response: dict[str, Any] = getattr(error, "response", None) or {}
            code = str(response.get("Error", {}).get("Code", ""))
            if absent and code in ("404", "NoSuchKey", "412", "PreconditionFailed"):
                return absent["absent"]
            if code in _REFUSALS:
                raise InvalidRequest(f"{self._url}: S3 refuses ({error})") from error
            raise Unavailable(f"{self._url}: {error}") from error


def _boto_errors() -> tuple[type[Exception], ...]:
    require("aws", "S3")
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError

    return (Boto3Error, BotoCoreError, ClientError)
