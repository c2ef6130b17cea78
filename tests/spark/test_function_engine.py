"""The engine of functions on a real Spark session: order, acks, hand-over and rows for other sinks."""

from __future__ import annotations

import time

import pytest

from holdfast.buckets.local import LocalBucket
from holdfast.flow.engine import Advanced, Report, Staged
from holdfast.formats.jsonl import Jsonl
from holdfast.functions.slot_state import SlotRules
from holdfast.sinks.files.sink import FilesSink
from holdfast.sinks.files.staging import FilesStager
from tests.spark.function_setting import PATIENCE, Setting

pytestmark = pytest.mark.spark


def test_records_of_a_shard_are_handled_in_order_and_committed(setting: Setting) -> None:
    setting.stream(4)
    for shard in range(4):
        setting.put(shard, 100)
    # However long a worker takes to come up, it gets its share.
    setting.start("handler = note", SlotRules(patience=PATIENCE), workers=2)
    setting.assign(0, 1, 2, 3)
    setting.wait(lambda: setting.committed == {shard: {"offset": 100} for shard in range(4)})
    assert all(setting.offsets(shard) == list(range(100)) for shard in range(4))
    assert {call.worker for call in setting.calls()} == {0, 1}
    counts = [report.counts.succeeded for report in setting.reports if isinstance(report, Advanced)]
    assert sum(counts) == 400


def test_a_drained_shard_ends_with_the_record_in_hand_and_the_next_owner_goes_on_there(setting: Setting) -> None:
    setting.stream(1)
    setting.put(0, 1000)
    setting.start("def handler(context, event):\n    note(context, event)\n    time.sleep(0.02)")
    ids = setting.assign(0)
    setting.wait(lambda: len(setting.calls()) > 5)
    asked = time.monotonic()
    setting.engines[-1].drain(ids)
    setting.wait(lambda: setting.ended(*ids))
    assert time.monotonic() - asked < 1.5
    staged = setting.reports[-1]
    assert isinstance(staged, Staged)
    assert staged.end == {"offset": len(setting.calls())}
    setting.assign(0)
    handled = len(setting.calls())
    setting.wait(lambda: len(setting.calls()) > handled + 5)
    assert setting.is_in_order(0)


def test_explicit_acks_out_of_order_move_the_position_along_the_prefix(setting: Setting) -> None:
    setting.stream(1)
    setting.put(0, 6)
    setting.start(
        """
import asyncio
from holdfast.functions.events import QualifiedOffset
kept = []
def handler(context, event):
    note(context, event)
    kept.append(QualifiedOffset.from_event(event))
    if event.offset == 5:
        for index in (4, 2, 0):
            asyncio.get_event_loop().run_until_complete(context.platform.explicit_ack(kept[index]))
""",
        ack="explicit_only",
        worker_allocation="static",
    )
    ids = setting.assign(0)
    setting.wait(lambda: setting.committed.get(0) == {"offset": 1})
    progress = setting.reports[-1]
    assert isinstance(progress, Advanced)
    assert progress.acked == ((2, 3), (4, 5))
    setting.engines[-1].cancel(ids)
    setting.assign(0, acked=progress.acked)
    setting.wait(lambda: len(setting.calls()) == 9)
    assert setting.offsets(0)[6:] == [1, 3, 5]


RETURNING = """
import holdfast

def handler(context, event):
    note(context, event)
    return holdfast.Records([f'{{"row": {event.offset}}}'])
"""


def staged_items(report: Report) -> list[tuple[int, int]]:
    assert isinstance(report, Advanced | Staged)
    return [(file["first"], file["last"]) for file in report.receipts["files"]["files"]]


def test_a_shard_reports_its_next_rows_when_the_last_ones_are_published(setting: Setting) -> None:
    files = FilesSink("files", bucket := LocalBucket(setting.folder / "out"), FilesStager(bucket, Jsonl()))
    setting.stream(1)
    setting.put(0, 3)
    engine = setting.start(RETURNING, files=files)
    ids = setting.assign(0)
    setting.wait(lambda: bool(setting.committed))
    setting.put(0, 2)
    setting.wait(lambda: len(setting.calls()) == 5)
    (first,) = setting.reports
    assert isinstance(first, Advanced)
    assert staged_items(first) == [(0, first.position["offset"] - 1)]

    def is_through() -> bool:
        engine.published(ids)
        return bool(setting.committed[0] == {"offset": 5})

    setting.wait(is_through)
    staged = [item for report in setting.reports for item in staged_items(report)]
    assert [item for start, end in staged for item in range(start, end + 1)] == [0, 1, 2, 3, 4]


def test_rows_of_a_commit_that_are_lost_are_made_again_from_its_records(setting: Setting) -> None:
    files = FilesSink("files", bucket := LocalBucket(setting.folder / "out"), FilesStager(bucket, Jsonl()))
    setting.stream(1)
    setting.put(0, 9)
    setting.start(RETURNING, files=files, ack="explicit_only", worker_allocation="static")
    again = setting.assign_again(0, 2, 5)
    setting.wait(lambda: setting.ended(again))
    staged = setting.reports[-1]
    assert isinstance(staged, Staged)
    assert (staged.end, staged_items(staged), setting.offsets(0)) == ({"offset": 5}, [(2, 4)], [2, 3, 4])
