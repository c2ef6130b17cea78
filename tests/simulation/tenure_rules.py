"""What must be true of the tenures that a row keeps: they are who really held it, in order, without a gap."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from holdfast.leases.lease import Lease, Ownership, Status

MOST = 8


class TenureRules:
    """Judges tenures by the owners that rows had while they were written. Shares no code with what it judges."""

    def __init__(self, fail: Callable[[str], None]) -> None:
        self._fail = fail
        self._owners: dict[tuple[str, str, str, int], str | None] = {}
        """By pipeline, run, key and token."""

    def lease_written(self, before: Lease, row: Lease) -> None:
        """The store has accepted this row in place of the other."""
        was, now = before.ownership, row.ownership
        if row.history.tenures is before.history.tenures and _goes_on(was, now):
            return  # the tenures were judged when they were written
        for owned in (was, now):
            if owned.status is Status.ASSIGNED:
                self._owners[row.pipeline, row.run, row.key, owned.token] = owned.owner
        if row.unreadable is not None or row.history.created_at is None:
            return  # it keeps nothing
        tenures = [tuple(tenure) for tenure in row.history.tenures]
        self._require_order(row, tenures)
        self._require_kept(before, row, tenures)
        held = now.status is Status.ASSIGNED and (now.token, now.owner) == (was.token, was.owner)
        orphaned = held and was.due_at is None and now.due_at is not None
        over = orphaned or now.status is not Status.ASSIGNED or now.token != was.token
        if was.status is Status.ASSIGNED and over and was.token not in {tenure[0] for tenure in tenures}:
            self._fail(f"{row.key}: the tenure of {was.owner} under token {was.token} is not recorded")

    def _require_order(self, row: Lease, tenures: list[tuple[Any, ...]]) -> None:
        if len(tenures) > MOST:
            self._fail(f"{row.key}: keeps {len(tenures)} tenures")
        for token, owner, since, until, *_ in tenures:
            if self._owners.get((row.pipeline, row.run, row.key, token), owner) != owner:
                self._fail(f"{row.key}: {owner} never held token {token}")
            if since is not None and since > until:
                self._fail(f"{row.key}: the tenure of token {token} ends before it begins")
        for (earlier, _, _, until, *_), (later, _, since, *_) in pairwise(tenures):
            if later <= earlier or (since is not None and since < until):
                self._fail(f"{row.key}: the tenures of tokens {earlier} and {later} overlap")

    def _require_kept(self, before: Lease, row: Lease, tenures: list[tuple[Any, ...]]) -> None:
        kept = {tenure[0]: tenure for tenure in tenures}
        least = min((tenure[0] for tenure in tenures), default=0)
        for was in before.history.tenures:
            if was[0] == before.token and before.status is Status.ASSIGNED:
                # Its owner was ended and goes on until somebody takes the lease.
                if kept.get(was[0], was)[5] == "lapsed" != was[5]:
                    self._fail(f"{row.key}: how the tenure of token {was[0]} ended was recorded before")
                continue
            dropped = len(tenures) == MOST and was[0] < least
            if not dropped and kept.get(was[0]) != tuple(was):
                self._fail(f"{row.key}: the tenure of token {was[0]} was changed")


def _goes_on(was: Ownership, now: Ownership) -> bool:
    """Whether the same tenure goes on."""
    held = was.status is Status.ASSIGNED is now.status and was.token == now.token and was.owner == now.owner
    return held and was.due_at == now.due_at
