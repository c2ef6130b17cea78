"""Mutants of the store of objects, and of nodes that watch each other where the store has no clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.leases import session
from holdfast.leases.lease import Lease
from holdfast.leases.session_watch import SessionWatch
from holdfast.leases.store import Outcome
from holdfast.stores.object.rows import Stored
from holdfast.stores.object.store import ObjectStore
from tests.simulation.mutation import Put, mutant


@mutant("objects", start=6)
def a_silent_session_is_never_ended(put: Put) -> None:
    def nobody(_self: SessionWatch, _sessions: Sequence[Lease], _now: float) -> list[Lease]:
        return []

    put(SessionWatch, "silent", nobody)


@mutant("objects")
def a_session_that_was_watched_to_its_end_renews_itself(put: Put) -> None:
    put(session, "_require_live", lambda row: None)


@mutant("objects")
def an_object_that_has_changed_is_taken_for_ours(put: Put) -> None:
    original = ObjectStore._wrote

    def wrote(self: ObjectStore, name: str, row: Stored, present: Stored | None) -> bool:
        original(self, name, row, present)
        return True

    put(ObjectStore, "_wrote", wrote)


@mutant("objects")
def an_object_is_written_whatever_its_version(put: Put) -> None:
    original = ObjectStore._swapping

    def swapping(self: ObjectStore, version: int, row: Stored) -> Callable[[str], Outcome]:
        def swap(name: str) -> Outcome:
            (present,) = self._rows.read([name])
            return original(self, version if present is None else present.row.version, row)(name)

        return swap

    put(ObjectStore, "_swapping", swapping)
