"""Dead letters of a function that are sent to its handler again: the same records, and what becomes of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.assemble import StoredPipeline, load_settings
from holdfast.buckets.root import bucket_of
from holdfast.config.digest import digest_of
from holdfast.deadletters.letter_files import FileLetters
from holdfast.deadletters.source import LetterReader, letter_rows, row_items
from holdfast.errors import BatchError, UsageError
from holdfast.flow.batch import Batch, Cut, Name
from holdfast.flow.fault import dead_letter, decode_fault, record_fault
from holdfast.flow.generations import Generation
from holdfast.flow.letter import Letter
from holdfast.flow.names import dead_letter_key
from holdfast.flow.shards import StreamRecord
from holdfast.flow.sink import Sink
from holdfast.flow.source import FAULT_COLUMN, ITEM_COLUMN, Source
from holdfast.flow.staging import StagedBatch, Staging, staged_batch
from holdfast.functions.record_letters import RecordLetters, StreamRecordRebuilder, record_of_row
from holdfast.functions.shard_calls import DeadRecord
from holdfast.leases.lease import Lease
from holdfast.runs.letter_selection import Choice
from holdfast.runs.redrive import look, redrive
from holdfast.sinks.function.config import FunctionSinkConfig
from holdfast.sinks.function.redrive import NOT_HANDLED, UNACKED, WITH_UNACKED
from holdfast.sinks.function.sink import FunctionSink, ShardSource
from holdfast.sources.stream.stream import Stream, StreamSettings
from holdfast.stores.memory import MemoryStore

AT = 1_700_000_000_000
RECORDS = [
    StreamRecord("s/3", 7, AT, b"key", (("h", b"\xff"), ("h", b"2"), ("none", None)), b"\x00\xff"),
    StreamRecord("s/3", 8, AT, b"\xfe", (), None),
    StreamRecord("s/3", 11, AT, None, (), b""),
    StreamRecord("s/3", 1 << 40, AT, None, (("large", b"y" * 5000),), b"x" * 2_000_000),
]
ORIGIN = {"pipeline": "hello", "stream": "s", "label": "3", "generation": 1, "key": "s/3"}
HANDLER = """
import json
from pathlib import Path

import holdfast

def handler(context, event):
    with open(Path(__file__).parent / "handled", "a") as file:
        file.write(json.dumps([event.path, event.shard_id, event.offset, event.trigger.name]) + "\\n")
    if event.offset == 8:
        raise ValueError("again")
    if event.offset != 11:
        return context.platform.explicit_ack(holdfast.QualifiedOffset.from_event(event))
"""


def letters_of(folder: Path, records: list[StreamRecord] = RECORDS) -> list[Letter]:
    bucket = bucket_of(str(folder / "letters"), None)
    RecordLetters(bucket).keep(ORIGIN, [DeadRecord(record, "ValueError: no", 4) for record in records])
    box = FileLetters(bucket)
    return sorted((box.whole(letter) for letter in box.letters()), key=lambda letter: letter.item)


def sink_of(folder: Path, handler: str, **settings: Any) -> FunctionSink:
    (folder / "redriven_handler.py").write_text(handler)
    given = {"handler": str(folder / "redriven_handler.py"), "dead_letters": {"file": str(folder / "letters")}}
    given |= {"on_error": {"max_retries": 0}, "drain_timeout": "100ms", "worker_allocation": "static"}
    return FunctionSink("function", FunctionSinkConfig.model_validate(given | settings))


def sent(sink: FunctionSink, records: list[Letter], others: Mapping[str, Staging] = {}) -> int:
    """Send the letters as a task of a redrive does; returns how many failed."""
    staging, staged = staging_of(sink, records, others)
    return staging.late_unfit(staged)


def staging_of(sink: FunctionSink, records: list[Letter], others: Mapping[str, Staging]) -> tuple[Staging, StagedBatch]:
    """The staging of a task that has sent the letters, and its batch."""
    spec = {"stream": "s", "label": "3"}
    batch = Batch("b", Lease("fleet|hello", "s/3", "redrive-1", spec=spec), Name("s", "3-redrive-1"), Cut(0, 4))
    staged, rebuilder = staged_batch(batch), StreamRecordRebuilder()
    stager = sink.stager_for([batch])
    assert set(stager.feeds) == set(others)
    staging = stager.begin()
    staging.feed(others)
    for item, letter in zip(row_items(records), records, strict=True):
        assert staging.write(staged, pa.array([item]), rebuilder.row(letter)) == 0
    sink.receipt([staging.finish(staged)])
    return staging, staged


def test_a_letter_gives_exactly_the_record_that_came(tmp_path: Path) -> None:
    rows = [StreamRecordRebuilder().row(letter) for letter in letters_of(tmp_path)]
    assert [record_of_row(row.column("record")[0].as_py()) for row in rows] == RECORDS


def test_letters_that_are_no_records_are_refused(tmp_path: Path) -> None:
    (plain,) = letters_of(tmp_path / "plain", RECORDS[:1])
    assert StreamRecordRebuilder().refusal(plain) is None
    assert "not written by a function" in str(StreamRecordRebuilder().refusal(replace(plain, source=None)))


@pytest.mark.parametrize("ack", ["disable", "explicit_only"])
def test_the_handler_gets_the_records_and_what_fails_or_is_not_acknowledged_is_another_letter(
    tmp_path: Path, ack: str
) -> None:
    letters = letters_of(tmp_path)
    handler = HANDLER if ack == "explicit_only" else HANDLER.replace("!= 11", "== -1")
    failed = sent(sink_of(tmp_path, handler, ack=ack), letters)
    lines = (tmp_path / "handled").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [["s", 3, record.offset, "hello"] for record in RECORDS]
    found = list(FileLetters(bucket_of(str(tmp_path / "letters"), None)).letters())
    new = {letter.item: letter for letter in found if letter.id not in {letter.id for letter in letters}}
    errors = {8: "ValueError: again"} | ({11: UNACKED} if ack == "explicit_only" else {})
    assert failed == len(errors)
    assert {item: letter.reason for item, letter in new.items()} == {
        item: f"failed 1 times: {error}" for item, error in errors.items()
    }


LATE_ACKS = """
import asyncio
import threading

