"""Mutants of the API for source authors: what threads of one session share, suppliers, deleting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.leases import source_coordinator
from holdfast.leases.checkouts import Checkouts
from holdfast.leases.lease import Lease
from holdfast.leases.operator import Operator
from tests.simulation.mutation import Put, mutant


@mutant("sourcing")
def two_coordinators_of_one_session_take_the_same_partition(put: Put) -> None:
    put(Checkouts, "_is_left_over", lambda self, row: True)


@mutant("sourcing")
def what_another_thread_is_about_to_hear_of_is_taken_for_left_over(put: Put) -> None:
    put(Checkouts, "_is_unclear", lambda self: False)


@mutant("sourcing")
def what_another_thread_has_just_let_go_is_taken_for_left_over(put: Put) -> None:
    def check_in(self: Any, lease: Lease) -> None:
        self._held.discard((lease.key, lease.token))

    put(Checkouts, "check_in", check_in)


@mutant("sourcing", start=87)
def what_a_lost_answer_left_with_the_session_is_not_found_again(put: Put) -> None:
    put(Checkouts, "check_out_left_over", lambda self, owned: [])


@mutant("sourcing", start=54)
def a_thread_writes_under_the_token_of_another(put: Put) -> None:
    original = source_coordinator._HeldLeases.get

    def get(self: Any, partition: str | Lease) -> Lease:
        return original(self, partition.key if isinstance(partition, Lease) else partition)

    put(source_coordinator._HeldLeases, "get", get)


@mutant("sourcing", start=693)
def a_late_answer_replaces_what_another_thread_has_acquired(put: Put) -> None:
    def renew(self: Any, lease: Lease) -> None:
        self._leases[lease.key] = lease

    put(source_coordinator._HeldLeases, "renew", renew)


@mutant("sourcing")
def what_is_deleted_does_not_raise_the_floor(put: Put) -> None:
    put(Operator, "_raise_floor", lambda self, token: None)


@mutant("sourcing")
def a_deleted_row_is_removed_at_once(put: Put) -> None:
    def purge(self: Operator, rows: Sequence[Lease]) -> int:
        return len(self.store.remove(rows))

    put(Operator, "purge", purge)
