"""Mutants of what happens to a commit whose staged data is gone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from holdfast.flow.batch import Batch, Cut
from holdfast.flow.commit import Committer
from holdfast.flow.holdings import Held
from tests.simulation.mutation import Put, mutant


@mutant("rebuilds", start=4261)
def a_rebuilt_batch_may_end_elsewhere(put: Put) -> None:
    original = Committer._restage

    def restage(self: Committer, held: Held, batch: Batch, report: Any) -> None:
        original(self, held, replace(batch, cut=replace(batch.cut, end=report.end)), report)

    put(Committer, "_restage", restage)


@mutant("rebuilds", start=1117)
def a_commit_is_rebuilt_by_another_generations_parser(put: Put) -> None:
    original = Committer.range_to_rebuild
    put(Committer, "range_to_rebuild", lambda self, held, current: original(self, held, held.lease.commit.generation))


@mutant("rebuilds", start=2425)
def a_rebuild_leaves_the_gaps_out(put: Put) -> None:
    original = Committer.range_to_rebuild

    def range_to_rebuild(self: Committer, held: Held, current: int | None) -> Cut | None:
        cut = original(self, held, current)
        return None if cut is None else replace(cut, gaps=())

    put(Committer, "range_to_rebuild", range_to_rebuild)


@mutant("rebuilds", start=1354)
def a_commit_that_nobody_can_make_again_is_handed_back(put: Put) -> None:
    original = Committer.range_to_rebuild

    def range_to_rebuild(self: Committer, held: Held, current: int | None) -> Cut | None:
        if current is not None and not self._can_parse_as(held.lease.commit.generation):
            self.hand_back_later(held, self._coordinator.session.timing.timeout)
            return None
        return original(self, held, current)

    put(Committer, "range_to_rebuild", range_to_rebuild)
