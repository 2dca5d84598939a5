"""AWS's services for this account, with AWS's errors translated to ours."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from inference.errors import Busy, InvalidRequest, OutriderError, Unavailable
from inference.extras import require

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
    """AWS cannot be used: no credentials, rejected ones, or no connection."""


class Aws:
    """The services of one region, with boto3's credentials.

    region: None takes that of boto3's configuration, else us-east-1

    Raises MissingExtra without boto3, AwsDown without credentials, and InvalidRequest for what can
    be no region.
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
        """Number of the account that pays."""
        with aws_refusals():
            return str(self.client("sts").get_caller_identity()["Account"])

    def rows(self, service: str, operation: str, key: str, **parameters: Any) -> list[Any]:
        """The rows under the key on all pages of a reply."""
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
    """Raises InvalidRequest for what cannot be the name of a region."""
    if not re.fullmatch(r"[a-z]{2}(-[a-z]+)+-[0-9]+", region):
        raise InvalidRequest(f"{region!r} is no region, such as us-east-1")


@contextmanager
def aws_refusals(place: str = "") -> Iterator[None]:
    """Within this context an error of boto3 is one of ours.

    place: what the call is about, for messages, where its name does not say so
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
        if isinstance(error.__context__, ClientError):  # of an upload
            raise _refusal(error.__context__, start) from error
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise AwsDown(f"{start} cannot be asked: {first}") from error


def _refusal(error: Any, start: str) -> OutriderError:
    """Our error for a ClientError of botocore. Its line begins with `start`: AWS, or a place."""
    code, said = error_code(error), error.response.get("Error", {}).get("Message", "")
    call = error.operation_name
    if code in _WRONG_CREDENTIALS:
        return AwsDown(f"{start} refuses the credentials ({code}): {said}")
    if code in _DENIED:
        return InvalidRequest(
            f"{start} denies {call} to these credentials ({code}: {said}); docs/deploy.md lists "
            "what they must be allowed"
        )
    if code == "NoSuchBucket":
        return InvalidRequest(f"{start} has no such bucket ({code}): {said}")
    if code in _THROTTLED:
        return Busy(
            f"{start} takes no more calls of {call} for now ({code}): run the same command in a "
            "minute to resume",
            retry_after=60,
        )
    return Unavailable(f"{start} refuses {call} ({code}): {said}")


def error_code(error: Exception) -> str:
    """AWS's own name of an error; empty if none came from there."""
    response: dict[str, Any] = getattr(error, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))
