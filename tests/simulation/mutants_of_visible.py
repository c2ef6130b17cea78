"""Mutants of sinks that show what is staged at once: what one write may settle, and when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from holdfast.flow import commit
from holdfast.flow.batch import Batch
from holdfast.flow.commit import Committer
from holdfast.flow.engine import Staged
from holdfast.flow.holdings import Held
from holdfast.leases import transitions
from holdfast.leases.lease import Lease
from tests.simulation.mutation import Put, mutant


@mutant("visible")
def one_visible_sink_stands_for_all(put: Put) -> None:
    def to_publish(self: Committer, lease: Lease, batch: Batch, report: Staged) -> dict[str, Any]:
        receipts = commit._receipts(batch, report, batch.cut.start)
        visible = (sink.is_visible(receipts[name]) for name, sink in self._showing.items() if name in receipts)
        return {} if any(visible) else receipts

    put(Committer, "_to_publish", to_publish)


@mutant("visible")
def what_is_staged_counts_as_visible(put: Put) -> None:
    put(Committer, "_to_publish", lambda self, lease, batch, report: {})


@mutant("visible")
def a_visible_batch_completes_its_partition_whatever_is_left(put: Put) -> None:
    original = Committer._advance

    def advance(self: Committer, held: Held, batch: Batch, report: Any, now: float) -> Callable[[Lease], Lease]:
        return original(self, held, batch, replace(report, last=True), now)

    put(Committer, "_advance", advance)


@mutant("visible")
def a_batch_that_was_cut_short_completes_its_partition(put: Put) -> None:
    original = Committer._advance

    def advance(self: Committer, held: Held, batch: Batch, report: Any, now: float) -> Callable[[Lease], Lease]:
        return original(self, held, batch, replace(report, last=batch.cut.last), now)

    put(Committer, "_advance", advance)


@mutant("visible")
def a_partition_is_completed_without_its_last_commit(put: Put) -> None:
    original = transitions.complete

    def advance(self: Committer, held: Held, batch: Batch, report: Any, now: float) -> Callable[[Lease], Lease]:
        change = original_advance(self, held, batch, report, now)
        if held.complete_after_publish and not self._to_publish(held.lease, batch, report):
            return lambda row: original(row, now)
        return change

    original_advance = Committer._advance
    put(Committer, "_advance", advance)
