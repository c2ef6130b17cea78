"""The finalizer: one node at a time declares places final; what dies with it is done by the next one."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from holdfast.errors import Refused, SinkUnavailable
from holdfast.events import FinalizingFailed, FolderFinalized, LateRecords, Unreachable
from holdfast.finalize.finalizer import Finalizer, finalizer_of
from holdfast.flow.batch import Name
from holdfast.flow.manifest import Manifest
from holdfast.leases.lease import Lease, Status
from holdfast.sinks.files.finalizing import FilesFinalizing
from tests.unit.finalize.hours import HOUR, TOPIC, Archive, output_folder
from tests.unit.flow.rig import PIPELINE, TestNode

HERE = "tests.unit.finalize.test_finalizer"
HOOK = {"python": f"{HERE}:hook"}
CALLS: list[dict[str, Any]] = []
TROUBLE: list[BaseException] = []


class Killed(BaseException):
    """The process ends here."""


def hook(fact: dict[str, Any]) -> None:
    if TROUBLE:
        raise TROUBLE.pop()
    CALLS.append(fact)


@pytest.fixture(autouse=True)
def _quiet_hook() -> None:
    CALLS.clear()
    TROUBLE.clear()


def called() -> list[str]:
    return [fact["place"] for fact in CALLS]


def row(archive: Archive) -> Lease:
    (found,) = archive.fleet.store.get([finalizer_of(PIPELINE, "files")])
    assert found is not None
    return found


def finalizer(node: TestNode) -> Finalizer:
    (found,) = node.loop._duties
    assert isinstance(found, Finalizer)
    return found


def test_places_are_final_when_all_partitions_have_passed_them() -> None:
    archive = Archive(hooks=[HOOK])
    node = archive.node().start()
    archive.archive(node, p0=[5, 6, 8], p1=[5, 5])
    archive.look(node)
    assert archive.successes() == []
    archive.archive(node, p1=[8])
    archive.look(node)
    assert archive.successes() == [output_folder(5), output_folder(6)] == called()
    fact = json.loads(archive.bucket.visible[f"{TOPIC}/{output_folder(5)}/_SUCCESS"])
    assert (fact["files"], fact["rows"], fact["ends"]) == (2, 3, {"0": 3, "1": 3})
    assert archive.fleet.emitted(FolderFinalized) == [
        FolderFinalized(PIPELINE, TOPIC, output_folder(5), 2, 3, 0),
        FolderFinalized(PIPELINE, TOPIC, output_folder(6), 1, 1, 0),
    ]
    archive.look(node)
    assert len(CALLS) == 2


def test_what_lies_behind_an_open_transaction_keeps_its_places_open_for_ever() -> None:
    archive = Archive(["0"], lateness="30m", idle_after="1h")
    node = archive.node().start()
    archive.archive(node, p0=[5, 6])
    archive.source.unstable["0"] = 2
    archive.archive(node, p0=[6, 6])
    for _ in range(3):
        archive.look(node)
        archive.pass_time(2 * HOUR, node)
    assert archive.successes() == []
    del archive.source.unstable["0"]
    archive.archive(node)
    for _ in range(3):
        archive.look(node)
        archive.pass_time(2 * HOUR, node)
    assert archive.successes() == [output_folder(5), output_folder(6)]


def test_a_place_is_final_by_the_clock_when_the_next_one_has_begun() -> None:
    archive = Archive(["0"], lateness="30m")
    node = archive.node().start()
    archive.archive(node, p0=[5, 6])
    archive.look(node)
    archive.pass_time(0.4 * HOUR, node)
    archive.look(node)
    assert archive.successes() == []
    archive.pass_time(0.2 * HOUR, node)
    archive.look(node)
    assert archive.successes() == [output_folder(5)]


def test_a_place_is_not_final_before_its_files_are_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(_files: Any) -> None:
        raise SinkUnavailable("gone")

    archive = Archive(["0"])
    node = archive.node().start()
    with monkeypatch.context() as broken:
        broken.setattr(archive.bucket, "publish", away)
        archive.archive(node, p0=[5, 8])
        assert any("/commits/" in key for key in archive.bucket.visible)
        archive.look(node)
        assert archive.successes() == []
    archive.look(node)
    archive.look(node)
    assert archive.successes() == [output_folder(5)]


def test_only_new_manifests_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    sequences: list[int] = []
    real = FilesFinalizing.manifest

    def noted(self: FilesFinalizing, name: Name, sequence: int) -> Manifest | None:
        sequences.append(sequence)
        return real(self, name, sequence)

    monkeypatch.setattr(FilesFinalizing, "manifest", noted)
    archive = Archive(["0"])
    node = archive.node().start()
    for hour in range(4):
        archive.archive(node, p0=[hour])
        archive.look(node)
    assert sequences == [1, 2, 3, 4]


def test_a_partition_that_has_nothing_to_read_blocks_no_longer_than_the_setting_says() -> None:
    archive = Archive(idle_after="1d")
    node = archive.node().start()
    archive.look(node)
    archive.pass_time(12 * HOUR, node)
    archive.archive(node, p0=[5, 8])
    archive.look(node)
    archive.look(node)
    assert archive.successes() == []
    archive.pass_time(12 * HOUR, node)
    archive.look(node)
    assert archive.successes() == [output_folder(5)]  # as far as the other partition is, which was not quiet so long
    archive.pass_time(12 * HOUR, node)
    archive.look(node)
    assert archive.successes() == [output_folder(5), output_folder(8)]


def test_a_partition_with_unread_records_blocks_for_ever() -> None:
    archive = Archive(idle_after="1d")
    node = archive.node().start()
    archive.archive(node, p0=[5, 8])
    archive.source.records["1"] = [5]
    for _ in range(3):
        archive.look(node)
        archive.pass_time(24 * HOUR, node)
    assert archive.successes() == []


def test_a_failed_partition_blocks_for_ever() -> None:
    archive = Archive(idle_after="1d")
    node = archive.node().start()
    archive.archive(node, p0=[5, 8])
    (failed,) = [lease for lease in node.coordinator.owned() if lease.key.endswith("1")]
    node.coordinator.halt(failed, "somebody must look")
    for _ in range(3):
        archive.look(node)
        archive.pass_time(24 * HOUR, node)
    assert archive.successes() == []


def test_one_of_two_nodes_looks_and_the_other_learns() -> None:
    archive = Archive(["0"], hooks=[HOOK])
    a = archive.node("a").start()
    archive.archive(a, p0=[5, 8])
    b = archive.node("b").join()
    archive.pass_time(100, a, b)
    assert (finalizer(a).run(), finalizer(b).run()) == (True, False)
    assert called() == [output_folder(5)]
    sink: Any = b.loop._publisher._sinks["files"]
    assert sink.finalizing()._final_times[TOPIC].final == 7 * HOUR
    archive.pass_time(100, a, b)
    assert (finalizer(b).run(), finalizer(a).run()) == (True, False)
    assert called() == [output_folder(5)]


def test_a_node_that_dies_behind_success_leaves_the_hook_to_the_next() -> None:
    archive = Archive(["0"], hooks=[HOOK])
    a, b = archive.node("a").start(), archive.node("b")
    archive.archive(a, p0=[5, 8])
    archive.fleet.clock.time += 100
    a.session.heartbeat()
    TROUBLE.append(Killed())
    with pytest.raises(Killed):
        finalizer(a).run()
    assert archive.successes() == [output_folder(5)]
    assert called() == []
    archive.fleet.clock.time += 1000  # a's session is over
    b.join()
    assert finalizer(b).run()
    assert called() == [output_folder(5)]
    assert archive.fleet.emitted(FolderFinalized) == [FolderFinalized(PIPELINE, TOPIC, output_folder(5), 1, 1, 0)]


def test_a_hook_that_fails_is_called_again_after_a_while_and_blocks_nothing_else() -> None:
    archive = Archive(["0"], hooks=[HOOK], interval="5s")
    node = archive.node().start()
    TROUBLE.append(OSError("no metastore"))
    archive.archive(node, p0=[5, 6, 8])
    archive.look(node)
    assert called() == [output_folder(6)]
    assert archive.fleet.emitted(FinalizingFailed) == [
        FinalizingFailed(PIPELINE, TOPIC, output_folder(5), 1, "OSError: no metastore")
    ]
    archive.archive(node, p0=[9])
    archive.look(node)
    assert called() == [output_folder(6), output_folder(5)]


def test_waits_between_calls_of_a_failing_hook_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    archive = Archive(["0"], interval="1s")
    node = archive.node().start()
    monkeypatch.setattr(FilesFinalizing, "finish", lambda _self, _final: "no metastore")
    archive.archive(node, p0=[5, 8])
    times = []
    for _ in range(200):
        before = len(archive.fleet.emitted(FinalizingFailed))
        archive.look(node)
        if len(archive.fleet.emitted(FinalizingFailed)) > before:
            times.append(archive.fleet.clock.time)
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert pauses[0] == 100
    assert 2000 < pauses[-1] < 5000


def test_a_bucket_that_is_away_is_told_of_and_nothing_is_forgotten() -> None:
    archive = Archive(["0"], hooks=[HOOK])
    node = archive.node().start()
    archive.archive(node, p0=[5, 8])
    archive.bucket.away = True
    archive.look(node)
    assert [event.what for event in archive.fleet.emitted(Unreachable)][-1] == "sink"
    archive.bucket.away = False
    archive.look(node)
    assert called() == [output_folder(5)]


def test_a_broken_manifest_is_told_of() -> None:
    archive = Archive(["0"])
    node = archive.node().start()
    archive.archive(node, p0=[5, 8])
    (key,) = [key for key in archive.bucket.visible if "/commits/" in key]
    archive.bucket.visible[key] = b"{"
    archive.look(node)
    (failed,) = archive.fleet.emitted(FinalizingFailed)
    assert "manifest" in failed.error
    assert row(archive).status is Status.CLOSED


def test_late_records_come_to_their_place_and_are_counted() -> None:
    archive = Archive(["0"], hooks=[HOOK])
    node = archive.node().start()
    archive.archive(node, p0=[5, 8])
    archive.look(node)
    archive.archive(node, p0=[5, 4, 8])
    archive.look(node)
    assert archive.fleet.emitted(LateRecords) == [
        LateRecords(PIPELINE, TOPIC, output_folder(4), 1),
        LateRecords(PIPELINE, TOPIC, output_folder(5), 1),
    ]
    assert row(archive).progress.state["topics"][TOPIC]["late"] == 2
    # An output folder that did not exist before is final from the start.
    assert archive.successes() == [output_folder(4), output_folder(5)]
    assert [(fact["place"], fact["late"]) for fact in CALLS] == [
        (output_folder(5), 0),
        (output_folder(4), 1),
        (output_folder(5), 1),
    ]


def test_late_records_go_to_a_place_of_their_own() -> None:
    archive = Archive(["0"], late="place", hooks=[HOOK])
    node = archive.node().start()
    archive.archive(node, p0=[5, 8])
    archive.look(node)
    archive.archive(node, p0=[5, 8, 9])
    archive.look(node)
    assert archive.keys("_late") == [f"_late/{TOPIC}/{output_folder(5)}"]
    files = [key for key in archive.bucket.visible if key.startswith(f"{TOPIC}/{output_folder(5)}/1_")]
    assert len(files) == 1
    assert archive.fleet.emitted(LateRecords) == [LateRecords(PIPELINE, TOPIC, output_folder(5), 1)]
    assert called() == [output_folder(5)]


def test_late_records_go_to_the_dead_letters() -> None:
    archive = Archive(["0"], late="dead_letter")
    node = archive.node().start()
    archive.archive(node, p0=[5, 8])
    archive.look(node)
    archive.archive(node, p0=[5, 5, 8])
    archive.look(node)
    (letters,) = [data for key, data in archive.bucket.visible.items() if key.startswith("_holdfast/deadletters/")]
    letters_found = [json.loads(line) for line in letters.splitlines()]
    assert [(letter["reason"], letter["raw"], letter["origin"]["item"]) for letter in letters_found] == [
        (f"it came late: {output_folder(5)} was final already", '{"hour": 5}', offset) for offset in (2, 3)
    ]
    counts = archive.fleet.row(f"{TOPIC}|0").progress.counts
    assert (counts.processed, counts.succeeded, counts.dead) == (5, 3, 2)
    assert archive.fleet.emitted(LateRecords) == [LateRecords(PIPELINE, TOPIC, output_folder(5), 2)]


def test_a_batch_that_was_planned_before_adds_to_a_final_place_and_is_counted() -> None:
    archive = Archive(["0"], late="place")
    node = archive.node().start()
    archive.archive(node, p0=[5, 8])
    archive.source.records["0"] += [5]
    node.turn(2)
    (report,) = archive.staged(node)
    archive.look(node)
    assert archive.successes() == [output_folder(5)]
    node.engine.report(report)
    node.turn(2)
    archive.look(node)
    assert archive.keys("_late") == []
    assert archive.fleet.emitted(LateRecords) == [LateRecords(PIPELINE, TOPIC, output_folder(5), 1)]


def test_a_commit_that_is_made_again_goes_where_it_went_before() -> None:
    archive = Archive(["0"], late="place")
    node = archive.node().start()
    archive.archive(node, p0=[5, 8])
    archive.source.records["0"] += [6, 5]
    node.turn(2)
    archive.stage(node)
    archive.bucket.staged.clear()  # what was staged is lost before it is published
    node.turn(2)
    archive.look(node)  # now hour 5 is final
    archive.stage(node)
    node.turn(3)
    assert archive.fleet.row(f"{TOPIC}|0").status is Status.ASSIGNED
    assert archive.keys("_late") == []
    assert archive.fleet.row(f"{TOPIC}|0").commit.receipts is None


def test_finalizing_is_for_sources_whose_partitions_go_on() -> None:
    archive = Archive()
    archive.source.lives_long = False
    with pytest.raises(Refused, match="partitions never end"):
        archive.node()


def test_a_stopping_node_begins_no_look() -> None:
    archive = Archive(["0"])
    node = archive.node().start()
    archive.archive(node, p0=[5, 8])
    node.loop.drain()
    archive.look(node)
    assert archive.successes() == []


def test_more_manifests_than_one_look_reads_are_read_before_anything_is_decided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    archive = Archive(["0"], interval="1000s")
    node = archive.node().start()
    for hour in (5, 9, 5):
        archive.archive(node, p0=[hour])
    monkeypatch.setattr("holdfast.finalize.finalizer.READ_AT_ONCE", 2)
    archive.fleet.clock.time += 5000
    node.session.heartbeat()
    node.turn()
    assert archive.successes() == []
    node.turn()
    fact = json.loads(archive.bucket.visible[f"{TOPIC}/{output_folder(5)}/_SUCCESS"])
    assert fact["rows"] == 2
    assert archive.fleet.emitted(LateRecords) == []


def test_an_unreachable_sink_is_no_error_of_the_look(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(_self: Any, _final: Any) -> None:
        raise SinkUnavailable("gone")

    archive = Archive(["0"])
    node = archive.node().start()
    archive.archive(node, p0=[5, 8])
    monkeypatch.setattr(FilesFinalizing, "finish", away)
    archive.look(node)
    assert archive.fleet.emitted(FinalizingFailed) == []
    assert row(archive).progress.state["topics"][TOPIC]["due"].keys() == {output_folder(5)}


def test_the_row_never_outgrows_the_store_whatever_folders_records_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.finalize.finalizer.TRACKED_SHARE", 0.01)
    archive = Archive(["0", "1"])  # a partition without records keeps all folders open
    node = archive.node().start()
    archive.archive(node, p0=[5, *range(100, 700)])
    archive.look(node)
    state = row(archive).progress.state["topics"][TOPIC]
    assert len(json.dumps(state)) < 15_000
    assert 0 < len(state["open"]) < 300
    (failed,) = archive.fleet.emitted(FinalizingFailed)
    assert f"open output folders of {TOPIC} are not announced" in failed.error
    archive.archive(node, p0=[740], p1=[740])
    archive.look(node)
    assert set(state["open"]) <= set(archive.successes())


def test_a_receipt_names_a_bounded_number_of_folders_whose_records_came_late() -> None:
    archive = Archive(["0"], late="dead_letter")
    node = archive.node().start()
    archive.archive(node, p0=[5, 740])
    archive.look(node)
    archive.archive(node, p0=[*range(600), 740])
    archive.look(node)
    manifests = [json.loads(data) for key, data in archive.bucket.visible.items() if "/commits/" in key]
    (late,) = [file["late"] for manifest in manifests for file in manifest["files"] if "late" in file]
    assert sum(late.values()) == 600
    assert late[""] > 400
    assert len(json.dumps(late)) < 4096
    assert sum(event.records for event in archive.fleet.emitted(LateRecords)) == 600


def test_records_of_folders_too_far_ahead_are_letters_and_nothing_waits_for_them() -> None:
    archive = Archive(["0"])
    archive.fleet.clock.time = 240 * HOUR
    node = archive.node().start()
    archive.archive(node, p0=[235, 264, 266, 700, 239])
    archive.look(node)
    (letters,) = [data for key, data in archive.bucket.visible.items() if key.startswith("_holdfast/deadletters/")]
    found = [json.loads(line) for line in letters.splitlines()]
    assert [(letter["origin"]["item"], letter["raw"]) for letter in found] == [
        (2, '{"hour": 266}'),
        (3, '{"hour": 700}'),
    ]
    assert (
        found[0]["reason"] == f"its time is too far ahead: {output_folder(266)} begins after 1970-01-12T00:00:00+00:00"
    )
    state = row(archive).progress.state["topics"][TOPIC]
    assert {*state["open"], *archive.successes()} == {output_folder(hour) for hour in (235, 239, 264)}
    counts = archive.fleet.row(f"{TOPIC}|0").progress.counts
    assert (counts.processed, counts.succeeded, counts.dead) == (5, 3, 2)


def test_how_far_ahead_is_too_far_is_decided_once_for_a_batch() -> None:
    archive = Archive(["0"], max_ahead=2.0 * HOUR)
    archive.fleet.clock.time = 240 * HOUR
    node = archive.node().start()
    archive.source.records["0"] += [239, 243]
    node.turn(2)
    archive.stage(node)
    archive.bucket.staged.clear()  # what was staged is lost before it is published
    archive.pass_time(5 * HOUR, node)
    node.turn(2)
    archive.stage(node)
    node.turn(3)
    assert archive.fleet.row(f"{TOPIC}|0").commit.receipts is None
    assert archive.keys(TOPIC) == [f"{TOPIC}/{output_folder(239)}"]
    assert archive.keys("_holdfast/deadletters") == [f"_holdfast/deadletters/{TOPIC}"]


def test_without_a_bound_any_time_is_accepted() -> None:
    archive = Archive(["0"], max_ahead=None)
    archive.fleet.clock.time = 240 * HOUR
    node = archive.node().start()
    archive.archive(node, p0=[239, 700])
    assert archive.keys(TOPIC) == [f"{TOPIC}/{output_folder(hour)}" for hour in (239, 700)]
