"""Mutants of the token floor, of purging and forgetting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from holdfast.leases import coordinator, operator, token_floor, writes
from holdfast.leases import lease as lease_module
from holdfast.leases.lease import Lease, Status
from holdfast.leases.operator import Operator
from holdfast.leases.store import Store
from holdfast.leases.world import World
from holdfast.leases.writes import until_answered
from tests.simulation.mutation import Put, mutant


@mutant("floor")
def a_row_made_anew_begins_with_the_first_token(put: Put) -> None:
    put(coordinator, "new_lease", _anew(token=0))


@mutant("floor")
def a_row_made_anew_begins_with_the_first_version(put: Put) -> None:
    put(coordinator, "new_lease", _anew(version=0))


@mutant("floor")
def the_floor_knows_tokens_but_no_versions(put: Put) -> None:
    put(operator, "height", lambda row: row.token)


@mutant("floor")
def the_floor_does_not_cover_the_tombstone(put: Put) -> None:
    put(operator, "height", lambda row: max(row.token, row.version + 1))


@mutant("floor", start=125)
def a_row_is_purged_before_the_floor_is_raised(put: Put) -> None:
    raise_floor, purge = Operator._raise_floor, Operator.purge

    def purge_first(self: Operator, rows: list[Lease]) -> int:
        purged = purge(self, rows)
        if rows:
            raise_floor(self, max(map(token_floor.height, rows)))
        return purged

    put(Operator, "purge", purge_first)
    put(Operator, "_raise_floor", lambda self, token: None)


@mutant("floor", start=2089)
def tombstones_do_not_rest(put: Put) -> None:
    original = operator._purged_by
    put(operator, "_purged_by", lambda row, limit: original(row, float("inf")))


@mutant("floor")
def rows_are_forgotten_that_were_not_purged(put: Put) -> None:
    put(operator, "_purged_by", lambda row, limit: row.status is Status.COMPLETED)


@mutant("floor")
def the_floor_is_read_once_for_all_tries(put: Put) -> None:
    def ensure_rows(store: Store, world: World, make: Callable[[], Sequence[Lease]]) -> int:
        rows = until_answered(world, "store", make)
        return original(store, world, lambda: rows)

    original = writes.ensure_rows
    put(coordinator, "ensure_rows", ensure_rows)


@mutant("floor")
def the_floor_is_never_raised(put: Put) -> None:
    put(Operator, "_raise_floor", lambda self, token: None)


def _anew(**ownership: Any) -> Callable[..., Lease]:
    original = lease_module.new_lease

    def new_lease(*args: Any, **settings: Any) -> Lease:
        row = original(*args, **settings)
        return replace(row, ownership=replace(row.ownership, **ownership))

    return new_lease
