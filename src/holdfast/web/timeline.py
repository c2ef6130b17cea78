"""The timeline of a partition: who held it when, as bars for a drawing and as rows for a table. Pure.

A tenure is the time of one owner under one token. What a row does not record is shown as such: a gap in the tokens is
a tenure that is not recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.leases import tenures as kept
from holdfast.leases.lease import FINISHED, Lease, Status
from holdfast.observe.insights import time_text

_STEPS = (10, 30, 60, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 7 * 86400)
_MOST_TICKS = 7
_ROUNDED = 10
"""Seconds to which the end is rounded up, so that the drawing does not change with every look."""
_FAILED = ("failed", "attempt_failed", "halted")
_SIGNS = {**dict.fromkeys(_FAILED, "✕"), "died": "✝", "completed": "✓", "released": "→"}


@dataclass(frozen=True, slots=True)
class Tenure:
    """The time of one owner. `until` is None while it lasts; `owner` is None if it is not recorded."""

    token: int
    owner: str | None
    since: float | None
    until: float | None
    sequence: int | None = None
    how: str = ""
    by: str = ""


def tenures_of(row: Lease) -> list[Tenure]:
    """Return the tenures of a row by token, those that are not recorded included."""
    past = row.history
    recorded = [Tenure(*entry[:6], entry.by or "") for entry in kept.tenures_of(row)]
    if row.status is Status.ASSIGNED:
        current = Tenure(row.token, row.owner, past.claimed_at, None, row.commit.sequence)
        recorded = [*(each for each in recorded if each.token != row.token), current]
    elif row.status in FINISHED and past.done_by is not None and row.token not in {each.token for each in recorded}:
        how = row.status.value.lower()
        recorded.append(Tenure(row.token, past.done_by, past.claimed_at, past.completed_at, row.commit.sequence, how))
    return list(_with_gaps(sorted(recorded, key=lambda each: each.token), row.token))


def timeline(tenures: Sequence[Tenure], names: Mapping[str | None, str], now: float) -> dict[str, Any]:
    """Return what a drawing and a table need: ends, ticks, a lane for each owner, and the tenures, the latest first."""
    times = [time for each in tenures for time in (each.since, each.until) if time is not None]
    end = (now // _ROUNDED + 1) * _ROUNDED
    start = min([*times, end - 60])
    lanes: dict[str, list[dict[str, Any]]] = {}
    for each in tenures:
        if each.since is not None:
            lanes.setdefault(_name(each, names), []).append(_bar(each, end))
    return {
        "from": start,
        "to": end,
        "ticks": list(_ticks(start, end)),
        "lanes": [{"owner": owner, "tenures": bars} for owner, bars in lanes.items()],
        "tenures": [_row(each, names) for each in reversed(tenures)],
    }


def _with_gaps(tenures: Iterable[Tenure], last: int) -> Iterator[Tenure]:
    before: Tenure | None = None
    for each in tenures:
        if before is not None and each.token > before.token + 1:
            yield Tenure(before.token + 1, None, before.until, each.since, how="not recorded")
        yield each
        before = each
    if before is not None and before.token < last:
        yield Tenure(before.token + 1, None, before.until, None, how="not recorded")


def _name(tenure: Tenure, names: Mapping[str | None, str]) -> str:
    return "not recorded" if tenure.owner is None else names.get(tenure.owner, tenure.owner)


def _bar(tenure: Tenure, end: float) -> dict[str, Any]:
    until = end if tenure.until is None else tenure.until
    look = "gap" if tenure.owner is None else "fill-FAILED" if tenure.how in _FAILED else "fill-ASSIGNED"
    words = f"token {tenure.token}{f', {tenure.how}' if tenure.how else ''}{f' by {tenure.by}' if tenure.by else ''}"
    bar = {"from": tenure.since, "to": until, "token": tenure.token, "look": look}
    return {**bar, "sign": _SIGNS.get(tenure.how, ""), "text": words}


def _row(tenure: Tenure, names: Mapping[str | None, str]) -> dict[str, Any]:
    return {
        "token": tenure.token,
        "owner": _name(tenure, names),
        "since": tenure.since,
        "until": tenure.until,
        "from": time_text(tenure.since),
        "to": time_text(tenure.until),
        "sequence": tenure.sequence,
        "how": tenure.how,
        "by": tenure.by,
    }


def _ticks(start: float, end: float) -> Iterator[dict[str, Any]]:
    step = next((step for step in _STEPS if (end - start) / step <= _MOST_TICKS), _STEPS[-1])
    at = (start // step + 1) * step
    while at <= end:
        yield {"at": at, "text": (time_text(at) or "")[11:16]}
        at += step