import holdfast

def handler(context, event):
    offset = holdfast.QualifiedOffset.from_event(event)
    if event.offset != {never}:
        threading.Timer(0.01, lambda: asyncio.run(context.platform.explicit_ack(offset))).start()
"""


@pytest.mark.parametrize(
    ("never", "patience", "reasons"),
    [(-1, "30s", {}), (7, "100ms", {7: UNACKED} | dict.fromkeys((8, 11, 1 << 40), NOT_HANDLED))],
    ids=["late", "never"],
)
def test_a_handler_that_acknowledges_late_gets_the_next_record_then(
    tmp_path: Path, never: int, patience: str, reasons: dict[int, str]
) -> None:
    letters = letters_of(tmp_path)
    sink = sink_of(tmp_path, LATE_ACKS.format(never=never), ack="explicit_only", max_unacked=1, drain_timeout=patience)
    assert sent(sink, letters) == len(reasons)
    found = list(FileLetters(bucket_of(str(tmp_path / "letters"), None)).letters())
    new = [letter for letter in found if letter.id not in {letter.id for letter in letters}]
    assert {letter.item: letter.reason.partition(": ")[2] for letter in new} == reasons


def test_a_function_that_stops_at_a_record_that_fails_stops_a_redrive(tmp_path: Path) -> None:
    letters = letters_of(tmp_path)
    with pytest.raises(BatchError, match="offset 8 failed 1 times"):
        sent(
            sink_of(tmp_path, HANDLER, ack="explicit_only", on_error={"max_retries": 0, "after_retries": "stop"}),
            letters,
        )


FILE = """
pipelines:
  hello:
    source: {{stream: {{name: s, folder: {folder}}}}}
    sinks:
      - function: {{handler: "hello:handler", dead_letters: {{file: {folder}/letters}}}}
      {more}
