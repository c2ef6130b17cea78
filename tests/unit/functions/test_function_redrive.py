"""Dead letters of a function that are sent to its handler again: the same records, and what becomes of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.assemble import StoredPipeline, load_settings
from holdfast.buckets.root import bucket_of
from holdfast.config.digest import digest_of
from holdfast.deadletters.letter_files import FileLetters
from holdfast.errors import BatchError, UsageError
from holdfast.flow.batch import Batch, Cut, Name
from holdfast.flow.generations import Generation
from holdfast.flow.letter import Letter
from holdfast.flow.shards import StreamRecord
from holdfast.flow.staging import staged_batch
from holdfast.functions.record_letters import RecordLetters, StreamRecordRebuilder, record_of_row
from holdfast.functions.shard_calls import DeadRecord
from holdfast.leases.lease import Lease
from holdfast.runs.letter_selection import Choice
from holdfast.runs.redrive import look, redrive
from holdfast.sinks.function.config import FunctionSinkConfig
from holdfast.sinks.function.redrive import NOT_HANDLED, UNACKED
from holdfast.sinks.function.sink import FunctionSink
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


def sent(sink: FunctionSink, records: list[Letter]) -> int:
    """Send the letters as a task of a redrive does; returns how many failed."""
    spec = {"stream": "s", "label": "3"}
    batch = Batch("b", Lease("fleet|hello", "s/3", "redrive-1", spec=spec), Name("s", "3-redrive-1"), Cut(0, 4))
    staged, rebuilder = staged_batch(batch), StreamRecordRebuilder()
    staging = sink.stager_for([batch]).begin()
    for letter in records:
        assert staging.write(staged, None, rebuilder.row(letter)) == 0
    sink.receipt([staging.finish(staged)])
    return staging.late_unfit(staged)


def test_a_letter_gives_exactly_the_record_that_came(tmp_path: Path) -> None:
    rows = [StreamRecordRebuilder().row(letter) for letter in letters_of(tmp_path)]
    assert [record_of_row(row.column("record")[0].as_py()) for row in rows] == RECORDS


def test_letters_that_are_no_records_or_whose_offset_is_too_large_are_refused(tmp_path: Path) -> None:
    (kinesis,) = letters_of(tmp_path, [StreamRecord("s/3", 1 << 180, AT, None, (), b"x")])
    assert "more than 64 bits" in str(StreamRecordRebuilder().refusal(kinesis))
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


@pytest.mark.parametrize(("sink", "why"), [("function", "put the records"), ("files", "rows that the handler")])
def test_a_redrive_that_would_lose_what_the_handler_returns_is_refused(tmp_path: Path, sink: str, why: str) -> None:
    pipeline = pipeline_of(tmp_path, f"- files: {{root: {tmp_path}/out, format: jsonl}}")
    with pytest.raises(UsageError, match=why):
        look(pipeline, Choice(sink))


def test_a_redrive_of_a_function_is_not_left_to_nodes_that_take_no_runs(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="take no runs"):
        redrive(pipeline_of(tmp_path), Choice("function"), lambda _event: None, by="ann", detached=True)
