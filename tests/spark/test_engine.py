"""The engine under trouble: every batch is reported once, whatever dies, hangs or is cancelled."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as sql

from holdfast.flow.batch import Batch, Done, Limits
from holdfast.flow.engine import Report
from holdfast.leases.lease import Progress
from holdfast.sources.objects import codecs
from holdfast.sources.objects.codecs.codec import BlockCodec, Portion, Range
from holdfast.sources.objects.object_ref import RandomBytes
from holdfast.spark.report import NEEDS_MEMORY
from holdfast.spark.worker_daemon import MEMORY
from tests.spark.rig import PIPELINE, Site, failed, lines, staged

pytestmark = pytest.mark.spark

SCHEMA = "id BIGINT, note STRING"


def stopping_at(number: int, work: Any) -> Any:
    """A processor that does something to the row with this id."""

    def stopping(frame: Any) -> Any:
        def meets(batches: Iterator[Any]) -> Iterator[Any]:
            for rows in batches:
                if number in rows.column("id").to_pylist():
                    work()
                yield rows

        return frame.mapInArrow(meets, frame.schema)

    return stopping


@pytest.mark.parametrize("end", [partial(os._exit, 1), os.abort], ids=["exit", "abort"])
def test_a_batch_that_kills_its_worker_is_found_and_the_others_are_staged(site: Site, end: Any) -> None:
    for number in range(5):
        site.put(f"f{number}", lines(2, first=10 * number))
    site.reading(stopping_at(30, end), schema=SCHEMA)
    reports = site.run()
    report = failed(reports.pop("f3"))
    assert "worker" in report.error.lower()
    assert "\n" not in report.error
    assert not report.unavailable
    assert len(reports) == 4
    site.publish(reports)
    expected = [{"id": 10 * number + line, "note": f"n{line}"} for number in (0, 1, 2, 4) for line in (0, 1)]
    assert sorted(site.rows(), key=lambda row: int(row["id"])) == expected


def test_an_object_whose_codec_aborts_fails_alone_also_at_the_next_attempt(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        site.put(f"f{number}", lines(2, first=10 * number))

    class Aborting(BlockCodec):
        schema = pa.schema([("id", pa.int64()), ("note", pa.string())])

        def read(self, data: RandomBytes, extent: Range) -> Iterator[Portion]:
            if b'"id": 20' in data.read(extent.size):
                os.abort()
            yield Portion(np.array([extent.start]), [pa.array([1]), pa.array(["n"])])

    monkeypatch.setattr(codecs, "codec_of", lambda *_: Aborting())
    site.reading(schema=SCHEMA, codec="parquet")
    for _ in range(2):
        reports = site.run()
        report = failed(reports["f2"])
        assert "worker" in report.error.lower()
        assert not report.unavailable
        for name in ("f0", "f1", "f3"):
            assert staged(reports[name]).counts.succeeded == 1
    assert site.spark.range(3).count() == 3


def test_a_batch_that_needs_more_memory_than_a_worker_may_have_fails_alone(site: Site) -> None:
    for number in range(4):
        site.put(f"f{number}", lines(2, first=10 * number))

    def greedy() -> None:
        bytearray(int(os.environ[MEMORY]))

    site.reading(stopping_at(20, greedy), schema=SCHEMA)
    reports = site.run()
    report = failed(reports["f2"])
    assert report.error == f"MemoryError: {NEEDS_MEMORY}"
    assert not report.unavailable
    assert [type(reports[name]).__name__ for name in ("f0", "f1", "f3")] == ["Staged"] * 3


def test_a_function_that_raises_fails_its_batch_with_its_own_words(site: Site) -> None:
    for number in range(4):
        site.put(f"f{number}", lines(2, first=10 * number))

    def broken() -> None:
        raise ValueError("twenty is no good")

    site.reading(stopping_at(20, broken), schema=SCHEMA)
    reports = site.run()
    assert failed(reports["f2"]).error == "ValueError: twenty is no good"
    assert [type(reports[name]).__name__ for name in ("f0", "f1", "f3")] == ["Staged"] * 3


def test_a_batch_for_which_its_host_had_no_room_counts_no_attempt(site: Site) -> None:
    for number in range(2):
        site.put(f"f{number}", lines(2, first=10 * number))

    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    site.reading(stopping_at(10, full), schema=SCHEMA)
    reports = site.run()
    report = failed(reports["f1"])
    assert "No space left on device" in report.error
    assert report.unavailable
    staged(reports["f0"])


@pytest.mark.parametrize("functions", [(), (lambda frame: frame.where("id % 2 = 0 OR _fault IS NOT NULL"),)])
def test_a_batch_ends_after_as_many_records_as_it_may_have(site: Site, functions: Any) -> None:
    site.put("f.jsonl", lines(25))
    site.reading(*functions, schema=SCHEMA)
    (batch,) = site.batches(Limits(max_records=10))
    found: list[Report] = []
    while True:
        (report,) = site.carried([batch])
        found.append(report)
        after = replace(batch.lease, progress=Progress(position=staged(report).end))
        (plan,) = site.source.plan([after], Limits(max_records=10))
        if isinstance(plan, Done):
            break
        batch = Batch(f"{batch.id}+", after, batch.name, plan)
    assert [staged(report).last for report in found] == [False, False, True]
    site.publish(found)
    assert sorted(row["id"] for row in site.rows()) == [n for n in range(25) if not functions or n % 2 == 0]
    assert site.dead_letters() == []


def test_a_plan_that_cannot_be_made_fails_every_batch_at_once_and_says_why(
    site: Site, capfd: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        site.put(f"f{number}", lines(1))

    def drops(frame: Any) -> Any:
        return frame.select("id")

    site.reading(drops, schema=SCHEMA)
    reports = site.run()
    assert "tests:drops dropped _batch, _item, _fault" in failed(reports["f0"]).error
    assert len(reports) == 3

    def asks_too_much(frame: Any) -> Any:
        return frame.where(sql.col("nothing") > 1)

    site.reading(asks_too_much, schema=SCHEMA)
    error = failed(site.run()["f0"]).error
    assert "nothing" in error
    assert "\n" not in error
    assert capfd.readouterr().err == ""
    site.reading(schema="id NUMBER?")
    assert "near '?'" in failed(site.run()["f0"]).error


# --- cancel --------------------------------------------------------------------------------------------------------


def wait_for_tasks(site: Site) -> None:
    deadline = time.monotonic() + 30
    while not site.spark.sparkContext.statusTracker().getActiveStageIds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_cancelled_round_stops_and_reports_nothing(site: Site) -> None:
    site.put("a", lines(1))
    site.put("b", lines(1, first=10))
    site.reading(stopping_at(0, lambda: time.sleep(60)), schema=SCHEMA, rounds=1)
    batches = site.batches()
    site.engine.submit(PIPELINE, batches)
    assert site.engine.room() == 0
    wait_for_tasks(site)
    began = time.monotonic()
    site.engine.cancel([batch.id for batch in batches])
    assert time.monotonic() - began < 1
    assert site.reports() == []
    assert time.monotonic() - began < 20
    assert site.engine.room() == 1
    site.reading(schema=SCHEMA)
    assert Counter(map(type, site.run().values())) == {type(staged(site.run()["a"])): 2}


def test_a_round_that_is_cancelled_while_it_is_planned_is_stopped_as_well(site: Site) -> None:
    site.put("a", lines(1))
    planning = threading.Event()

    def slow_to_plan(frame: Any) -> Any:
        planning.set()
        time.sleep(1)
        return stopping_at(0, lambda: time.sleep(60))(frame)

    site.reading(slow_to_plan, schema=SCHEMA)
    batches = site.batches()
    site.engine.submit(PIPELINE, batches)
    planning.wait(30)
    began = time.monotonic()
    site.engine.cancel([batch.id for batch in batches])
    assert site.reports() == []
    assert time.monotonic() - began < 30


def test_the_others_of_a_round_go_on_when_one_batch_is_cancelled(site: Site) -> None:
    for name in ("a", "b", "c"):
        site.put(name, lines(1))
    batches = site.batches()
    site.engine.submit(PIPELINE, batches)
    site.engine.cancel([batches[1].id])
    reports = site.reports()
    assert [staged(report).batch_id for report in reports] == [batches[0].id, batches[2].id]


def test_rounds_run_beside_each_other(site: Site) -> None:
    site.put("slow", lines(1))
    site.put("fast", lines(1, first=10))
    site.reading(stopping_at(0, lambda: time.sleep(4)), schema=SCHEMA)
    fast, slow = site.batches()
    site.engine.submit(PIPELINE, [slow])
    site.engine.submit(PIPELINE, [fast])
    assert site.engine.room() == 0
    assert [report.batch_id for report in site.reports()] == [fast.id, slow.id]


def test_closing_cancels_what_runs_and_returns_soon(site: Site) -> None:
    site.put("a", lines(1))
    site.reading(stopping_at(0, lambda: time.sleep(60)), schema=SCHEMA)
    site.engine.submit(PIPELINE, site.batches())
    wait_for_tasks(site)
    began = time.monotonic()
    site.engine.close()
    site.engine.close()
    assert time.monotonic() - began < 10
    assert site.engine.room() == 0


def test_polling_waits_no_longer_than_asked(site: Site) -> None:
    began = time.monotonic()
    assert site.engine.poll(0.2) == []
    assert 0.15 < time.monotonic() - began < 2
    assert site.engine.poll(0) == []