"""


def pipeline_of(folder: Path, more: str = "") -> StoredPipeline:
    Stream.create(folder, "s", StreamSettings(4))
    (folder / "file.yaml").write_text(FILE.format(folder=folder, more=more))
    settings = load_settings(folder / "file.yaml")
    pipeline = StoredPipeline(settings, MemoryStore(), "hello")
    pipeline.generations().register(Generation(1, digest_of(settings.pipelines["hello"])), switch=True)
    return pipeline


def test_rows_that_the_handler_returned_and_another_sink_refused_are_not_sent_again(tmp_path: Path) -> None:
    pipeline = pipeline_of(tmp_path, f"- files: {{root: {tmp_path}/out, format: jsonl}}")
    line = dead_letter("hello", "s/3", 5, record_fault("is too large", b"{}"))
    bucket_of(str(tmp_path / "out"), None).create(dead_letter_key(Name("s", "3"), 1, 5), line)
    taken = look(pipeline, Choice("files"))
    assert (taken.number, list(taken.refused.values())) == (0, [1])
    assert "a row that the handler returned" in next(iter(taken.refused))


LARGE = [StreamRecord("s/3", (1 << 180) + number, AT, None, (), b"%d" % number) for number in range(3)]
"""Records of Kinesis, whose offsets have 56 digits."""


def test_letters_whose_offsets_have_more_than_64_bits_are_sent_and_fail_under_their_offsets(tmp_path: Path) -> None:
    letters = letters_of(tmp_path, LARGE)
    handler = HANDLER.replace("event.offset == 8", f"event.offset == {LARGE[1].offset}")
    assert sent(sink_of(tmp_path, handler, ack="explicit_only"), letters) == 1
    lines = (tmp_path / "handled").read_text().splitlines()
    assert [json.loads(line)[2] for line in lines] == [record.offset for record in LARGE]
    found = FileLetters(bucket_of(str(tmp_path / "letters"), None)).letters()
    (new,) = (letter for letter in found if letter.id not in {letter.id for letter in letters})
    assert (new.item, new.source and new.source["offset"], new.raw) == (LARGE[1].offset, LARGE[1].offset, "1")


def test_rows_of_large_offsets_have_items_of_64_bits_in_the_same_order(tmp_path: Path) -> None:
    small = StreamRecord("s/3", 7, AT, None, (), b"small")
    letters = letters_of(tmp_path, [small, *LARGE])
    items = row_items(letters)
    assert (items[0], items[1:] == sorted(items[1:]), max(items[1:]) < 0) == (7, True, True)
    broken = [replace(letter, source={"offset": letter.item}) for letter in letters]
    box = FileLetters(bucket_of(str(tmp_path / "letters"), None))
    reader = LetterReader(box, {"b": dict(zip(items, (letter.id for letter in letters), strict=True))})
    batch = StagedBatch("b", "hello", "s/3", Name("s", "3-redrive-1"), 1, 1, reader=reader)
    table = letter_rows("b", broken, StreamRecordRebuilder(), StreamRecordRebuilder().fields())
    faults = [
        (item, decode_fault(text))
        for item, text in zip(
            table.column(ITEM_COLUMN).to_pylist(), table.column(FAULT_COLUMN).to_pylist(), strict=True
        )
    ]
    RecordLetters(bucket_of(str(tmp_path / "letters"), None)).bury(batch, faults)
    new = [letter.item for letter in box.letters() if letter.id not in {letter.id for letter in letters}]
    assert sorted(new) == [7, *(record.offset for record in LARGE)]


RETURNING = """
import holdfast

def handler(context, event):
    if event.offset == 8:
        raise ValueError("again")
    return holdfast.Records([f"{event.offset} a", f"{event.offset} b"])
"""


class Rows(Staging):
    """Another sink: the rows that it was given, and whether they were made durable."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, str]] = []

    def write(self, batch: StagedBatch, items: Any, rows: Any, output_folder: str = "") -> int:
        assert (batch.changed, batch.several_rows) == (True, True)
        self.rows += zip(items.to_pylist(), rows.column("value").to_pylist(), strict=True)
        return sum("11 b" in value for value in rows.column("value").to_pylist())

    def bury(self, batch: StagedBatch, faults: Any) -> None:
        raise AssertionError("a record that fails is a letter of the function alone")

    def finish(self, batch: StagedBatch) -> Any: ...

    def abandon(self, batch: StagedBatch) -> None: ...


def test_rows_that_the_handler_returns_for_letters_go_to_the_other_sinks(tmp_path: Path) -> None:
    letters, rows = letters_of(tmp_path), Rows()
    sink = sink_of(tmp_path, RETURNING).redriving(source_of(tmp_path), files_of(tmp_path))
    assert sent(sink, letters, {"files": rows}) == 2, "a record that failed, and a row that was refused"
    assert rows.rows == [
        (record.offset, f"{record.offset} {name}") for record in RECORDS if record.offset != 8 for name in "ab"
    ]


class Late(Rows):
    """A sink that knows only at the end which rows it cannot hold, and leaves one out because a setting says so."""

    def late_unfit(self, batch: StagedBatch) -> int:
        return 4

    def chosen_letters(self, batch: StagedBatch) -> int:
        return 1

    def letter_reason(self, batch: StagedBatch) -> str | None:
        return "a field has another type"


