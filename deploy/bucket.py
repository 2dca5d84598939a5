"""The bucket that hosts read Outrider and artefacts from. It outlives its targets."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from deploy.aws import Aws, aws_refusals, error_code
from deploy.deployment import own_bucket
from inference.errors import InvalidRequest


class Contents(NamedTuple):
    """What a bucket holds."""

    objects: int
    size: int  # bytes


class HostBucket:
    """A bucket of this account, which may not exist."""

    def __init__(self, aws: Aws, name: str) -> None:
        self.name, self._region = name, aws.region
        self._client, self._aws = aws.client("s3"), aws

    @property
    def exists(self) -> bool:
        """Raises InvalidRequest for a bucket of this account's name that another account made:
        names of buckets are the whole world's, and this one can be guessed.
        """
        own = self.name == own_bucket(self._aws.account, self._region)
        owner = {"ExpectedBucketOwner": self._aws.account} if own else {}
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
        """Create it where it does not exist, closed to the public. S3 encrypts what it holds."""
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
        """Upload a file; returns its URL, s3://BUCKET/KEY."""
        with aws_refusals():
            self._client.upload_file(
                str(path), self.name, key, ExtraArgs={"ChecksumAlgorithm": "SHA256"}
            )
        return f"s3://{self.name}/{key}"

    def read(self, key: str) -> bytes | None:
        """A small object; None where it does not exist."""
        with aws_refusals():
            try:
                content: bytes = self._client.get_object(Bucket=self.name, Key=key)["Body"].read()
            except self._client.exceptions.NoSuchKey:
                return None
        return content

    def contents(self) -> Contents:
        with aws_refusals():
            sizes = [row["Size"] for row in self._rows()]
        return Contents(len(sizes), sum(sizes))

    def remove(self) -> None:
        """Delete it with all that it holds."""
        with aws_refusals():
            keys = [row["Key"] for row in self._rows()]
            for start in range(0, len(keys), 1000):
                some = [{"Key": key} for key in keys[start : start + 1000]]
                self._client.delete_objects(Bucket=self.name, Delete={"Objects": some})
            self._client.delete_bucket(Bucket=self.name)

    def _rows(self) -> list[dict[str, Any]]:
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.name)
        return [row for page in pages for row in page.get("Contents", ())]
