"""The bucket from which hosts download artefacts and Outrider's wheel. It outlives the targets."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from compile.aws import Aws, aws_refusals, error_code
from deploy.deployment import own_bucket
from inference.errors import InvalidRequest
from inference.files.artifact import hash_file


class HostBucket:
    """A bucket of this account, which may not exist."""

    def __init__(self, aws: Aws, name: str) -> None:
        self.name, self._region = name, aws.region
        self._client, self._aws = aws.client("s3"), aws

    @property
    def exists(self) -> bool:
        """Whether it exists. Raises InvalidRequest if it belongs to another account: names of
        buckets are global, and the default name can be guessed.
        """
        is_ours = self.name == own_bucket(self._aws.account, self._region)
        owner = {"ExpectedBucketOwner": self._aws.account} if is_ours else {}
        with aws_refusals():
            try:
                self._client.head_bucket(Bucket=self.name, **owner)
            except self._client.exceptions.ClientError as error:
                if error_code(error) in ("404", "NoSuchBucket"):
                    return False
                if error_code(error) not in ("403", "AccessDenied"):
                    raise
                raise InvalidRequest(
                    f"s3://{self.name} is another account's, or closed to these credentials: "
                    "--bucket names one of yours"
                ) from error
        return True

    def make(self) -> None:
        """Create the bucket, without public access, unless it exists. S3 encrypts its objects."""
        if self.exists:
            return
        where = {"LocationConstraint": self._region}
        settings = {} if self._region == "us-east-1" else {"CreateBucketConfiguration": where}
        with aws_refusals():
            self._client.create_bucket(Bucket=self.name, **settings)
            self._client.put_public_access_block(
                Bucket=self.name,
                PublicAccessBlockConfiguration={
                    "BlockPublicAcls": True,
                    "IgnorePublicAcls": True,
                    "BlockPublicPolicy": True,
                    "RestrictPublicBuckets": True,
                },
            )

    def put(self, key: str, path: Path) -> str:
        """Upload a file and return its URL, s3://BUCKET/KEY."""
        with aws_refusals():
            self._client.upload_file(
                str(path), self.name, key, ExtraArgs={"ChecksumAlgorithm": "SHA256"}
            )
        return f"s3://{self.name}/{key}"

    def read(self, key: str) -> bytes | None:
        """Return the content of a small object; None if it does not exist."""
        with aws_refusals():
            try:
                content: bytes = self._client.get_object(Bucket=self.name, Key=key)["Body"].read()
            except self._client.exceptions.NoSuchKey:
                return None
        return content

    def keys(self, prefix: str = "") -> list[str]:
        """Return the keys of all objects with this prefix."""
        return [row["Key"] for row in self._rows() if row["Key"].startswith(prefix)]

    def sizes(self) -> list[int]:
        """Return the sizes of all objects in bytes."""
        return [row["Size"] for row in self._rows()]

    def remove(self) -> None:
        """Delete the bucket with all its objects."""
        keys = self.keys()
        with aws_refusals():
            for start in range(0, len(keys), 1000):
                some = [{"Key": key} for key in keys[start : start + 1000]]
                self._client.delete_objects(Bucket=self.name, Delete={"Objects": some})
            self._client.delete_bucket(Bucket=self.name)

    def _rows(self) -> list[dict[str, Any]]:
        return self._aws.rows("s3", "list_objects_v2", "Contents", Bucket=self.name)


_SOURCE = Path(__file__).parents[1]


def build_wheel(directory: Path) -> Path:
    """Build a wheel of the checkout that contains this file. Raises InvalidRequest if it is not a
    checkout, or if pip fails.
    """
    if not (_SOURCE / "pyproject.toml").is_file():
        raise InvalidRequest(
            f"a host installs the same Outrider as runs here, and {_SOURCE} is no checkout that a "
            "wheel could be built from: name one with --wheel FILE"
        )
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet"]
    built = subprocess.run(  # noqa: S603 (this Python's own pip)
        [*command, "--wheel-dir", str(directory), str(_SOURCE)], capture_output=True, text=True
    )
    wheels = sorted(directory.glob("*.whl"))
    if built.returncode or not wheels:
        reason = (built.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise InvalidRequest(
            f"pip could not build Outrider's wheel ({reason}): name one by --wheel"
        )
    return wheels[0]


def put_wheel(bucket: HostBucket, file: str | None) -> tuple[str, str]:
    """Upload Outrider's wheel under its digest, and return its URL and SHA-256. Raises
    InvalidRequest for a file that is not a wheel.

    file: the wheel; None to build one
    """
    with tempfile.TemporaryDirectory(prefix="outrider-") as directory:
        wheel = build_wheel(Path(directory)) if file is None else Path(file)
        if wheel.suffix != ".whl" or not wheel.is_file():
            raise InvalidRequest(f"--wheel {wheel}: a file NAME.whl is needed")
        sha256 = hash_file(wheel)
        return bucket.put(f"wheels/{sha256[:16]}/{wheel.name}", wheel), sha256
