"""Tenures: who held a lease, from when to when, and how it ended; the row keeps the last ones.

A tenure is written with the change that ends it, so that it costs no write. It is a list in the body of the row: token,
owner, from, to (store time), sequence at its end, how it ended, and the person who ended it. A token has at most one
tenure; tenures are in the order of tokens, never overlap and never go back. A claim of a lease that is past its
deadline ends the tenure before its own. A token without a tenure was not recorded: a node of an earlier version held or
took it. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.leases.lease import Lease, Status

MOST_TENURES = 8
LONGEST_NAME = 100
"""Characters of the person's name that are kept."""

RELEASED, HANDED_OFF, CLOSED, COMPLETED = "released", "handed_off", "closed", "completed"
ATTEMPT_FAILED, HALTED, SET_ASIDE = "attempt_failed", "halted", "set_aside"
DIED, LAPSED = "died", "lapsed"
"""Its session has ended; its deadline has passed and another claim took the lease."""


class Tenure(NamedTuple):
    """One tenure, as the row keeps it."""

    token: int
    owner: str | None
    since: float | None
    """None if it is not recorded when the owner claimed the lease."""
    until: float
    sequence: int
    """That of the last commit when it ended."""
    how: str
    by: str | None = None


def ended(lease: Lease, now: float, how: str, by: str | None = None) -> Sequence[Sequence[Any]]:
    """The tenures of a row whose present one ends now; unchanged if nobody holds it or it cannot be read."""
    past = lease.history
    if lease.status is not Status.ASSIGNED or lease.unreadable is not None:
        return past.tenures
    return with_tenure(past.tenures, lease.token, lease.owner, past.claimed_at, now, lease.commit.sequence, how, by)


def taken(lease: Lease, now: float) -> Sequence[Sequence[Any]]:
    """The tenures of a row that is claimed now: a tenure whose deadline has passed ends with the claim."""
    past = lease.history
    if lease.status is not Status.ASSIGNED:
        return past.tenures
    return with_lapsed(past.tenures, lease.token, lease.owner, past.claimed_at, now, lease.commit.sequence)


def with_lapsed(
    tenures: Sequence[Sequence[Any]],
    token: int,
    owner: str | None,
    since: float | None,
    now: float,
    sequence: int,
) -> Sequence[Sequence[Any]]:
    """The tenures plus this one, which ended when its deadline passed; unchanged if its end is recorded already."""
    if any(tenure[0] == token for tenure in _understood(tenures)):
        return tenures
    return with_tenure(tenures, token, owner, since, now, sequence, LAPSED, None)


def with_tenure(
    tenures: Sequence[Sequence[Any]],
    token: int,
    owner: str | None,
    since: float | None,
    now: float,
    *rest: Any,
) -> Sequence[Sequence[Any]]:
    """The tenures plus this one, which replaces the one with the same token; `rest` is sequence, how and by."""
    # An owner whose session was ended may still end its tenure itself, as long as nobody has taken the lease.
    before = [tenure for tenure in _understood(tenures) if tenure[0] < token]
    least = before[-1][3] if before else None
    if least is not None and since is not None:
        since = max(since, least)  # the store's clock may have been set back
    until = max(time for time in (now, since, least) if time is not None)
    sequence, how, by = rest
    noted = [token, owner, since, until, sequence, how, None if by is None else by[:LONGEST_NAME]]
    return [*before[1 - MOST_TENURES :], noted]


def tenures_of(lease: Lease) -> list[Tenure]:
    """The tenures that have ended, in order. Those of a later version that cannot be understood are left out."""
    return [Tenure(*each[: len(Tenure._fields)]) for each in _understood(lease.history.tenures)]


def taken_over_from(lease: Lease) -> str | None:
    """The owner that died or lapsed before the present one took the lease; None if there is none on record."""
    last = next(iter(tenures_of(lease)[-1:]), None)
    if last is None or lease.status is not Status.ASSIGNED or last.token != lease.token - 1:
        return None
    return last.owner if last.how in {DIED, LAPSED} and last.owner != lease.owner else None


def _understood(tenures: Any) -> list[Sequence[Any]]:
    """The valid tenures in a body; anybody may have written it."""
    found = tenures if isinstance(tenures, list | tuple) else ()
    return [each for each in found if isinstance(each, list | tuple) and len(each) >= 7 and _has_numbers(each)]


def _has_numbers(each: Sequence[Any]) -> bool:
    return type(each[0]) is int and type(each[3]) in {int, float} and type(each[2]) in {int, float, type(None)}
