"""The bucket from which hosts download artefacts and Outrider's wheel. It outlives the targets."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from compile.aws import Aws, aws_refusals, error_code
from compile.store import S3Objects
from inference.errors import InvalidRequest
from inference.files.artifact import hash_file

_SOURCE = Path(__file__).parents[1]
_BLOCKED = ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets")


def own_bucket(account: str, region: str) -> str:
    """Return the name of the bucket that all targets of an account and region share."""
    return f"outrider-{account}-{region}"


class HostBucket(S3Objects):
    """A bucket of this account, which may not exist."""

    def __init__(self, aws: Aws, name: str) -> None:
        super().__init__(f"s3://{name}", aws)
        self.name, self._aws = name, aws

    @property
    def exists(self) -> bool:
        """Whether it exists. Raises InvalidRequest if it belongs to another account: names of
        buckets are global, and the default name can be guessed.
        """
        is_ours = self.name == own_bucket(self._aws.account, self._aws.region)
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
        where = {"CreateBucketConfiguration": {"LocationConstraint": self._aws.region}}
        with aws_refusals():
            self._client.create_bucket(
                Bucket=self.name, **({} if self._aws.region == "us-east-1" else where)
            )
            self._client.put_public_access_block(
                Bucket=self.name, PublicAccessBlockConfiguration=dict.fromkeys(_BLOCKED, True)
            )

    def read(self, key: str) -> bytes | None:
        """Return the content of a small object; None if it does not exist."""
        with aws_refusals():
            try:
                content: bytes = self._client.get_object(Bucket=self.name, Key=key)["Body"].read()
            except self._client.exceptions.NoSuchKey:
                return None
        return content

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Return the sizes in bytes of all objects with this prefix, by key."""
        rows = self._aws.rows("s3", "list_objects_v2", "Contents", Bucket=self.name, Prefix=prefix)
        return {row["Key"]: row["Size"] for row in rows}

    def remove(self) -> None:
        """Delete the bucket with all its objects."""
        keys = list(self.sizes())
        with aws_refusals():
            for start in range(0, len(keys), 1000):
                some = [{"Key": key} for key in keys[start : start + 1000]]
                self._client.delete_objects(Bucket=self.name, Delete={"Objects": some})
            self._client.delete_bucket(Bucket=self.name)


def put_wheel(bucket: HostBucket, file: str | None) -> tuple[str, str]:
    """Upload Outrider's wheel under its digest, and return its URL and SHA-256. Raises
    InvalidRequest for a file that is not a wheel.

    file: the wheel; None to build one
    """
    with tempfile.TemporaryDirectory(prefix="outrider-") as directory:
        wheel = _build_wheel(Path(directory)) if file is None else Path(file)
        if wheel.suffix != ".whl" or not wheel.is_file():
            raise InvalidRequest(f"--wheel {wheel}: a file NAME.whl is needed")
        sha256 = hash_file(wheel)
        key = f"wheels/{sha256[:16]}/{wheel.name}"
        bucket.put(key, wheel)
        return f"s3://{bucket.name}/{key}", sha256


def _build_wheel(directory: Path) -> Path:
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
