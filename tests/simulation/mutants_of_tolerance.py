"""Mutants of the tolerance of dead letters: what is counted, for how long, and before what."""

from __future__ import annotations

from dataclasses import replace

from holdfast.flow.batch import Tolerance
from holdfast.flow.commit import Committer
from holdfast.leases import transitions
from holdfast.leases.lease import Lease, LetterWindow
from tests.simulation.mutation import Put, mutant


@mutant("tolerance")
def a_topic_may_become_dead_letters_altogether(put: Put) -> None:
    put(Committer, "_tolerates", lambda self, held, batch, report: True)


@mutant("tolerance")
def letters_of_earlier_batches_are_forgotten(put: Put) -> None:
    put(Tolerance, "next_window", lambda self, window: LetterWindow())


@mutant("tolerance")
def letters_are_counted_from_the_first_record_on(put: Put) -> None:
    put(Tolerance, "next_window", lambda self, window: window)


@mutant("tolerance")
def a_batch_smaller_than_a_window_may_be_all_letters(put: Put) -> None:
    original = Tolerance.allowed

    def allowed(self: Tolerance, records: int) -> int:
        return records if records < self.records else original(self, records)

    put(Tolerance, "allowed", allowed)


@mutant("tolerance")
def a_take_over_forgets_the_letters(put: Put) -> None:
    original = transitions._with

    def with_(lease: Lease, ownership: object, history: object) -> Lease:
        made: Lease = original(lease, ownership, history)  # type: ignore[arg-type]
        if made.owner == lease.owner:
            return made
        return replace(made, progress=replace(made.progress, window=LetterWindow()))

    put(transitions, "_with", with_)


@mutant("tolerance")
def letters_count_also_after_a_person_has_looked(put: Put) -> None:
    original = transitions.reopen

    def reopen(lease: Lease, now: float) -> Lease:
        reopened = original(lease, now)
        return replace(reopened, progress=replace(reopened.progress, window=lease.progress.window))

    put(transitions, "reopen", reopen)
