"""Mutants of stores without a clock, where nodes watch each other."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.leases import session
from holdfast.leases.lease import Lease
from holdfast.leases.observed import ObservedSessions
from tests.simulation.mutation import Put, mutant


@mutant("objects")
def a_silent_session_is_never_ended(put: Put) -> None:
    def nobody(_self: ObservedSessions, _sessions: Sequence[Lease], _now: float) -> list[Lease]:
        return []

    put(ObservedSessions, "silent", nobody)


@mutant("objects")
def a_session_that_was_watched_to_its_end_renews_itself(put: Put) -> None:
    put(session, "_require_live", lambda row: None)
