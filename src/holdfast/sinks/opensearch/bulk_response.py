"""What the server answered to a bulk request, and what is to be done about each document.

Whatever is not an answer of a search cluster, such as the page of a proxy before it, decides nothing about a document.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from holdfast.flow.fault import MAX_REASON

ANSWERED_FIELDS = "errors,items.*.status,items.*.error"
"""All that is asked of an answer; the rest is several times as long, and nobody reads it."""

_ERRORS = re.compile(r'"errors"\s*:\s*(true|false)')
_STATUS = '"status":'
_CLUSTER_LACKS = re.compile(
    r"pipeline with id \[.*\] does not exist"
    r"|\[\d+\]/\[\d+\] maximum (\w+ )?shards open"
    r"|no write index is defined for alias"
)
_WITHOUT_A_TYPE_OF_THEIR_OWN = {"validation_exception", "illegal_argument_exception"}
_BUSY = {429, 502, 503, 504}
_NOT_THE_DOCUMENT = {
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
"""Errors of the cluster or of an index as a whole: waiting helps, or a person does, and no document is to blame."""


class Fate(Enum):
    DONE = "done"
    CONFLICT = "conflict"
    """Another write was first, and it was this very record or a later version of it: as good as done."""
    AGAIN = "again"
    BROKEN = "broken"
    """The server failed over it. A few tries tell whether the document is to blame."""
    REFUSED = "refused"


@dataclass
class Verdicts:
    """Places of documents within the request, by what became of them; those not named are done."""

    conflicts: list[int] = field(default_factory=list)
    again: list[int] = field(default_factory=list)
    broken: list[tuple[int, str]] = field(default_factory=list)
    refused: list[tuple[int, str]] = field(default_factory=list)
    busy: int = 0
    """How many were turned away because the server has too much to do."""
    reason: str = ""
    """What the server said of the first that is to be sent again."""


def no_answer(what: object) -> str:
    """What people are told of an answer that no search cluster gives; `what` is the beginning of it."""
    return f"this is not an answer of a search cluster: {' '.join(str(what).split())[:200] or 'nothing'}"


def verdicts(answer: str, *, sent: int, conflict_is_done: bool) -> Verdicts:
    """What became of each of the documents that were sent. Raises `ValueError` for what does not tell of each."""
    found = _ERRORS.search(answer, 0, 4096) or _ERRORS.search(answer)
    if found is None:
        raise ValueError(no_answer(answer))
    told = Verdicts()
    if found[1] == "false" and answer.count(_STATUS) == sent:
        return told
    for place, (action, outcome) in enumerate(_items(answer, sent)):
        fate = _fate(action, outcome, conflict_is_done=conflict_is_done)
        if fate is Fate.CONFLICT:
            told.conflicts.append(place)
        elif fate is Fate.REFUSED:
            told.refused.append((place, reason_of(outcome)))
        elif fate is Fate.BROKEN:
            told.broken.append((place, reason_of(outcome)))
        elif fate is Fate.AGAIN:
            told.again.append(place)
            told.busy += outcome["status"] == 429
            told.reason = told.reason or reason_of(outcome)
    return told


def _items(answer: str, sent: int) -> list[tuple[str, Any]]:
    try:
        items = [entry for item in json.loads(answer)["items"] for entry in item.items()]
        if all(isinstance(outcome["status"], int) for _, outcome in items) and len(items) == sent:
            return items
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ValueError(no_answer(answer)) from None
    raise ValueError(no_answer(f"it tells of {len(items)} documents, and {sent} were sent"))


def _fate(action: str, outcome: Any, *, conflict_is_done: bool) -> Fate:
    status = outcome["status"]
    if status < 300 or (status == 404 and action == "delete"):
        return Fate.DONE
    # An update carries no version: that another write was first says nothing about the change it makes.
    if status == 409 and (action == "create" or (conflict_is_done and action != "update")):
        return Fate.CONFLICT
    if status in _BUSY or status == 409 or is_of_the_cluster(outcome.get("error")):
        return Fate.AGAIN
    return Fate.BROKEN if status >= 500 else Fate.REFUSED


def is_of_the_cluster(error: Any) -> bool:
    """Whether an error is the cluster's or an index's as a whole, so that no document is to blame."""
    while isinstance(error, dict):
        kind = error.get("type")
        if kind in _NOT_THE_DOCUMENT:
            return True
        if kind in _WITHOUT_A_TYPE_OF_THEIR_OWN and _CLUSTER_LACKS.search(str(error.get("reason"))):
            return True
        error = error.get("caused_by")
    return False


def reason_of(outcome: Any) -> str:
    """The server's own words for one document, with the cause behind them."""
    error = outcome.get("error")
    if not isinstance(error, dict):
        return f"{outcome.get('status')}: {error}"[:MAX_REASON]
    told: list[str] = []
    while isinstance(error, dict):
        told.append(f"{error.get('type')}: {error.get('reason')}")
        error = error.get("caused_by")
    return f"{outcome.get('status')} {'; '.join(told)}"[:MAX_REASON]
