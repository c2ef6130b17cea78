"""The behaviour that every sink must show. Subclass it to test your own.

class TestMySink(SinkBehaviour):
    def make_sink(self) -> Sink:
        return MySink(...)               # a new instance over one output, which is empty when a test begins

    def visible(self) -> list[str]:
        return [...]                     # the column `value` of every record that a reader finds

Needs no Spark: the suite stages as a task would. Capabilities are tested where the sink has them.
"""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from holdfast.errors import Halt, StagedDataGone, Unavailable
from holdfast.flow.letter import SourceRecord
from holdfast.flow.sink import (
    KeepsLetters,
    KeepsStaged,
    PublishesFiles,
    PublishResult,
    Restages,
    Sink,
    VisibleWhenStaged,
    Witness,
)
from holdfast.flow.staging import Stager
from holdfast.testing.sink_setting import (
    NAME,
    PIPELINE,
    MemoryReader,
    SinkSetting,
    lease_at,
    record,
    through_json,
)

MOST_RECEIPT_BYTES = 4096
MANY = 2000
LARGE_RECORD = 6000
"""Times 256 bytes: more than sinks keep in a line or in a document."""


class SinkBehaviour(SinkSetting):
    """The guarantees of a sink that the loop relies on."""

    # --- stage -----------------------------------------------------------------------------------------------------

    def test_what_is_staged_is_not_visible_before_it_is_published(self, sink: Sink) -> None:
        receipt = self.stage(sink, range(3))
        if isinstance(sink, VisibleWhenStaged) and sink.is_visible(receipt):
            return
        assert self.visible() == []
        assert self.publish(sink, receipt) is None
        assert sorted(self.visible()) == [record(number) for number in range(3)]

    def test_a_receipt_survives_json_and_does_not_hold_the_records(self, sink: Sink) -> None:
        receipt = self.stage(sink, range(MANY))
        assert isinstance(receipt, dict)
        assert len(str(receipt)) < MOST_RECEIPT_BYTES

    def test_rows_of_a_batch_may_come_in_portions_and_beside_other_batches(self, sink: Sink) -> None:
        staging = self.sent_stager(sink).begin()
        first, second = self.batch("b1"), self.batch("b2", label="1")
        self.write(staging, first, range(2))
        self.write(staging, second, range(100, 102))
        self.write(staging, first, range(2, 4))
        parts = [staging.finish(batch) for batch in (first, second)]
        staging.close()
        receipts = [self.receipt(sink, [part]) for part in parts]
        assert self.publish(sink, receipts[0], batch_id="b1") is None
        assert self.publish(sink, receipts[1], batch_id="b2", label="1") is None
        assert sorted(self.visible()) == sorted(record(number) for number in (*range(4), 100, 101))

    def test_the_tasks_of_a_batch_make_one_receipt(self, sink: Sink) -> None:
        parts = [self.part(sink, range(start, start + 2)) for start in (0, 2)]
        assert self.publish(sink, self.receipt(sink, parts)) is None
        assert sorted(self.visible()) == [record(number) for number in range(4)]

    def test_a_batch_without_rows_is_a_commit_too(self, sink: Sink) -> None:
        assert self.publish(sink, self.receipt(sink, [])) is None
        assert self.visible() == []

    def test_an_abandoned_batch_leaves_nothing_and_the_others_of_the_task_go_on(self, sink: Sink) -> None:
        staging = self.sent_stager(sink).begin()
        failed, good = self.batch("b1", label="1"), self.batch("b2")
        self.write(staging, good, range(2))
        self.write(staging, failed, range(100, 102))
        staging.abandon(failed)
        staging.abandon(failed)
        part = staging.finish(good)
        staging.close()
        assert self.publish(sink, self.receipt(sink, [part]), batch_id="b2") is None
        visible = set(self.visible())
        assert visible >= {record(number) for number in range(2)}
        if not isinstance(sink, VisibleWhenStaged):
            assert visible == {record(number) for number in range(2)}

    def test_rows_are_records_or_dead_letters(self, sink: Sink) -> None:
        staging = self.sent_stager(sink).begin()
        batch = self.batch()
        unfit = self.write(staging, batch, range(4))
        staging.bury(batch, self.faults([4, 5]))
        part = staging.finish(batch)
        unfit += staging.late_unfit(batch)
        staging.close()
        assert self.publish(sink, self.receipt(sink, [part])) is None
        assert len(self.visible()) + unfit == 4
        if isinstance(sink, KeepsLetters):
            letters = [letter for letter in sink.letter_box(PIPELINE).letters() if letter.item in {4, 5}]
            assert sorted((letter.item, letter.reason, letter.raw) for letter in letters) == [
                (4, "bad", "raw 4"),
                (5, "bad", "raw 5"),
            ]

    def test_a_letter_holds_the_whole_record_as_the_source_has_it(self, sink: Sink) -> None:
        if not isinstance(sink, KeepsLetters):
            pytest.skip("its letters cannot be read")
        large = bytes(range(256)) * LARGE_RECORD
        records = [
            SourceRecord({"key": "k", "headers": [{"name": "a", "value": None}]}),
            SourceRecord({"key": None}, large),
            SourceRecord({"key": None}, b"\xff"),
        ]
        batch = replace(self.batch(label="whole"), reader=MemoryReader(records))
        staging = self.sent_stager(sink).begin()
        staging.bury(batch, self.faults(range(3)))
        part = staging.finish(batch)
        staging.close()
        assert self.publish(sink, self.receipt(sink, [part]), label="whole") is None
        box = sink.letter_box(PIPELINE)
        letters = sorted((letter for letter in box.letters() if letter.key == batch.key), key=lambda kept: kept.item)
        null, whole, binary = map(box.whole, letters)
        assert null.is_null, "null is not an empty record"
        assert null.source == {**records[0].source, "value": None}
        assert (whole.record(), whole.size, binary.record()) == (large, None, b"\xff")
        assert not any(letter.refusal for letter in (null, whole, binary))

    # --- publish ---------------------------------------------------------------------------------------------------

    def test_publishing_may_be_repeated_also_by_another_instance(self, sink: Sink) -> None:
        receipt = self.stage(sink, range(3))
        assert self.publish(sink, receipt) is None
        assert self.publish(sink, receipt) is None
        with self.opened_beside() as other:
            assert self.publish(other, receipt) is None
        assert sorted(self.visible()) == [record(number) for number in range(3)]

    def test_another_instance_publishes_what_a_dead_one_staged(self, sink: Sink) -> None:
        receipt = self.stage(sink, range(3))
        with self.opened_beside() as other:
            assert self.publish(other, receipt) is None
        assert sorted(self.visible()) == [record(number) for number in range(3)]

    def test_two_instances_that_publish_at_the_same_time_make_it_visible_once(self, sink: Sink) -> None:
        receipt, results = self.stage(sink, range(20)), list[PublishResult]()
        barrier = threading.Barrier(2)

        def publish(instance: Sink) -> None:
            barrier.wait(60)
            results.append(self.publish(instance, receipt))

        with self.opened_beside() as other:
            threads = [threading.Thread(target=publish, args=(instance,)) for instance in (sink, other)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
        assert len(results) == 2
        assert all(result is None or isinstance(result, Unavailable) for result in results), results
        assert self.publish(sink, receipt) is None
        assert sorted(self.visible()) == sorted(record(number) for number in range(20))

    def test_each_publication_has_a_result_of_its_own(self, sink: Sink) -> None:
        publications = [
            self.publication(
                self.stage(sink, [number], label=str(number), batch_id=f"b{number}"),
                label=str(number),
                batch_id=f"b{number}",
            )
            for number in range(3)
        ]
        assert sink.publish(publications) == [None, None, None]
        assert sink.publish([]) == []
        assert sorted(self.visible()) == [record(number) for number in range(3)]

    def test_commits_of_a_partition_follow_each_other(self, sink: Sink) -> None:
        for sequence in (1, 2, 3):
            receipt = self.stage(sink, [sequence], batch_id=f"b{sequence}")
            assert self.publish(sink, receipt, batch_id=f"b{sequence}", sequence=sequence) is None
        assert sorted(self.visible()) == [record(number) for number in (1, 2, 3)]

    # --- zombies ---------------------------------------------------------------------------------------------------

    def test_what_a_former_owner_stages_never_appears(self, sink: Sink) -> None:
        before, late = self.sent_stager(sink).begin(), self.sent_stager(sink).begin()
        zombie = self.batch("zombie", token=1)
        self.write(before, zombie, range(3))
        before.finish(zombie)
        self.write(late, zombie, range(3))
        receipt = self.stage(sink, range(3), batch_id="heir", token=2)
        assert self.publish(sink, receipt, batch_id="heir", token=2) is None
        late.finish(zombie)
        before.close()
        late.close()
        if isinstance(sink, KeepsStaged):
            sink.sweep([(lease_at(token=3, sequence=1), NAME)])
        assert sorted(self.visible()) == [record(number) for number in range(3)]

    def test_a_commit_that_was_not_made_never_appears(self, sink: Sink) -> None:
        receipt = self.stage(sink, range(3), batch_id="refused")
        if isinstance(sink, VisibleWhenStaged) and sink.is_visible(receipt):
            return
        other = self.stage(sink, range(3, 6), batch_id="b2")
        assert self.publish(sink, other, batch_id="b2") is None
        assert sorted(self.visible()) == [record(number) for number in range(3, 6)]

    # --- what is staged --------------------------------------------------------------------------------------------

    def test_discarding_deletes_nothing_that_is_visible_and_may_be_repeated(self, sink: Sink) -> None:
        if not isinstance(sink, KeepsStaged):
            pytest.skip("nothing stays staged")
        receipt = self.stage(sink, range(3))
        assert self.publish(sink, receipt) is None
        for _ in range(2):
            sink.discard_staged([self.publication(receipt)])
            sink.discard_staged([])
        assert self.publish(sink, receipt) is None
        assert sorted(self.visible()) == [record(number) for number in range(3)]

    def test_a_sweep_deletes_nothing_that_a_row_names_or_that_its_owner_stages(self, sink: Sink) -> None:
        if not isinstance(sink, KeepsStaged):
            pytest.skip("nothing stays staged")
        named = self.stage(sink, range(3), batch_id="named", token=1)
        running = self.stage(sink, range(3, 6), batch_id="running", token=2)
        pending = lease_at(token=2, sequence=1, commit_id="named", receipts={sink.name: named})
        for _ in range(2):
            sink.sweep([(pending, NAME)])
            sink.sweep([])
        assert self.publish(sink, named, batch_id="named", token=2) is None
        assert self.publish(sink, running, batch_id="running", token=2, sequence=2) is None
        assert sorted(self.visible()) == [record(number) for number in range(6)]

    def test_staged_data_that_is_gone_is_reported_and_not_published_as_nothing(self, sink: Sink) -> None:
        if not isinstance(sink, KeepsStaged):
            pytest.skip("nothing stays staged")
        lost, kept = self.stage(sink, range(3)), self.stage(sink, [7], label="1", batch_id="b2")
        if isinstance(sink, VisibleWhenStaged) and sink.is_visible(lost):
            pytest.skip("nothing of this batch stays staged")
        sink.discard_staged([self.publication(lost)])
        gone, published = sink.publish([self.publication(lost), self.publication(kept, label="1", batch_id="b2")])
        assert isinstance(gone, StagedDataGone), gone
        assert published is None
        assert self.visible() == [record(7)]

    def test_a_commit_whose_staged_data_is_gone_is_mended_by_the_same_data(self, sink: Sink) -> None:
        if not (isinstance(sink, Restages) and isinstance(sink, KeepsStaged)):
            pytest.skip("the sink does not mend commits")
        lost = self.stage(sink, range(3), token=1)
        sink.discard_staged([self.publication(lost)])
        fresh = self.stage(sink, range(3), batch_id="fresh", token=2)
        mended = sink.mend(self.publication(lost), fresh)
        assert through_json(mended) == mended
        for _ in range(2):
            assert self.publish(sink, mended, token=2) is None
        assert sorted(self.visible()) == [record(number) for number in range(3)]

    def test_a_published_commit_is_not_mended_by_other_data(self, sink: Sink) -> None:
        if not isinstance(sink, Restages) or isinstance(sink, VisibleWhenStaged):
            pytest.skip("the sink does not mend commits")
        published = self.stage(sink, range(3), token=1)
        assert self.publish(sink, published) is None
        other = self.stage(sink, range(5), batch_id="fresh", token=2)
        try:
            mended = sink.mend(self.publication(published), other)
        except Halt:
            mended = published
        assert not isinstance(self.publish(sink, mended, token=2), StagedDataGone)
        assert sorted(self.visible()) == [record(number) for number in range(3)]

    # --- witness, progress -----------------------------------------------------------------------------------------

    def test_a_store_that_lost_writes_is_noticed(self, sink: Sink) -> None:
        if not isinstance(sink, Witness):
            pytest.skip("the sink is not a witness")
        for sequence in (1, 2):
            receipt = self.stage(sink, [sequence], batch_id=f"b{sequence}")
            assert self.publish(sink, receipt, batch_id=f"b{sequence}", sequence=sequence) is None
        other = replace(NAME, label="never written")
        knows, lost, new = sink.witness(
            [(lease_at(sequence=2), NAME), (lease_at(sequence=1), NAME), (lease_at(), other)]
        )
        assert knows is None
        assert isinstance(lost, Halt), "the row is behind the output, and nobody has noticed"
        assert new is None

    def test_files_of_a_receipt_are_counted_and_progress_is_reported_to_whoever_asked(self, sink: Sink) -> None:
        if not isinstance(sink, PublishesFiles):
            pytest.skip("publishing takes no time for each file")
        sink.report_progress_to(lambda: None)
        receipt = self.stage(sink, range(3))
        assert sink.files_in(receipt) >= 0
        assert self.publish(sink, receipt) is None

    # --- the node --------------------------------------------------------------------------------------------------

    def test_opening_and_closing_may_be_repeated(self, sink: Sink) -> None:
        with self.opened_beside() as other:
            assert other.name == sink.name
            verdict = other.open(PIPELINE, durable=True)
            assert verdict is None or verdict.strip()
        other.close()

    def test_a_stager_warms_up_without_a_server(self, sink: Sink) -> None:
        stager = self.sent_stager(sink)
        assert isinstance(stager, Stager)
        stager.warm_up()
        stager.warm_up()

    def test_an_output_that_does_not_respond_is_unavailable_and_nothing_is_raised(self, sink: Sink) -> None:
        away = self.make_unreachable_sink()
        if away is None:
            pytest.skip("the output cannot be away")
        receipt = self.stage(sink, range(3))
        with pytest.raises(Unavailable):
            away.open(PIPELINE, durable=True)
        if not (isinstance(away, VisibleWhenStaged) and away.is_visible(receipt)):
            assert isinstance(self.publish(away, receipt), Unavailable)
        if isinstance(away, Witness):
            assert all(isinstance(result, Unavailable) for result in away.witness([(lease_at(), NAME)]))
        if isinstance(away, KeepsStaged):
            away.sweep([(lease_at(), NAME)])
            away.discard_staged([self.publication(receipt)])
        away.close()
        assert self.publish(sink, receipt) is None
        assert sorted(self.visible()) == [record(number) for number in range(3)]
