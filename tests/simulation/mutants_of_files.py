"""Mutants of the way to readers: commit, publish, staging."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from holdfast.buckets.sink_root import SinkRoot, staged_files
from holdfast.errors import LeaseLost, StagedDataGone, Unavailable
from holdfast.flow import names
from holdfast.flow.acquire import Acquirer
from holdfast.flow.batch import Batch, Name
from holdfast.flow.commit import Committer, _receipts
from holdfast.flow.holdings import Held
from holdfast.flow.manifest import Manifest
from holdfast.flow.publish import Publisher
from holdfast.flow.sink import PublishesFiles
from holdfast.leases import transitions
from holdfast.leases.lease import Lease
from holdfast.leases.store import Outcome, Swap
from holdfast.leases.writes import FencedWrites
from holdfast.sinks.files.sink import FilesSink
from tests.simulation.mutation import Put, mutant

# --- commit -------------------------------------------------------------------------------------------------------


@mutant()
def a_commit_may_cover_one_that_is_not_published(put: Put) -> None:
    original = transitions.commit

    def commit(lease: Lease, advance: Any, expected: Lease, now: float) -> Lease:
        return original(replace(lease, commit=replace(lease.commit, receipts=None)), advance, expected, now)

    put(transitions, "commit", commit)
    put(Held, "pending", property(lambda self: False))


@mutant()
def a_takeover_plans_before_it_publishes(put: Put) -> None:
    put(Held, "pending", property(lambda self: False))


@mutant()
def files_are_published_before_the_commit(put: Put) -> None:
    def commit(self: Committer, commits: Sequence[tuple[Held, Batch, Any]]) -> None:
        for _, batch, report in commits:
            for name, receipt in _receipts(batch, report, batch.cut.start).items():
                _publish_at_once(self._sinks[name], receipt)
        original(self, commits)

    original = Committer._commit
    put(Committer, "_commit", commit)


@mutant()
def the_position_moves_to_the_planned_end(put: Put) -> None:
    original = Committer._advance

    def advance(self: Committer, held: Held, batch: Batch, report: Any, now: float) -> Any:
        return original(self, held, batch, replace(report, end=batch.cut.end), now)

    put(Committer, "_advance", advance)


@mutant(start=545)
def an_owner_aborts_after_a_time_out(put: Put) -> None:
    put(FencedWrites, "_send", _send_and_give_up)
    put(Committer, "_committed", _cleaning_up_what_is_lost())


@mutant(start=5307)
def an_owner_deletes_what_it_staged_when_its_commit_is_refused(put: Put) -> None:
    put(Committer, "_committed", _cleaning_up_what_is_lost())


# --- publish ------------------------------------------------------------------------------------------------------


@mutant()
def receipts_are_cleared_before_publishing(put: Put) -> None:
    def publish(self: Publisher, pending: Sequence[Held]) -> None:
        kept = [replace(held) for held in pending]
        self._clear_receipts(pending)
        self._through_all_sinks(kept)

    put(Publisher, "publish", publish)


@mutant("meso")
def one_sink_stands_for_all(put: Put) -> None:
    original = Publisher._settled

    def settled(self: Publisher, held: Held, results: dict[str, Any]) -> bool:
        return any(result is None for result in results.values()) or original(self, held, results)

    put(Publisher, "_settled", settled)


@mutant()
def no_manifest_is_written(put: Put) -> None:
    put(FilesSink, "_witnessed", lambda self, publication, files: None)


@mutant()
def the_manifest_follows_the_files(put: Put) -> None:
    original = FilesSink._publish

    def publish(self: FilesSink, publication: Any) -> Any:
        _publish_at_once(self, publication.receipt)
        return original(self, publication)

    put(FilesSink, "_publish", publish)


@mutant(start=5718)
def a_foreign_manifest_is_taken_for_ours(put: Put) -> None:
    put(Manifest, "agrees_with", lambda self, other: True)


@mutant(start=5624)
def a_manifest_is_compared_by_its_commit_alone(put: Put) -> None:
    put(Manifest, "agrees_with", lambda self, other: self.commit_id == other.commit_id)


@mutant()
def nobody_asks_the_witness(put: Put) -> None:
    put(FilesSink, "witness", lambda self, taken: [None] * len(taken))


@mutant(start=439)
def a_foreign_object_counts_as_published(put: Put) -> None:
    original = FilesSink._publish

    def publish(self: FilesSink, publication: Any) -> Any:
        trouble = original(self, publication)
        return None if "another object" in str(trouble) else trouble

    put(FilesSink, "_publish", publish)


@mutant()
def missing_staged_data_counts_as_published(put: Put) -> None:
    original = FilesSink._publish

    def publish(self: FilesSink, publication: Any) -> Any:
        trouble = original(self, publication)
        return None if isinstance(trouble, StagedDataGone) else trouble

    put(FilesSink, "_publish", publish)


@mutant()
def a_found_commit_completes_the_partition(put: Put) -> None:
    original = Acquirer._hold

    def hold(self: Acquirer, leases: Sequence[Lease]) -> None:
        original(self, leases)
        for held in self._holdings:
            held.complete_after_publish |= held.found_pending

    put(Acquirer, "_hold", hold)


@mutant("wide", start=163)
def publishing_tells_of_no_progress(put: Put) -> None:
    put(PublishesFiles, "progress", lambda self: None)


@mutant("meso", start=450)
def a_rebuild_forgets_the_other_sink(put: Put) -> None:
    original = Committer._mended

    def mended(self: Committer, held: Held, fresh: Any) -> Any:
        return {name: receipt for name, receipt in original(self, held, fresh).items() if name in held.gone}

    put(Committer, "_mended", mended)


# --- staging ------------------------------------------------------------------------------------------------------


@mutant(start=9251)
def a_staging_name_has_no_batch_in_it(put: Put) -> None:
    original = names.staging_key
    put(names, "staging_key", lambda name, token, batch, part: original(name, token, "batch", part))


@mutant(start=5298)
def a_staging_name_has_no_token_in_it(put: Put) -> None:
    original = names.staging_key
    put(names, "staging_key", lambda name, token, batch, part: original(name, 0, batch, part))


@mutant(start=4708)
def a_staging_name_has_neither_batch_nor_token(put: Put) -> None:
    original = names.staging_key
    put(names, "staging_key", lambda name, token, batch, part: original(name, 0, "batch", part))


@mutant()
def a_sweep_deletes_what_a_row_names(put: Put) -> None:
    put(SinkRoot, "_named_handles", lambda self, lease: [])


@mutant(start=5298)
def a_sweep_does_not_look_at_the_token(put: Put) -> None:
    def sweep(self: FilesSink, taken: Sequence[tuple[Lease, Name]]) -> None:
        original(self, [(replace(lease, ownership=replace(lease.ownership, token=1 << 60)), n) for lease, n in taken])

    original = FilesSink.sweep
    put(FilesSink, "sweep", sweep)


# --- parts ---


def _send_and_give_up(self: Any, pending: list[Any]) -> None:
    """As `FencedWrites._send`, but a write without an answer counts as lost."""
    outcomes = self._until_answered(
        lambda: self._store.swap([Swap(write.lease.version, write.wanted) for write in pending])
    )
    for write, outcome in zip(pending, outcomes, strict=True):
        if outcome is Outcome.OK:
            write.result = write.wanted
        elif outcome is Outcome.UNKNOWN:
            write.result = LeaseLost("no answer")
        else:
            self._read_back([write])


def _cleaning_up_what_is_lost() -> Callable[..., Lease | None]:
    original = Committer._committed

    def committed(self: Committer, held: Held, report: Any, result: Lease | LeaseLost, end: float) -> Lease | None:
        if isinstance(result, LeaseLost):
            for name, receipt in report.receipts.items():
                sink: Any = self._sinks[name]
                with suppress(Unavailable):
                    sink._bucket.discard([file["staged"] for file in receipt["files"]])
        return original(self, held, report, result, end)

    return committed


def _publish_at_once(sink: Any, receipt: Any) -> None:
    with suppress(Unavailable):
        sink._bucket.publish(staged_files(receipt))
