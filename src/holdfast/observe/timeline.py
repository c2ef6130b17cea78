"""Who held a partition and when, as plain data for a page or a terminal. Pure."""

from __future__ import annotations

from typing import Any

from holdfast.leases.lease import Lease, Status
from holdfast.leases.tenures import SET_ASIDE, Tenure, tenures_of
from holdfast.observe.text import timestamp

RUNNING, NOT_RECORDED = "running", "not_recorded"


def timeline(lease: Lease) -> list[dict[str, Any]]:
    """Return the tenures of a partition in order: those that have ended, gaps, and the one that is running.

    Each has `token`, `owner`, `from` and `to` (text in UTC) with `since` and `until` (seconds), `sequence`, `how` it
    ended and `by` whom. A gap has `how` "not_recorded" and no owner; it may stand for several tokens, of which `token`
    is the last. The running one has `how` "running" and no end. What is not recorded is None.
    """
    found: list[dict[str, Any]] = []
    before: Tenure | None = None
    for tenure in tenures_of(lease):
        if tenure.token == lease.token and lease.status is Status.ASSIGNED:
            continue  # its owner was ended, and nobody has taken it yet
        if before is not None and tenure.token > _next_token(before):
            found.append(_gap(before, tenure.token - 1, tenure.since))
        found.append(_segment(*tenure))
        before = tenure
    if lease.status is Status.ASSIGNED:
        since = lease.history.claimed_at
        if before is not None and lease.token > _next_token(before):
            found.append(_gap(before, lease.token - 1, since))
        present = (lease.token, lease.owner, since, None, lease.commit.sequence, RUNNING, None)
        found.append(_segment(*present))
    elif before is not None and lease.token >= _next_token(before):
        found.append(_gap(before, lease.token, lease.history.updated_at))
    return found


def _next_token(tenure: Tenure) -> int:
    """The token of the tenure that follows. Setting a partition aside uses a token that nobody holds."""
    return tenure.token + (2 if tenure.how == SET_ASIDE else 1)


def _gap(before: Tenure, token: int, until: float | None) -> dict[str, Any]:
    return _segment(token, None, before.until, until, None, NOT_RECORDED, None)


def _segment(
    token: int,
    owner: str | None,
    since: float | None,
    until: float | None,
    sequence: int | None,
    how: str,
    by: str | None,
) -> dict[str, Any]:
    return {
        "token": token,
        "owner": owner,
        "from": None if since is None else timestamp(since),
        "to": None if until is None else timestamp(until),
        "since": since,
        "until": until,
        "sequence": sequence,
        "how": how,
        "by": by,
    }
