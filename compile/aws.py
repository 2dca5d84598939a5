"""AWS services for this account, with errors converted to Outrider's exceptions."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from inference.errors import Busy, InvalidRequest, OutriderError, Unavailable, require

DEFAULT_REGION = "us-east-1"

_DENIED = {"403", "AccessDenied", "AccessDeniedException", "UnauthorizedOperation"}
_WRONG_CREDENTIALS = {
    "AuthFailure",
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "RequestExpired",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
}
_THROTTLED = {
    "Throttling",
    "ThrottlingException",
    "RequestLimitExceeded",
    "TooManyRequestsException",
    "SlowDown",
}


class AwsDown(Unavailable):
    """AWS is not available: no credentials, rejected credentials, or no connection."""


class Aws:
    """The services of one region, with boto3's credentials.

    region: None for the one in boto3's configuration, by default us-east-1

    Raises MissingExtra without boto3, AwsDown without credentials, and InvalidRequest for a
    malformed region.
    """

    def __init__(self, region: str | None = None) -> None:
        require("aws", "AWS")
        import boto3

        with aws_refusals():
            self._session = boto3.Session(region_name=region)
            if self._session.get_credentials() is None:
                raise AwsDown(
                    "there are no AWS credentials here: `aws configure` keeps some, and "
                    "AWS_PROFILE names those to use"
                )
        self.region: str = region or self._session.region_name or DEFAULT_REGION
        check_region(self.region)
        self.client = functools.cache(self._client)

    @functools.cached_property
    def account(self) -> str:
        """The number of the account to which the credentials belong."""
        with aws_refusals():
            return str(self.client("sts").get_caller_identity()["Account"])

    def rows(self, service: str, operation: str, key: str, **parameters: Any) -> list[Any]:
        """Return the rows under the key on all pages of a reply."""
        client = self.client(service)
        with aws_refusals():
            if not client.can_paginate(operation):
                return list(getattr(client, operation)(**parameters)[key])
            pages = client.get_paginator(operation).paginate(**parameters)
            return [row for page in pages for row in page.get(key, ())]

    def _client(self, service: str) -> Any:
        from botocore.config import Config

        settings = Config(retries={"mode": "standard"}, connect_timeout=5, read_timeout=60)
        return self._session.client(service, region_name=self.region, config=settings)


def check_region(region: str) -> None:
    """Raise InvalidRequest for a malformed name of a region."""
    if not re.fullmatch(r"[a-z]{2}(-[a-z]+)+-[0-9]+", region):
        raise InvalidRequest(f"{region!r} is no region, such as us-east-1")


@contextmanager
def aws_refusals(place: str = "") -> Iterator[None]:
    """Convert boto3's exceptions in this context to Outrider's.

    place: subject of the call, for messages, unless its name is sufficient
    """
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError

    start = f"{place}: AWS" if place else "AWS"
    try:
        yield
    except ClientError as error:
        raise _refusal(error, start) from error
    except (Boto3Error, BotoCoreError, ResponseParserError) as error:
        if isinstance(error.__context__, ClientError):  # from an upload
            raise _refusal(error.__context__, start) from error
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise AwsDown(f"{start} cannot be reached: {first}") from error


def _refusal(error: Any, start: str) -> OutriderError:
    """Convert a ClientError of botocore. The message begins with `start`: AWS, or a place."""
    code, message = error_code(error), error.response.get("Error", {}).get("Message", "")
    call = error.operation_name
    if code in _WRONG_CREDENTIALS:
        return AwsDown(f"{start} refuses the credentials ({code}): {message}")
    if code in _DENIED:
        return InvalidRequest(
            f"{start} denies {call} to these credentials ({code}: {message}); docs/deploy.md lists "
            "the permissions that they need"
        )
    if code == "NoSuchBucket":
        return InvalidRequest(f"{start} has no such bucket ({code}): {message}")
    if code in _THROTTLED:
        return Busy(
            f"{start} throttles {call} ({code}): run the same command in a minute to resume",
            retry_after=60,
        )
    return Unavailable(f"{start} refuses {call} ({code}): {message}")


def error_code(error: Exception) -> str:
    """Return AWS's code of an error; empty if the error is not from AWS."""
    response: dict[str, Any] = getattr(error, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))
