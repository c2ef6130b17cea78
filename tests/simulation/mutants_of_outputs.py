"""Mutants of commits that a long-lived batch makes while it goes on: what they hold, and what waits for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from holdfast.flow.batch import Batch
from holdfast.flow.commit import Committer
from holdfast.flow.engine import Advanced
from holdfast.flow.holdings import Held, Holdings
from holdfast.leases.lease import Json, Lease
from tests.simulation.mutation import Put, mutant


@mutant("outputs")
def a_report_does_not_wait_until_the_one_before_is_published(put: Put) -> None:
    original = Committer._commit

    def commit(self: Committer, commits: Any) -> None:
        original(self, [(_unpublished(held), batch, report) for held, batch, report in commits])

    put(Held, "restaging", property(lambda held: True))
    put(Committer, "_commit", commit)


def _unpublished(held: Held) -> Held:
    held.lease = replace(held.lease, commit=replace(held.lease.commit, receipts=None))
    return held


@mutant("outputs")
def a_report_that_waits_is_forgotten(put: Put) -> None:
    put(Holdings, "take_deferred", lambda self: [])


@mutant("outputs")
def every_commit_of_a_batch_begins_where_the_batch_did(put: Put) -> None:
    original = Committer._to_publish

    def to_publish(self: Committer, lease: Lease, batch: Batch, report: Any) -> dict[str, Json]:
        return original(self, batch.lease, batch, report)

    put(Committer, "_to_publish", to_publish)


@mutant("outputs")
def output_is_left_out_of_a_commit_on_the_way(put: Put) -> None:
    original = Committer._advance

    def advance(self: Committer, held: Held, batch: Batch, report: Any, now: float) -> Any:
        if isinstance(report, Advanced):
            report = replace(report, receipts={})
        return original(self, held, batch, report, now)

    put(Committer, "_advance", advance)
