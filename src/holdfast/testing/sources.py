"""The behaviour that every source must show. Subclass it to test your own.

class TestMySource(SourceBehaviour):
    records = 12                         # in all partitions together

    def make_source(self) -> Source:
        return MySource(...)             # a new instance over the same data

The class needs a fixture `spark` with a Spark session. Capabilities are tested where the source has them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from holdfast.errors import BatchError, BeyondRepair, Halt, Refused, Unavailable
from holdfast.flow.batch import Batch, Close, Cut, Done, Limits, Wait
from holdfast.flow.pipeline import ReportsEvents
from holdfast.flow.source import (
    BATCH_COLUMN,
    FAULT_COLUMN,
    ITEM_COLUMN,
    AfterPublish,
    CountsScans,
    CutsShort,
    FixedColumns,
    MayChange,
    OffsetPositions,
    PublishingListener,
    Rebuilds,
    ReportsExtents,
    RereadsRecords,
    SalvagesDamage,
    Source,
    StagingListener,
    UsesStoreClock,
    WeighsPartitions,
)
from holdfast.flow.staging import staged_batch
from holdfast.leases.lease import Lease
from holdfast.testing.source_setting import (
    OUR_COLUMNS,
    ReadBatch,
    SourceSetting,
    at,
    columns_of,
    comparable,
    letters_of,
    read_batches,
    records,
    through_json,
)

BIG = Limits(max_bytes=1 << 40)


class SourceBehaviour(SourceSetting):
    """The guarantees of a source that the loop relies on."""

    # --- discovery -------------------------------------------------------------------------------------------------

    def test_discovery_finds_the_same_partitions_in_the_same_order_with_every_instance(self) -> None:
        with self.opened() as source:
            first = self.partitions(source)
        with self.opened() as source:
            second = self.partitions(source)
        assert first, "the suite needs a source with at least one partition"
        assert [(found.key, found.spec, found.incarnation) for found in second] == [
            (found.key, found.spec, found.incarnation) for found in first
        ]

    def test_keys_are_distinct_and_are_text(self) -> None:
        with self.opened() as source:
            keys = [found.key for found in self.partitions(source)]
        assert [key for key, times in Counter(keys).items() if times > 1] == []
        assert all(key and key.encode() for key in keys)

    def test_specs_and_state_survive_json(self) -> None:
        with self.opened() as source:
            state: dict[str, Any] = {}
            for found in self.partitions(source, state):
                assert through_json(found.spec) == found.spec
            assert through_json(state) == state

    def test_a_later_discovery_finds_no_other_keys_in_the_same_data(self) -> None:
        with self.opened() as source:
            state: dict[str, Any] = {}
            keys = {found.key for found in self.partitions(source, state)}
            assert {found.key for found in self.partitions(source, through_json(state))} <= keys
        with self.opened() as source:
            assert {found.key for found in self.partitions(source, through_json(state))} <= keys

    def test_the_number_of_scans_follows_from_the_state_alone(self) -> None:
        with self.opened() as source:
            if not isinstance(source, CountsScans):
                pytest.skip("the source does not count scans")
            state: dict[str, Any] = {}
            self.partitions(source, state)
            after = source.next_scan_after(state)
            assert self._next_scan_of_another_instance(through_json(state)) == after
            assert after is None or after >= 0
            assert source.may_end or after == source.rediscover_after

    def _next_scan_of_another_instance(self, state: dict[str, Any]) -> float | None:
        other = self.make_source()
        assert isinstance(other, CountsScans)
        return other.next_scan_after(state)

    def test_names_are_pure_and_distinct(self) -> None:
        with self.opened() as source:
            leases = self.leases(source)
            names = [source.name(lease) for lease in leases]
            assert [source.name(lease) for lease in leases] == names
        unopened = self.make_source()
        assert [unopened.name(lease) for lease in leases] == names
        assert len(set(names)) == len(names)
        assert all(name.stream and name.label for name in names)

    # --- planning --------------------------------------------------------------------------------------------------

    def test_a_plan_begins_at_the_position_and_is_the_same_when_repeated(self) -> None:
        with self.opened() as source:
            batches = self.planned(source, self.leases(source), self.small)
            assert batches, "the suite needs a source with something to read"
            for lease, first in [(batch.lease, batch.cut) for batch in batches]:
                repeated = self.plan(source, lease, self.small)
                assert isinstance(repeated, Cut)
                assert (repeated.start, repeated.end, repeated.last) == (first.start, first.end, first.last)
                assert first.end != first.start
                assert through_json([first.start, first.end, first.state]) == [first.start, first.end, first.state]

    def test_leases_are_planned_together_as_each_is_alone(self) -> None:
        with self.opened() as source:
            leases = self.leases(source)
            alone = [self.plan(source, lease, self.small) for lease in leases]
            planned = source.plan(leases[::-1], self.small)[::-1]
            assert [(cut.start, cut.end) for cut in planned if isinstance(cut, Cut)] == [
                (cut.start, cut.end) for cut in alone if isinstance(cut, Cut)
            ]
            assert source.plan([], self.small) == []

    def test_a_position_that_cannot_be_read_is_not_a_fresh_start(self) -> None:
        with self.opened() as source:
            lease = self.leases(source)[0]
            for position in ({"no such": "position"}, "nonsense"):
                try:
                    (plan,) = source.plan([at(lease, position)], BIG)
                except Exception:  # noqa: BLE001, S112 - any error is an attempt of the partition
                    continue
                assert isinstance(plan, BatchError | Halt), f"{position!r} was planned as {plan!r}"

    # --- reading ---------------------------------------------------------------------------------------------------

    def test_small_batches_cover_every_record_once_in_order_and_keep_the_limits(self, spark: Any) -> None:
        with self.opened() as source:
            small = self.walk(source, spark, self.small)
            offsets = isinstance(source, OffsetPositions) and self.positions_are_items
        with self.opened() as source:
            whole = self.walk(source, spark, BIG)
        assert small.keys() == whole.keys()
        for key, parts in small.items():
            assert records(parts) == records(whole[key]), f"other records of {key} in small batches"
            assert len(parts) != 1, f"{key} takes one batch under {self.small}; give the suite other limits or data"
            _check_items(parts, self.small.max_records, offsets=offsets)
        assert sum(len(part.rows) for parts in small.values() for part in parts) == self.records

    def test_a_batch_is_read_alike_each_time_alone_and_beside_others(self, spark: Any) -> None:
        with self.opened() as source:
            batches = self.planned(source, self.leases(source), self.small)
            together = read_batches(source, spark, batches)
            assert read_batches(source, spark, batches[:1])[batches[0].id] == together[batches[0].id]
            other = self.make_source_beside()
            assert read_batches(other, spark, batches[::-1]) == together
            assert all(rows for rows in together.values())

    def test_system_columns_come_first(self, spark: Any) -> None:
        with self.opened() as source:
            names = columns_of(source.read(spark, self.planned(source, self.leases(source), self.small)))
            ours = [name for name in names if name in OUR_COLUMNS]
            assert names[: len(ours)] == ours, "system columns come before data columns"
            assert {BATCH_COLUMN, ITEM_COLUMN} <= set(ours)
            assert len(set(names)) == len(names)

    def test_without_batches_there_are_the_same_columns_and_no_rows(self, spark: Any) -> None:
        with self.opened() as source:
            batches = self.planned(source, self.leases(source), self.small)
            nothing = source.read(spark, [])
            assert columns_of(nothing) == columns_of(source.read(spark, batches))
            rows = nothing.tasks if hasattr(nothing, "tasks") else nothing.count()
            assert rows == 0

    # --- capabilities ----------------------------------------------------------------------------------------------

    def test_columns_that_are_not_needed_may_be_left_out_and_the_others_stay_the_same(self, spark: Any) -> None:
        with self.opened() as source:
            if not isinstance(source, FixedColumns):
                pytest.skip("the source has no fixed columns")
            batches = self.planned(source, self.leases(source), self.small)
            names = list(source.columns().names)
            assert [name for name in columns_of(source.read(spark, batches)) if name not in OUR_COLUMNS] == names
            whole = read_batches(source, spark, batches)
            chosen = read_batches(source, spark, batches, frozenset(names[-1:]))
            for batch_id, rows in chosen.items():
                assert [row[names[-1]] for row in rows] == [row[names[-1]] for row in whole[batch_id]]

    def test_a_batch_that_was_cut_short_goes_on_exactly_there(self, spark: Any) -> None:
        with self.opened() as source:
            if not isinstance(source, CutsShort):
                pytest.skip("the source does not go on where a batch was cut short")
            batch = next(iter(self.planned(source, self.leases(source), BIG)))
            if batch.cut.max_bytes is None:
                pytest.skip("batches are only cut short by the source itself")
            items = [row[ITEM_COLUMN] for row in read_batches(source, spark, [batch])[batch.id]]
            position = source.cut_short(batch, items[1])
            assert through_json(position) == position == source.cut_short(batch, items[1])
            rest = self.walk_of(source, spark, at(batch.lease, position), BIG)
            assert [row[ITEM_COLUMN] for part in rest for row in part.rows] == items[1:]

    def test_damage_stays_in_the_position(self) -> None:
        with self.opened() as source:
            if not isinstance(source, SalvagesDamage):
                pytest.skip("the source does not salvage damage")
            for batch in self.planned(source, self.leases(source), BIG):
                end = source.damaged(batch.cut.end, "a bad block")
                assert through_json(end) == end == source.damaged(end, "a bad block")
                (plan,) = source.plan([at(batch.lease, end)], BIG)
                assert isinstance(plan, BeyondRepair | Done | Close), f"planned {plan!r} behind the damage"

    def test_what_follows_publishing_may_be_repeated_also_by_another_instance(self, spark: Any) -> None:
        with self.opened() as source:
            if not isinstance(source, AfterPublish):
                pytest.skip("nothing follows publishing")
            ends = [at(parts[-1].batch.lease, parts[-1].end) for parts in self.walk(source, spark, BIG).values()]
            assert [type(plan) for plan in source.plan(ends, BIG)] == [Done] * len(ends)
            for _ in range(2):
                assert list(source.after_publish(ends)) == [None] * len(ends)
            other = self.make_source_beside()
            assert isinstance(other, AfterPublish)
            assert list(other.after_publish(ends)) == [None] * len(ends)

    def test_extents_reach_from_the_position_to_the_end(self, spark: Any) -> None:
        with self.opened() as source:
            if not isinstance(source, ReportsExtents):
                pytest.skip("the source does not know extents")
            for extent in source.extents(self.leases(source)):
                assert extent is not None
                assert extent[0] < extent[1]
            ends = [at(parts[-1].batch.lease, parts[-1].end) for parts in self.walk(source, spark, BIG).values()]
            assert all(extent is not None and extent[0] == extent[1] for extent in source.extents(ends))

    def test_reports_of_staging_and_publishing_change_no_plan(self) -> None:
        with self.opened() as source:
            batches = self.planned(source, self.leases(source), self.small)
            for batch in batches * 2:
                if isinstance(source, StagingListener):
                    source.staged(batch, batch.cut.end, 2, 100)
                if isinstance(source, PublishingListener):
                    source.published([at(batch.lease, batch.cut.end)])
            starts = [self.plan(source, batch.lease, self.small) for batch in batches]
            assert [cut.start for cut in starts if isinstance(cut, Cut)] == [batch.cut.start for batch in batches]

    def test_data_that_nobody_touched_raises_no_doubts(self) -> None:
        with self.opened() as source:
            if not isinstance(source, MayChange):
                pytest.skip("the source does not notice changes")
            assert dict(source.doubts(self.planned(source, self.leases(source), self.small))) == {}

    def test_rows_made_of_dead_letters_have_the_columns_of_the_source(self, spark: Any) -> None:
        with self.opened() as source:
            if not isinstance(source, Rebuilds):
                pytest.skip("the source does not rebuild records of dead letters")
            rebuilder = source.rebuilder()
            names = columns_of(source.read(spark, self.planned(source, self.leases(source), self.small)))
            data = {name for name in names if name not in OUR_COLUMNS}
            assert data <= set(rebuilder.fields().names)
            assert rebuilder.keeps is None or rebuilder.keeps <= set(rebuilder.fields().names)

    def test_a_record_that_is_read_a_second_time_for_a_dead_letter_gives_the_same_row(self, spark: Any) -> None:
        with self.opened() as source:
            if not (isinstance(source, RereadsRecords) and isinstance(source, Rebuilds)):
                pytest.skip("the source does not read records a second time")
            batches, rebuilder = self.planned(source, self.leases(source), self.small), source.rebuilder()
            reader, read = source.record_reader(source.read(spark, batches)), read_batches(source, spark, batches)
            for batch in batches:
                rows = [row for row in read[batch.id] if row.get(FAULT_COLUMN) is None]
                letters = letters_of(staged_batch(batch, reader=reader), [row[ITEM_COLUMN] for row in rows])
                assert all(letter.is_whole and letter.refusal is None for letter in letters)
                rebuilt = [rebuilder.row(letter).to_pylist()[0] for letter in letters]
                assert [comparable(row) for row in rebuilt] == [comparable(row) for row in rows]

    def test_small_facilities_return_what_they_say(self) -> None:
        with self.opened() as source:
            leases = self.leases(source)
            if isinstance(source, WeighsPartitions):
                assert isinstance(source.is_light(leases), bool)
            if isinstance(source, UsesStoreClock):
                source.use_clock(lambda: 1e9)
            if isinstance(source, ReportsEvents):
                source.noticed()
                assert list(source.noticed()) == []

    # --- a source that is away -------------------------------------------------------------------------------------

    def test_a_source_that_does_not_respond_is_never_empty(self, spark: Any) -> None:
        with self.opened() as healthy:
            lease = self.leases(healthy)[0]
        source = self.make_unreachable_source()
        if source is None:
            pytest.skip("the source cannot be away")
        try:
            with suppress(Unavailable, Refused):
                source.open()
            with pytest.raises(Unavailable):
                self.partitions(source)
            self._read_in_vain(source, spark, lease)
        finally:
            source.close()
            source.close()

    def _read_in_vain(self, source: Source, spark: Any, lease: Lease) -> None:
        try:
            (plan,) = source.plan([lease], BIG)
        except Unavailable:
            return
        if isinstance(plan, Wait):
            return
        assert isinstance(plan, Cut), f"a source that is away planned {plan!r}"
        with pytest.raises(Unavailable):
            read_batches(source, spark, [Batch("b", lease, source.name(lease), plan)])

    def test_closing_may_be_repeated(self) -> None:
        source = self.make_source()
        source.close()
        source = self.make_source()
        source.open()
        source.close()
        source.close()


def _check_items(parts: Sequence[ReadBatch], most: int | None, *, offsets: bool) -> None:
    """Items grow from batch to batch and name one record each; where positions are offsets, they lie in the batch."""
    items = [row[ITEM_COLUMN] for part in parts for row in part.rows]
    assert items == sorted(set(items))
    for part in parts:
        assert most is None or len(part.rows) <= most, f"a batch of {len(part.rows)} records, and max_records is {most}"
        for row in part.rows if offsets else ():
            assert part.batch.cut.start["offset"] <= row[ITEM_COLUMN] < part.end["offset"]
