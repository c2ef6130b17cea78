"""The response to a bulk request, and the outcome of each document.

A response that does not come from a search cluster, such as the page of a proxy, decides nothing about a document.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from holdfast.flow.fault import MAX_REASON

RESPONSE_FIELDS = "errors,items.*.status,items.*.error"
"""The only fields that are requested: the others are several times as long and are not used."""

_ERRORS = re.compile(r'"errors"\s*:\s*(true|false)')
_STATUS = '"status":'
_CLUSTER_REASONS = re.compile(
    r"pipeline with id \[.*\] does not exist"
    r"|\[\d+\]/\[\d+\] maximum (\w+ )?shards open"
    r"|no write index is defined for alias"
)
_AMBIGUOUS_TYPES = {"validation_exception", "illegal_argument_exception"}
_REQUIRES_ALIAS = "[require_alias] request flag is [true]"
_STATUSES = frozenset(range(200, 600))
_BUSY = {429, 502, 503, 504}
_CLUSTER_ERRORS = {
    "cluster_block_exception",
    "index_create_block_exception",
    "index_closed_exception",
    "index_not_found_exception",
    "security_exception",
    "authorization_exception",
    "resource_already_exists_exception",
    "cluster_manager_not_discovered_exception",
    "master_not_discovered_exception",
    "node_closed_exception",
    "node_disconnected_exception",
    "node_not_connected_exception",
    "shard_not_in_primary_mode_exception",
    "primary_missing_action_exception",
    "unavailable_shards_exception",
    "no_shard_available_action_exception",
    "process_cluster_event_timeout_exception",
    "es_rejected_execution_exception",
    "opensearch_rejected_execution_exception",
    "rejected_execution_exception",
    "circuit_breaking_exception",
}
"""Errors of the cluster or of a whole index: no document is at fault. They pass with time, or a person must fix them.
"""


class Outcome(Enum):
    DONE = "done"
    CONFLICT = "conflict"
    """An earlier write has indexed the same record or a later version of it: counts as done."""
    RETRY = "retry"
    BROKEN = "broken"
    """The server failed on the document. A few attempts show whether the document is at fault."""
    REFUSED = "refused"
    CLOSED = "closed"
    """The write alias of the run is gone."""


@dataclass
class Verdicts:
    """Indexes of documents within the request, by their outcome; documents that are not listed are done."""

    conflicts: list[int] = field(default_factory=list)
    retry: list[int] = field(default_factory=list)
    broken: list[tuple[int, str]] = field(default_factory=list)
    refused: list[tuple[int, str]] = field(default_factory=list)
    closed: str = ""
    """Why documents were refused whose write alias is gone: their run has ended, or its index was removed."""
    busy: int = 0
    """How many were rejected because the server is overloaded."""
    reason: str = ""
    """The server's reason for the first document that is to be sent again."""


def not_a_response(text: object) -> str:
    """The message for a response that does not come from a search cluster, with the beginning of its text."""
    return f"this is not a response of a search cluster: {' '.join(str(text).split())[:200] or 'it is empty'}"


def parse_response(response: str, *, sent: int, conflict_is_done: bool) -> Verdicts:
    """The outcome of each of the documents that were sent. Raises `ValueError` if the response does not name each."""
    found = _ERRORS.search(response, 0, 4096) or _ERRORS.search(response)
    if found is None:
        raise ValueError(not_a_response(response))
    verdicts = Verdicts()
    if found[1] == "false" and response.count(_STATUS) == sent:
        return verdicts
    for index, (action, item) in enumerate(_items(response, sent)):
        outcome = _outcome(action, item, conflict_is_done=conflict_is_done)
        if outcome is Outcome.CONFLICT:
            verdicts.conflicts.append(index)
        elif outcome is Outcome.REFUSED:
            verdicts.refused.append((index, reason_of(item)))
        elif outcome is Outcome.CLOSED:
            verdicts.closed = reason_of(item)
        elif outcome is Outcome.BROKEN:
            verdicts.broken.append((index, reason_of(item)))
        elif outcome is Outcome.RETRY:
            verdicts.retry.append(index)
            verdicts.busy += item["status"] == 429
            verdicts.reason = verdicts.reason or reason_of(item)
    return verdicts


def _items(response: str, sent: int) -> list[tuple[str, Any]]:
    try:
        items = [entry for item in json.loads(response)["items"] for entry in item.items()]
        is_response = all(item["status"] in _STATUSES for _, item in items)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        is_response, items = False, []
    if not is_response:
        raise ValueError(not_a_response(response))
    if len(items) != sent:
        raise ValueError(not_a_response(f"it has {len(items)} items, but {sent} documents were sent"))
    return items


def _outcome(action: str, item: Any, *, conflict_is_done: bool) -> Outcome:
    status = item["status"]
    if status == 404 and _REQUIRES_ALIAS in reason_of(item):
        return Outcome.CLOSED
    if status < 300 or (status == 404 and action == "delete"):
        return Outcome.DONE
    # An update has no version: a conflict does not show that its change was made.
    if status == 409 and (action == "create" or (conflict_is_done and action != "update")):
        return Outcome.CONFLICT
    if status in _BUSY or status == 409 or is_cluster_error(item.get("error")):
        return Outcome.RETRY
    return Outcome.BROKEN if status >= 500 else Outcome.REFUSED


def is_cluster_error(error: Any) -> bool:
    """Whether an error concerns the cluster or a whole index, so that no document is at fault."""
    while isinstance(error, dict):
        kind = error.get("type")
        if not isinstance(kind, str):
            kind = None
        if kind in _CLUSTER_ERRORS:
            return True
        if kind in _AMBIGUOUS_TYPES and _CLUSTER_REASONS.search(_text(error.get("reason"))):
            return True
        error = error.get("caused_by")
    return False


def reason_of(item: Any) -> str:
    """The server's reason for one document, with its causes."""
    error = item.get("error")
    if not isinstance(error, dict):
        return _plain(f"{item.get('status')}: {_text(error)}")
    reasons: list[str] = []
    while isinstance(error, dict):
        reasons.append(f"{_text(error.get('type'))}: {_text(error.get('reason'))}")
        error = error.get("caused_by")
    return _plain(f"{item.get('status')} {'; '.join(reasons)}")


def _text(value: Any) -> str:
    return "(not a text)" if isinstance(value, dict | list) else str(value)


def _plain(reason: str) -> str:
    """A reason that can be printed: JSON may hold half of a surrogate pair."""
    return reason[:MAX_REASON].encode("utf-8", "backslashreplace").decode()
