"""Records that a handler returns: they are staged with the position that passes the record that made them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.buckets.local import LocalBucket
from holdfast.errors import BatchError, Unavailable
from holdfast.flow.staging import Stager, Staging
from holdfast.formats.jsonl import PLUGIN as JSONL
from holdfast.functions.messages import Drained, Progress
from holdfast.functions.output import Output, OutputSinks, Records, batch_to_stage
from holdfast.functions.shard_reports import HeldShard, ShardReports
from holdfast.sinks.files.staging import FilesStager
from holdfast.sources.kinesis.shard_reader import record_number
from tests.unit.functions.rig import Numbers, Rec, Rig, rig

TWO_ROWS = """
from holdfast import Records

def handler(context, event):
    context.user_data.seen.append(event.offset)
    return Records([{"id": event.offset, "half": half} for half in ("a", "b")])
"""


class Away(Stager):
    """A sink that does not respond while `away` is not empty."""

    def __init__(self, stager: Stager, away: list[Exception]) -> None:
        self._stager, self._away = stager, away

    def columns(self, fields: Any) -> Any:
        return self._stager.columns(fields)

    def begin(self) -> Staging:
        if self._away:
            raise self._away.pop()
        return self._stager.begin()


class Desk:
    """A worker with one shard, and what it reports."""

    def __init__(self, rig: Rig, stager: Stager) -> None:
        self.rig = rig
        sinks = OutputSinks({"id": "long", "half": "string"}, {"files": (stager, ("id", "half"))})
        rig.worker.sinks = sinks
        self.reports = ShardReports(Numbers(), sinks, None)
        self.assign()

    def assign(self) -> None:
        self.rig.assign(0)
        spec = {"output": ["p", "0", "s", "0", 1, 1, ""]}
        self.held = HeldShard("b", "0", self.rig.worker.shards["0"], spec=spec)

    def handle(self, *offsets: int) -> None:
        self.rig.feed_offsets(*offsets)
        self.rig.settle()

    def ack(self, *offsets: int) -> None:
        for offset in offsets:
            assert self.held.calls.acks.ack(offset)

    def progress(self) -> Progress:
        reported = self.reports.progress(self.held)
        assert reported is not None
        return reported

    def published(self) -> None:
        assert self.held.calls.output is not None
        self.held.calls.output.waits = False


@contextmanager
def desk(folder: Path, code: str = TWO_ROWS, away: list[Exception] | None = None, **settings: Any) -> Iterator[Desk]:
    stager = FilesStager(LocalBucket(folder / "out"), JSONL.build(JSONL.config()))
    with rig(folder, code, **settings) as made:
        yield Desk(made, Away(stager, away if away is not None else []))


def first_and_last(report: Progress | Drained) -> list[tuple[int, int, int]]:
    files = report.parts["files"]["files"] if report.parts else []
    return [(file["first"], file["last"], file["rows"]) for file in files]


def test_rows_are_staged_with_the_position_and_the_next_ones_wait_until_they_are_published(tmp_path: Path) -> None:
    with desk(tmp_path) as made:
        made.handle(0, 1, 2)
        report = made.progress()
        assert (report.position, first_and_last(report)) == (3, [(0, 2, 6)])
        made.handle(3, 4)
        assert made.reports.progress(made.held) is None
        made.published()
        report = made.progress()
        assert (report.position, first_and_last(report)) == (5, [(3, 4, 4)])


def test_rows_of_a_record_wait_until_every_record_before_it_is_acknowledged(tmp_path: Path) -> None:
    explicit: dict[str, Any] = {"ack": "explicit_only", "worker_allocation": "static"}
    with desk(tmp_path, **explicit) as made:
        made.handle(0, 1, 2, 3, 4)
        made.ack(0, 2, 4)
        report = made.progress()
        # The acks of 2 and 4 are kept back with their rows: after a crash both are handled again.
        assert (report.position, report.acked, first_and_last(report)) == (1, (), [(0, 0, 2)])
        made.published()
        made.ack(1)
        report = made.progress()
        assert (report.position, report.acked, first_and_last(report)) == (3, (), [(1, 2, 4)])


def test_acks_of_records_without_rows_are_ranges_as_ever(tmp_path: Path) -> None:
    some = TWO_ROWS.replace("    return", "    if event.offset == 2:\n        return\n    return")
    with desk(tmp_path, some, ack="explicit_only", worker_allocation="static") as made:
        made.handle(0, 1, 2, 3)
        made.ack(1, 2, 3)
        report = made.progress()
        assert (report.position, report.acked, first_and_last(report)) == (0, ((2, 3),), [])


def test_a_sink_that_is_away_is_tried_again_with_the_same_rows(tmp_path: Path) -> None:
    away: list[Exception] = [Unavailable("the bucket is away")]
    with desk(tmp_path, away=away) as made:
        made.handle(0, 1)
        with pytest.raises(Unavailable):
            made.reports.progress(made.held)
        made.handle(2)
        report = made.progress()
        assert (report.position, report.counts, first_and_last(report)) == (3, (3, 3, 0, 0), [(0, 2, 6)])


def test_a_shard_that_must_be_let_go_while_a_sink_is_away_ends_where_it_was_reported(tmp_path: Path) -> None:
    away: list[Exception] = []
    with desk(tmp_path, away=away) as made:
        made.handle(0)
        made.progress()
        made.handle(1)
        away.append(Unavailable("the bucket is away"))
        assert made.reports.drained(made.held, last=False, gives_up=True).position == 1


def test_the_last_report_does_not_wait_until_the_one_before_is_published(tmp_path: Path) -> None:
    with desk(tmp_path) as made:
        made.handle(0)
        made.progress()
        made.handle(1)
        drained = made.reports.drained(made.held, last=False, gives_up=False)
        assert (drained.position, drained.counts, first_and_last(drained)) == (2, (1, 1, 0, 0), [(1, 1, 2)])


def test_what_a_sink_refuses_to_stage_ends_the_batch(tmp_path: Path) -> None:
    with desk(tmp_path, away=[RuntimeError("no such column")]) as made:
        made.handle(0)
        with pytest.raises(BatchError, match="RuntimeError: no such column"):
            made.reports.progress(made.held)


@pytest.mark.parametrize("row", ['{"other": 1}', '{"id": "text"}', "7", '"text"'])
def test_rows_that_do_not_fit_the_columns_are_a_failure_of_the_handler(tmp_path: Path, row: str) -> None:
    code = f"import holdfast\n\ndef handler(context, event):\n    return holdfast.Records([{row}])\n"
    with desk(tmp_path, code, on_error={"max_retries": 0, "after_retries": "stop"}) as made:
        made.handle(0)
        assert "do not fit output_columns" in (made.held.calls.stopped or "")
        assert made.reports.progress(made.held) is None


def test_records_without_another_sink_are_a_failure_of_the_handler(tmp_path: Path) -> None:
    with rig(tmp_path, TWO_ROWS, on_error={"max_retries": 0, "after_retries": "stop"}) as made:
        made.assign(0)
        made.feed_offsets(0)
        made.settle()
        assert "no other sink" in (made.worker.shards["0"].stopped or "")


def test_rows_of_a_batch_of_records_belong_to_its_last_one(tmp_path: Path) -> None:
    code = "import holdfast\n\ndef handler(context, events):\n    return holdfast.Records([{'id': len(events)}])\n"
    with desk(tmp_path, code, batch={"size": 3}) as made:
        made.handle(0, 1, 2, 3)
        report = made.progress()
        assert (report.position, first_and_last(report)) == (4, [(2, 3, 2)])


def test_a_shard_pauses_while_too_many_rows_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.functions.output.MAX_WAITING_BYTES", 1)
    with desk(tmp_path, read_batch_size=1) as made:
        made.handle(0, 1, 2)
        assert made.rig.seen == [0]
        made.progress()
        made.rig.settle()
        assert made.rig.seen == [0, 1]


class Closing(Stager):
    """Notes which of its stagings were closed."""

    def __init__(self, stager: Stager, closed: list[Staging]) -> None:
        self._stager, self._closed = stager, closed

    def columns(self, fields: Any) -> Any:
        return self._stager.columns(fields)

    def begin(self) -> Staging:
        staging = self._stager.begin()
        close = staging.close

        def note() -> None:
            self._closed.append(staging)
            close()

        staging.close = note  # type: ignore[method-assign]
        return staging


def test_what_one_sink_has_begun_is_closed_when_another_cannot_begin(tmp_path: Path) -> None:
    files = FilesStager(LocalBucket(tmp_path / "out"), JSONL.build(JSONL.config()))
    closed: list[Staging] = []
    stagers: dict[str, tuple[Stager, tuple[str, ...]]] = {
        "first": (Closing(files, closed), ("value",)),
        "second": (Away(files, [Unavailable("the bucket is away")]), ("value",)),
    }
    sinks = OutputSinks({"value": "string"}, stagers)
    made = [Output(0, 0, sinks.rows_of(Records(["one"])), 0)]
    batch = batch_to_stage("b", ["p", "0", "s", "0", 1, 1, ""])
    with pytest.raises(Unavailable):
        sinks.stage(batch, made)
    assert len(closed) == 1
    assert set(sinks.stage(batch, made).parts) == {"first", "second"}


KINESIS = [49590338271490256608559692538361571095921575989136588898 + (number << 80) for number in (0, 1, 5)]


def test_rows_of_offsets_with_56_digits_have_the_numbers_of_their_records(tmp_path: Path) -> None:
    with desk(tmp_path, TWO_ROWS.replace('"id": event.offset, ', "")) as made:
        made.rig.worker.sinks = replace(made.rig.worker.sinks, item_of=record_number)  # type: ignore[type-var]
        made.assign()
        made.rig.feed(*(Rec(offset) for offset in KINESIS))
        made.rig.settle()
        assert [first_and_last(made.progress())] == [[(1734642199, 1734642204, 6)]]


@pytest.mark.parametrize("item_of", [lambda _offset: None, lambda _offset: 7])
def test_rows_of_records_without_numbers_that_grow_are_a_failure_of_the_handler(tmp_path: Path, item_of: Any) -> None:
    with desk(tmp_path, on_error={"max_retries": 0}) as made:
        made.rig.worker.sinks = replace(made.rig.worker.sinks, item_of=item_of)  # type: ignore[type-var]
        made.assign()
        made.handle(0, 1)
        errors = [line["more"] for line in made.rig.log if line["message"] == "Handler failed"]
        assert "the record at offset 1 has none, or one that is not higher than the last" in errors[-1]
