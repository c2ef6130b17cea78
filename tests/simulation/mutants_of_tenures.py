"""Mutants of tenures: who is said to have held a lease, and when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.leases import tenures, transitions
from holdfast.leases.lease import Lease
from tests.simulation.mutation import Put, mutant


@mutant("months")
def the_end_of_a_tenure_is_not_recorded(put: Put) -> None:
    put(transitions, "ended", lambda lease, now, how, by=None: lease.history.tenures)


@mutant("months")
def a_death_is_not_recorded(put: Put) -> None:
    original = tenures.ended

    def ended(lease: Lease, now: float, how: str, by: str | None = None) -> Sequence[Sequence[Any]]:
        lost = how == tenures.DIED
        return lease.history.tenures if lost else original(lease, now, how, by)

    put(transitions, "ended", ended)


@mutant("months")
def a_tenure_names_the_token_after_its_own(put: Put) -> None:
    original = tenures.with_tenure

    def with_tenure(known: Sequence[Sequence[Any]], token: int, *rest: Any) -> Sequence[Sequence[Any]]:
        return original(known, token + 1, *rest)

    put(tenures, "with_tenure", with_tenure)


@mutant("months")
def a_tenure_begins_when_the_row_was_made(put: Put) -> None:
    original = tenures.with_tenure

    def with_tenure(
        known: Sequence[Sequence[Any]], token: int, owner: str, _since: float, *rest: Any
    ) -> Sequence[Sequence[Any]]:
        return [*known, [token, owner, 0.0, *original((), token, owner, None, *rest)[0][3:]]]

    put(tenures, "with_tenure", with_tenure)


@mutant("months")
def more_tenures_are_kept_than_allowed(put: Put) -> None:
    put(tenures, "MOST_TENURES", 100)


@mutant("months")
def a_tenure_is_kept_twice_if_its_owner_ends_it_after_its_death(put: Put) -> None:
    original = tenures.with_tenure

    def with_tenure(known: Sequence[Sequence[Any]], *rest: Any) -> Sequence[Sequence[Any]]:
        return [*known, original((), *rest)[-1]]

    put(tenures, "with_tenure", with_tenure)


@mutant("months")
def a_new_tenure_makes_the_row_forget_those_before(put: Put) -> None:
    original = tenures.with_tenure
    put(tenures, "with_tenure", lambda _known, *rest: original((), *rest))


@mutant("sourcing")
def an_owner_whose_deadline_passed_is_not_recorded(put: Put) -> None:
    put(tenures, "taken", lambda lease, _now: lease.history.tenures)


@mutant("months")
def an_owner_that_is_taken_from_after_its_death_is_recorded_anew(put: Put) -> None:
    original = tenures.with_tenure
    put(
        tenures,
        "with_lapsed",
        lambda known, token, owner, since, now, sequence: original(
            known, token, owner, since, now, sequence, tenures.LAPSED, None
        ),
    )
