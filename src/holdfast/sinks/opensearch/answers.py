"""What the server answered to a bulk request, and what is to be done about each document."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from holdfast.flow.deadletter import MAX_REASON

ANSWERED_FIELDS = "errors,items.*.status,items.*.error"
"""All that is asked of an answer; the rest is several times as long, and nobody reads it."""

_ERRORS = re.compile(r'"errors"\s*:\s*(true|false)')
_NO_PIPELINE = re.compile(r"pipeline with id \[.*\] does not exist")
_BUSY = {429, 502, 503, 504}
_NOT_THE_DOCUMENT = {
    "cluster_block_exception",
    "index_closed_exception",
    "index_not_found_exception",
    "security_exception",
    "authorization_exception",
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


def verdicts(answer: str, *, conflict_is_done: bool) -> Verdicts:
    """What became of each document of a request. Raises `ValueError` for what is no answer to one."""
    found = _ERRORS.search(answer, 0, 4096) or _ERRORS.search(answer)
    if found is None:
        raise ValueError(f"the answer is not that of a bulk request: {answer[:200]}")
    told = Verdicts()
    if found[1] == "false":
        return told
    for place, item in enumerate(json.loads(answer)["items"]):
        ((action, outcome),) = item.items()
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


def _fate(action: str, outcome: Any, *, conflict_is_done: bool) -> Fate:
    status = outcome["status"]
    if status < 300 or (status == 404 and action == "delete"):
        return Fate.DONE
    if status == 409 and (conflict_is_done or action == "create"):
        return Fate.CONFLICT
    if status in _BUSY or status == 409 or _is_of_the_cluster(outcome.get("error")):
        return Fate.AGAIN
    return Fate.BROKEN if status >= 500 else Fate.REFUSED


def _is_of_the_cluster(error: Any) -> bool:
    if not isinstance(error, dict):
        return False
    lacks_pipeline = _NO_PIPELINE.search(str(error.get("reason"))) is not None
    return error.get("type") in _NOT_THE_DOCUMENT or lacks_pipeline


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
