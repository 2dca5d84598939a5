"""AWS as this account sees it: clients of its services, and its refusals as our errors."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from inference.errors import Busy, InvalidRequest, Unavailable
from inference.extras import require

DEFAULT_REGION = "us-east-1"

_DENIED = {"AccessDenied", "AccessDeniedException", "UnauthorizedOperation"}
_WRONG_CREDENTIALS = {
    "AuthFailure",
    "ExpiredToken",
    "ExpiredTokenException",
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
    """AWS answers nothing: no credentials, refused ones, or no way there."""


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

    def rows(self, service: str, operation: str, key: str, **asked: Any) -> list[Any]:
        """The rows under the key on all pages of a reply."""
        client = self.client(service)
        with aws_refusals():
            if not client.can_paginate(operation):
                return list(getattr(client, operation)(**asked)[key])
            pages = client.get_paginator(operation).paginate(**asked)
            return [row for page in pages for row in page.get(key, ())]

    def _client(self, service: str) -> Any:
        from botocore.config import Config

        settings = Config(retries={"mode": "standard"}, connect_timeout=5, read_timeout=60)
        return self._session.client(service, region_name=self.region, config=settings)


@contextmanager
def aws_refusals() -> Iterator[None]:
    """Within this context an error of boto3 is one of ours, which says what is needed."""
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError

    try:
        yield
    except ClientError as error:
        code, said = error_code(error), error.response.get("Error", {}).get("Message", "")
        call = error.operation_name
        if code in _WRONG_CREDENTIALS:
            raise AwsDown(f"AWS refuses the credentials ({code}): {said}") from error
        if code in _DENIED:
            raise InvalidRequest(
                f"AWS denies {call} to these credentials ({code}: {said}); docs/deploy.md lists "
                "what they must be allowed"
            ) from error
        if code in _THROTTLED:
            raise Busy(
                f"AWS takes no more calls of {call} for now ({code}): run the same "
                "command in a minute to resume",
                retry_after=60,
            ) from error
        raise Unavailable(f"AWS refuses {call} ({code}): {said}") from error
    except (BotoCoreError, ResponseParserError) as error:  # the latter: a proxy's page, such as
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise AwsDown(f"AWS cannot be asked: {first}") from error


def check_region(region: str) -> None:
    """Raises InvalidRequest for what cannot be the name of a region."""
    if not re.fullmatch(r"[a-z]{2}(-[a-z]+)+-[0-9]+", region):
        raise InvalidRequest(f"{region!r} is no region, such as us-east-1")


def error_code(error: Exception) -> str:
    """AWS's own name of an error; empty where none came from there."""
    response: dict[str, Any] = getattr(error, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))
