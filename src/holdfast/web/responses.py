"""Responses to requests: data with their age, and errors with a reason and without a stack trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from holdfast.errors import (
    ConfigError,
    HoldfastError,
    NotFound,
    PartitionNotFound,
    PartitionUpdateFailed,
    Refused,
    StoreError,
    TransitionRefused,
    Unavailable,
    UsageError,
)
from holdfast.web.page import as_json
from holdfast.web.readings import Reading

_STATUSES: tuple[tuple[type[HoldfastError], int], ...] = (
    (NotFound, 404),
    (PartitionNotFound, 404),
    (TransitionRefused, 409),
    (PartitionUpdateFailed, 409),
    (Refused, 409),
    (UsageError, 400),
    (ConfigError, 400),
    (Unavailable, 503),
    (StoreError, 503),
)
"""The first entry whose class matches is used; any other error is 500."""


def status_of(error: Exception) -> int:
    """Return the HTTP status of an error."""
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)


def reason_of(error: Exception) -> str:
    """Return what a viewer may read of an error: no internals of holdfast."""
    if status_of(error) == 500:
        return "this is a bug in holdfast; its log has the details"
    return str(error)


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return JSON."""
    return Response(as_json(value), status, dict(headers or {}), media_type="application/json")


def error_response(status: int, reason: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return a reason as JSON."""
    return json_response({"error": reason}, status, headers)


def age_headers(reading: Reading) -> dict[str, str]:
    """Return how old data are, in seconds, and why if they could not be read again."""
    found = {"Age": str(int(reading.age))}
    if reading.fault is not None:
        found["X-Holdfast-Fault"] = " ".join(reading.fault.encode("ascii", "replace").decode().split())[:500]
    return found
