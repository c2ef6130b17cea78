"""What the result of a handler says: whether its record failed, and whether it is acknowledged."""

from __future__ import annotations

from collections import UserList
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.functions.contexts import NO_ACK_HEADER
from holdfast.functions.events import FunctionEvent, record_names

FAILED_STATUS = 500
"""Responses with this status or a higher one are failures, as an exception is in Nuclio."""

_LAMBDA_FAILURES = "batchItemFailures"
_REPORTED = "the handler reported it as failed"


def refusal(result: Any) -> str | None:
    """Why the handler says that its record failed, by a response with a status of 500 or more; None if it does not."""
    status = getattr(result, "status_code", None)
    if status is None and isinstance(result, tuple) and len(result) == 2:
        status = result[0]
    if not isinstance(status, int) or status < FAILED_STATUS:
        return None
    body = result[1] if isinstance(result, tuple) else getattr(result, "body", None)
    return f"the handler returned status {status}" + (f": {body}" if body else "")


def wants_no_ack(result: Any) -> bool:
    """Whether the result is a response that keeps its record from being acknowledged."""
    headers = getattr(result, "headers", None)
    if not isinstance(headers, Mapping):
        return False
    value = next((value for name, value in headers.items() if str(name).lower() == NO_ACK_HEADER), False)
    return value is True or str(value).lower() in {"true", "1"}


def batch_failures(result: Any, events: Sequence[FunctionEvent]) -> dict[int, str]:
    """By index in the batch, why these events failed, as the result of a batch handler says.

    A handler returns the events that failed as a list, or responses whose `event_id` is the event's `id`, or
    `{"batchItemFailures": [{"itemIdentifier": …}]}` with ids or offsets, as functions of AWS Lambda do. An id is
    that of the record, or one that the handler has assigned to an event. A result that names an event that is not in
    the batch fails the whole batch.
    """
    if isinstance(result, Mapping) and _LAMBDA_FAILURES in result:
        return _named([(item["itemIdentifier"], _REPORTED) for item in result[_LAMBDA_FAILURES]], events)
    if refused := refusal(result):
        return dict.fromkeys(range(len(events)), refused)
    if not isinstance(result, list | UserList):
        return {}
    failures: list[tuple[Any, str]] = [
        (record_names(item)[0], _REPORTED) for item in result if isinstance(item, FunctionEvent)
    ]
    responses = ((getattr(item, "event_id", None), refusal(item)) for item in result)
    failures += [(event_id, refused) for event_id, refused in responses if refused is not None]
    return _named(failures, events)


def batch_no_acks(result: Any, events: Sequence[FunctionEvent]) -> set[int]:
    """Indexes of the events that the result keeps from being acknowledged: all, or those with a response that does."""
    if wants_no_ack(result):
        return set(range(len(events)))
    if not isinstance(result, list | UserList):
        return set()
    ids = {str(getattr(item, "event_id", None)) for item in result if wants_no_ack(item)}
    indexes = _indexes(events) if ids else {}
    return {index for name in ids for index in indexes.get(name, ())}


def _named(failures: Sequence[tuple[Any, str]], events: Sequence[FunctionEvent]) -> dict[int, str]:
    indexes = _indexes(events) if failures else {}
    unknown = [name for name, _ in failures if str(name) not in indexes]
    if unknown:
        reason = f"the handler reported {unknown[0]!r} as failed, which is not an event of the batch"
        return dict.fromkeys(range(len(events)), reason)
    return {index: reason for name, reason in failures for index in indexes[str(name)]}


def _indexes(events: Sequence[FunctionEvent]) -> dict[str, set[int]]:
    """For each name by which a result may refer to events, the indexes of these events."""
    indexes: dict[str, set[int]] = {}
    for index, event in enumerate(events):
        for name in (*record_names(event), str(event.id)):
            indexes.setdefault(name, set()).add(index)
    return indexes
