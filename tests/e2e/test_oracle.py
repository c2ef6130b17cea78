"""The oracle of the end-to-end tests notices what it is there for."""

from __future__ import annotations

import bz2
import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.e2e.oracle import Lister, Record, Verdict, judge
from tests.e2e.scan_corpus import damaged, difference, small, wanted

RECORDS: list[Record] = [(number, f"n{number}") for number in range(10)]


@pytest.fixture
def given(tmp_path: Path) -> Path:
    """Ten records in two files, one of them compressed."""
    folder = tmp_path / "in"
    folder.mkdir()
    lines = [json.dumps({"id": number, "note": note}) + "\n" for number, note in RECORDS]
    (folder / "a.jsonl").write_text("".join(lines[:5]))
    (folder / "b.jsonl.gz").write_bytes(gzip.compress("".join(lines[5:]).encode()))
    return folder


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out"


def put(path: Path, records: Sequence[Record]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": [record[0] for record in records], "note": [record[1] for record in records]}), path)


def test_every_record_once_is_right(given: Path, output: Path) -> None:
    put(output / "in" / "1.parquet", RECORDS[:4])
    put(output / "in" / "2.parquet", RECORDS[4:])
    assert judge(given, output) == Verdict()


def test_a_lost_record_is_noticed(given: Path, output: Path) -> None:
    put(output / "in" / "1.parquet", RECORDS[:4] + RECORDS[5:])
    assert judge(given, output) == Verdict(lost=(RECORDS[4],))


def test_a_record_twice_in_one_file_is_noticed(given: Path, output: Path) -> None:
    put(output / "in" / "1.parquet", [*RECORDS, RECORDS[7]])
    assert judge(given, output) == Verdict(twice=(RECORDS[7],))


def test_a_record_in_two_files_is_noticed(given: Path, output: Path) -> None:
    put(output / "in" / "1.parquet", RECORDS)
    put(output / "in" / "2.parquet", RECORDS[:1])
    assert judge(given, output) == Verdict(twice=(RECORDS[0],))


def test_a_record_that_was_altered_is_lost_and_foreign(given: Path, output: Path) -> None:
    put(output / "in" / "1.parquet", [*RECORDS[:9], (9, "other")])
    assert judge(given, output) == Verdict(lost=(RECORDS[9],), foreign=((9, "other"),))


def test_what_a_listing_hides_does_not_count(given: Path, output: Path) -> None:
    put(output / "in" / "1.parquet", RECORDS)
    put(output / "_holdfast" / "staging" / "2.parquet", RECORDS)
    put(output / "in" / ".3.parquet", RECORDS)
    assert judge(given, output) == Verdict()


def test_new_objects_are_no_complaint(output: Path) -> None:
    lister = Lister(output)
    lister.look()
    for number in range(3):
        put(output / "in" / f"{number}.parquet", RECORDS)
        lister.look()
    assert (lister.listings, lister.complaints) == (4, [])


def test_an_object_that_disappears_is_noticed(output: Path) -> None:
    lister = Lister(output)
    put(output / "in" / "1.parquet", RECORDS)
    lister.look()
    (output / "in" / "1.parquet").unlink()
    lister.look()
    lister.look()
    assert lister.complaints == [f"{output}/in/1.parquet has disappeared"]


def test_an_object_that_changes_is_noticed(output: Path) -> None:
    lister = Lister(output)
    put(output / "in" / "1.parquet", RECORDS[:1])
    lister.look()
    put(output / "in" / "1.parquet", RECORDS[1:2])
    lister.look()
    (complaint,) = lister.complaints
    assert complaint.startswith(f"{output}/in/1.parquet has changed: ")


def test_the_lister_looks_by_itself_and_once_more_at_the_end(output: Path) -> None:
    with Lister(output) as lister:
        put(output / "in" / "1.parquet", RECORDS)
    assert (lister.listings >= 1, lister.complaints) == (True, [])


def test_a_record_of_a_scan_that_is_lost_is_noticed_also_if_another_one_is_there_twice() -> None:
    objects = [small(number) for number in range(3)]
    expected = wanted(objects)
    assert list(difference(dict(expected), expected)) == []
    key = objects[1].key
    count, marks = expected[key]
    first, second = (json.loads(line)["mark"] for line in objects[1].body.splitlines()[:2])
    for found in ((count - 1, marks - first), (count + 1, marks + first), (count, marks - first + second)):
        (complaint,) = difference({**expected, key: found}, expected)
        assert complaint.startswith(f"{key}: ")
    missing = {name: sums for name, sums in expected.items() if name != key}
    assert len(list(difference(missing, expected))) == len(list(difference(expected, missing))) == 1


@pytest.mark.parametrize("number", range(4))
def test_what_is_given_as_damaged_is(number: int) -> None:
    given = damaged(number)
    unpack = gzip.decompress if given.key.endswith(".gz") else bz2.decompress
    with pytest.raises((EOFError, OSError, ValueError)):
        unpack(given.body)