def test_rows_that_other_sinks_refuse_at_the_end_are_counted_too(tmp_path: Path) -> None:
    letters = letters_of(tmp_path, [record for record in RECORDS if record.offset != 8])
    sink = sink_of(tmp_path, RETURNING).redriving(source_of(tmp_path), files_of(tmp_path))
    staging, staged = staging_of(sink, letters, {"files": Late()})
    assert staging.late_unfit(staged) == 1 + 4, "a row that was refused at once, and four at the end"
    assert (staging.chosen_letters(staged), staging.letter_reason(staged)) == (1, "a field has another type")


class KinesisShards(ShardSource):
    def __init__(self) -> None:
        """Without a stream: only its numbers are asked for."""

    def item_of(self) -> Callable[[int], int | None]:
        return lambda offset: offset & 0xFF


def test_rows_for_letters_with_large_offsets_have_the_numbers_that_a_worker_gives_them(tmp_path: Path) -> None:
    found = []
    for record in LARGE:  # each in a redrive of its own
        folder = tmp_path / str(record.offset)
        folder.mkdir()
        letters, rows = letters_of(folder, [record]), Rows()
        sink = sink_of(folder, RETURNING).redriving(KinesisShards(), files_of(folder))
        assert sent(sink, letters, {"files": rows}) == 0
        found += rows.rows
    assert found == [(record.offset & 0xFF, f"{record.offset} {name}") for record in LARGE for name in "ab"]


NEVER_ACKED = """
import holdfast

async def handler(context, event):
    if event.offset != 7:
        await context.platform.explicit_ack(holdfast.QualifiedOffset.from_event(event))
    return holdfast.Records([str(event.offset)])
"""


def test_rows_of_a_record_that_is_not_acknowledged_are_left_to_its_next_letter(tmp_path: Path) -> None:
    letters, rows = letters_of(tmp_path), Rows()
    sink = sink_of(tmp_path, NEVER_ACKED, ack="explicit_only").redriving(source_of(tmp_path), files_of(tmp_path))
    assert sent(sink, letters, {"files": rows}) == 1
    assert rows.rows == [(record.offset, str(record.offset)) for record in RECORDS if record.offset != 7]


BATCHED = """
import holdfast

async def handler(context, events):
    for event in events:
        if event.offset not in {never}:
            await context.platform.explicit_ack(holdfast.QualifiedOffset.from_event(event))
    return holdfast.Records([str(event.offset) for event in events])
"""


@pytest.mark.parametrize(
    ("size", "never", "reasons", "written"),
    [
        (4, [7], {7: UNACKED} | dict.fromkeys((8, 11, 1 << 40), WITH_UNACKED), []),
        (4, [8, 1 << 40], {8: UNACKED, 1 << 40: UNACKED, 7: WITH_UNACKED, 11: WITH_UNACKED}, []),
        (2, [7], {7: UNACKED, 8: WITH_UNACKED}, [11, 1 << 40]),
        (2, [11], {11: UNACKED, 1 << 40: WITH_UNACKED}, [7, 8]),
        (4, [], {}, [7, 8, 11, 1 << 40]),
    ],
    ids=["first", "several", "first batch", "second batch", "none"],
)
def test_rows_of_a_batch_with_a_record_that_is_not_acknowledged_are_left_to_the_letters_of_the_batch(
    tmp_path: Path, size: int, never: list[int], reasons: dict[int, str], written: list[int]
) -> None:
    letters, rows = letters_of(tmp_path), Rows()
    batch = {"size": size, "timeout": "10ms"}
    sink = sink_of(tmp_path, BATCHED.replace("{never}", str(never)), ack="explicit_only", batch=batch)
    assert sent(sink.redriving(source_of(tmp_path), files_of(tmp_path)), letters, {"files": rows}) == len(reasons)
    assert [value for _, value in rows.rows] == [str(offset) for offset in written]
    found = list(FileLetters(bucket_of(str(tmp_path / "letters"), None)).letters())
    new = [letter for letter in found if letter.id not in {letter.id for letter in letters}]
    assert {letter.item: letter.reason.partition(": ")[2] for letter in new} == reasons


def source_of(folder: Path) -> Source:
    (folder / "source").mkdir()
    return pipeline_of(folder / "source").build().source


def files_of(folder: Path) -> dict[str, Sink]:
    built = pipeline_of(folder, f"- files: {{root: {folder}/out, format: jsonl}}").build()
    return {"files": built.sinks["files"]}


def test_a_redrive_of_a_function_is_not_left_to_nodes_that_take_no_runs(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="take no runs"):
        redrive(pipeline_of(tmp_path), Choice("function"), lambda _event: None, by="ann", detached=True)
