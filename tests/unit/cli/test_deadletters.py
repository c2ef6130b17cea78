"""`holdfast deadletters` as a person or a script uses it. Sending is in tests/e2e."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from holdfast.buckets.bucket import StagedFile, StagingAttempt
from holdfast.buckets.local import LocalBucket
from holdfast.deadletters.letter_files import FileLetters
from holdfast.deadletters.staging import LetterFiles
from holdfast.flow.batch import Name
from holdfast.flow.fault import dead_letter, record_fault
from holdfast.flow.letter import LetterId, SourceRecord
from holdfast.flow.names import dead_letter_key
from holdfast.flow.staging import StagedBatch
from holdfast.testing.sink_setting import MemoryReader
from tests.unit.cli.conftest import Site

PIPELINE = """\
pipelines:
  orders:
    source:
      objects: {folder: ROOT/in, codec: text}
    sinks:
      - files: {root: ROOT/out, format: jsonl}
      - {name: other, files: {root: ROOT/other, format: jsonl}}
"""


@pytest.fixture
def file(site: Site, tmp_path: Path) -> str:
    """Three letters in one sink, of which one was sent again and one was cut; one in the other."""
    path = Path(site.write("unused"))
    path.write_text(path.read_text().partition("pipelines:\n")[0] + PIPELINE.replace("ROOT", str(tmp_path)))
    (tmp_path / "in").mkdir()
    out, key = LocalBucket(tmp_path / "out"), dead_letter_key(Name("in", "a"), 1, 0)
    faults = [record_fault("odd", b"1"), record_fault("odd", b"x" * 70_000), record_fault("bad \x1b[m", b"3")]
    out.create(key, b"".join(dead_letter("prod|orders", "in|a", at, fault) for at, fault in enumerate(faults)))
    FileLetters(out).mark([LetterId(key, 0)], "redrive-0")
    LocalBucket(tmp_path / "other").create(key, dead_letter("prod|orders", "in|b", 7, record_fault("odd", b"4")))
    site.store(str(path)).close()
    return str(path)


def rows(result: Result) -> list[list[str]]:
    assert result.exit_code == 0, result.output
    return [line.split() for line in result.stdout.splitlines()[1:]]


def test_letters_are_counted_by_sink_and_reason_without_the_values_in_it(site: Site, file: str, tmp_path: Path) -> None:
    faults = [record_fault(f"400 the field 'n' of {number}.json is not a time: {number}", b"1") for number in (1, 22)]
    for number, fault in enumerate(faults, 10):
        key = dead_letter_key(Name("in", f"p{number}"), 1, 0)
        LocalBucket(tmp_path / "other").create(key, dead_letter("prod|orders", f"in|p{number}", 0, fault))
    shown = json.loads(site.invoke("deadletters", "list", file, "--sink", "other", "--json").stdout)
    assert [tuple(row.values())[:5] for row in shown] == [
        ("other", "400 the field … of … is not a time: …", 2, 0, 0),
        ("other", "odd", 1, 0, 0),
    ]


def test_letters_are_counted_by_sink_partition_and_reason(site: Site, file: str) -> None:
    shown = json.loads(site.invoke("deadletters", "list", file, "--by-partition", "--json").stdout)
    assert [tuple(row.values())[:6] for row in shown] == [
        ("files", "in|a", "bad \x1b[m", 1, 0, 0),
        ("files", "in|a", "odd", 0, 1, 1),
        ("other", "in|b", "odd", 1, 0, 0),
    ]
    assert all(row["first"].startswith("20") for row in shown)
    assert [row[0] for row in rows(site.invoke("deadletters", "list", file, "--sink", "other"))] == ["other"]
    assert "\x1b" not in site.invoke("deadletters", "list", file).stdout


def test_letters_are_shown_as_json(site: Site, file: str) -> None:
    def shown(*options: str) -> list[tuple[str, str, str | None]]:
        result = site.invoke("deadletters", "show", file, *options)
        letters = [json.loads(line) for line in result.stdout.splitlines()]
        return [(letter["sink"], letter["raw"][:1], letter["cannot_be_sent"]) for letter in letters]

    cut = "only the beginning of its 70000 bytes is kept"
    assert shown() == [("files", "x", cut), ("files", "3", None), ("other", "4", None)]
    assert shown("--all", "--limit", "1") == [("files", "1", None)]
    assert shown("--partition", "in|b") == [("other", "4", None)]
    assert shown("--reason", "bad") == [("files", "3", None)]


def test_a_large_record_is_shown_whole_if_wanted_and_null_is_null(site: Site, file: str, tmp_path: Path) -> None:
    out, name = LocalBucket(tmp_path / "out"), Name("in", "large")
    records = [SourceRecord({"path": "in/large", "item": 0}, b"y" * 100_000), SourceRecord({"topic": "t", "key": "k"})]
    batch = StagedBatch("b", "prod|orders", "in|large", name, 1, 1, reader=MemoryReader(records))
    letters = LetterFiles(StagingAttempt(out), 1)
    letters.write(batch, [(item, record_fault("odd", b"")) for item in range(2)])
    out.publish([StagedFile(entry["staged"], entry["key"], entry["sha256"]) for entry in letters.finish(batch)])

    def shown(*options: str) -> list[dict[str, Any]]:
        result = site.invoke("deadletters", "show", file, "--partition", "in|large", *options)
        return [json.loads(line) for line in result.stdout.splitlines()]

    large, null = shown()
    assert (len(large["raw"]), large["size"], large["cannot_be_sent"]) == (65536, 100_000, None)
    assert large["spilled"]["file"].startswith("_holdfast/deadletter-records/")
    assert ("raw" in null, null["source"]) == (False, {"topic": "t", "key": "k", "value": None})
    assert [len(letter.get("raw", "")) for letter in shown("--whole")] == [100_000, 0]


def test_a_dry_run_tells_what_would_be_sent_and_what_cannot(site: Site, file: str) -> None:
    result = site.invoke("deadletters", "redrive", file, "--sink", "files", "--dry-run")
    assert result.exit_code == 0
    assert "sink files: 1 cannot be sent again: only the beginning of its 70000 bytes is kept" in result.stderr
    assert "the store no longer has its partition in|a" in result.stderr
    assert result.stdout == "sink files: 0 letters of 0 partitions wait to be sent again\n"


def test_an_unknown_sink_is_told(site: Site, file: str) -> None:
    result = site.invoke("deadletters", "list", file, "--sink", "x")
    assert (result.exit_code, "has no sink 'x'; it has files, other" in result.stderr) == (2, True)
