"""A failed call's error, as gRPC raises it."""

from __future__ import annotations

from typing import Any

import grpc

Metadata = tuple[tuple[str, str], ...]


class RpcFailure(grpc.RpcError):
    """The status of a call that failed, with its trailing metadata."""

    def __init__(self, code: grpc.StatusCode, details: str, trailing: Metadata = ()) -> None:
        super().__init__(f"{code.name}: {details}")
        self._code, self._details, self._trailing = code, details, trailing

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> Any:
        return self._trailing
