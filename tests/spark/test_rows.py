"""What goes in comes out: every record once, under the right name, or in the dead letters with its reason."""

from __future__ import annotations

import gzip
import json
import random
from typing import Any

import pytest
from pyspark.sql import functions as sql

from holdfast.flow.batch import Limits
from holdfast.leases.lease import Counts
from holdfast.processors.filter import Filter
from holdfast.spark.task import frame_of
from tests.spark.rig import Site, failed, lines, staged

pytestmark = pytest.mark.spark

SCHEMA = "id BIGINT, note STRING"


def unchanged(frame: Any) -> Any:
    return frame


def test_json_lines_become_typed_columns(site: Site) -> None:
    site.put("a.jsonl", lines(3))
    site.put("b.jsonl.gz", gzip.compress(lines(2, first=100).encode()))
    site.reading(schema=f"{SCHEMA}, missing DOUBLE")
    reports = site.run()
    assert staged(reports["a.jsonl"]).counts == Counts(processed=3, succeeded=3)
    assert staged(reports["a.jsonl"]).last
    assert staged(reports["a.jsonl"]).end == {"offset": len(lines(3))}
    site.publish(reports)
    expected = [{"id": number, "note": f"n{number % 100}", "missing": None} for number in (0, 1, 2, 100, 101)]
    assert sorted(site.rows(), key=lambda row: int(row["id"])) == expected


@pytest.mark.parametrize("codec", ["text", "jsonl"])
@pytest.mark.parametrize("form", [{"jsonl": {"compression": "zstd"}}, {"jsonl": {"compression": "gzip"}}, "parquet"])
def test_lines_without_a_schema_stay_as_they_are(site: Site, codec: str, form: Any) -> None:
    text = '{"b" : 1.50, "a":"é"}\n{"a":2}\n'
    site.put("a.jsonl.gz", gzip.compress(text.encode()))
    site.put("b.jsonl", text.replace("\n", "\r\n").removesuffix("\r\n"))
    site.reading(codec=codec, sinks={"out": form})
    site.publish(site.run())
    rows = site.rows()
    if form == "parquet":
        assert [row["value"] for row in rows] == text.splitlines() * 2
    else:
        assert rows == [json.loads(line) for line in text.splitlines()] * 2


@pytest.mark.parametrize("functions", [(), (unchanged,)], ids=["direct", "through Spark"])
def test_bad_lines_become_dead_letters_with_reason_and_origin(site: Site, functions: Any) -> None:
    good = '{"id":1,"note":"fine"}\n'
    site.put("a.jsonl", good.encode() + b'{"id":"x"}\n\nnull\n{"note":"\xff"}\n' + good.encode())
    site.reading(*functions, schema=SCHEMA, sinks={"out": "parquet", "too": "jsonl"})
    reports = site.run()
    assert staged(reports["a.jsonl"]).counts == Counts(processed=5, succeeded=2, dead=3)
    for sink in ("out", "too"):
        files = site.publish(reports, sink)
        assert site.rows(sink) == [{"id": 1, "note": "fine"}] * 2
        first, second, third = site.dead_letters(sink)
        assert first["origin"] == {"pipeline": "orders", "key": "in|a.jsonl", "item": len(good)}
        assert first["raw"] == '{"id":"x"}'
        assert "Column(/id)" in first["reason"]
        assert "not a JSON object" in second["reason"]
        assert third["encoding"] == "base64"
        letters, data = sorted(files, key=lambda file: str(file["key"]))
        assert (letters["first"], letters["rows"]) == (len(good), 3)
        assert (data["first"], data["rows"]) == (0, 2)


def test_a_batch_without_records_is_staged_without_files(site: Site) -> None:
    site.put("blank.jsonl", "\n\r\n \n")
    site.put("a.jsonl", lines(1))
    site.reading(sinks={"out": "parquet", "too": "jsonl"})
    reports = site.run()
    assert staged(reports["blank.jsonl"]).receipts == {"out": {"files": []}, "too": {"files": []}}
    assert staged(reports["blank.jsonl"]).counts == Counts()


def test_a_batch_of_which_no_row_is_left_is_staged_without_files(site: Site) -> None:
    site.put("a.jsonl", lines(5))
    site.put("b.jsonl", lines(5, first=10))
    site.reading(Filter("id >= 10"), schema=SCHEMA)
    reports = site.run()
    assert staged(reports["a.jsonl"]).receipts == {"out": {"files": []}}
    assert staged(reports["b.jsonl"]).counts == Counts(processed=5, succeeded=5)


def test_a_line_beyond_the_bound_is_a_dead_letter_of_which_the_beginning_is_kept(site: Site) -> None:
    site.put("a.jsonl", lines(1) + json.dumps({"id": "x" * 5000}) + "\n" + lines(1))
    site.reading(schema=SCHEMA, max_line_bytes=1000)
    reports = site.run()
    site.publish(reports)
    (letter,) = site.dead_letters()
    assert "longer than 1000 bytes" in letter["reason"]
    assert letter["raw"].startswith('{"id": "xxx')
    assert len(site.rows()) == 2


# --- one bad object ------------------------------------------------------------------------------------------------


def test_a_corrupt_object_fails_alone(site: Site) -> None:
    whole = gzip.compress(lines(5000).encode())
    site.put("a.jsonl", lines(3))
    site.put("cut.jsonl.gz", whole[: len(whole) // 2])
    site.put("no.gz", b"\x1f\x8b\x08\x00 this is no gzip")
    site.put("whole.jsonl.gz", whole)
    site.reading(schema=SCHEMA)
    reports = site.run()
    assert "cut.jsonl.gz: it is not a valid gzip file: it ends too early" in failed(reports["cut.jsonl.gz"]).error
    assert "gzip" in failed(reports["no.gz"]).error
    assert not failed(reports["no.gz"]).unavailable
    site.publish(reports)
    assert len(site.rows()) == 5003


def test_an_object_that_vanishes_or_changes_before_it_is_read_fails_alone(site: Site) -> None:
    for name in ("a", "gone", "grown"):
        site.put(name, lines(2))
    batches = site.batches()
    (site.root / "in" / "gone").unlink()
    site.put("grown", lines(3))
    reports = site.run(batches)
    assert "has vanished" in failed(reports["gone"]).error
    assert "has changed since it was found" in failed(reports["grown"]).error
    staged(reports["a"])


def test_what_a_failed_batch_had_staged_is_deleted(site: Site) -> None:
    site.put("cut.jsonl.gz", gzip.compress(lines(10_000).encode() * 40, 1)[:-1])
    failed(site.run()["cut.jsonl.gz"])
    assert [path for path in (site.root / "out").rglob("*") if path.is_file()] == []


def test_a_sink_that_cannot_be_written_is_unavailable_and_no_error_of_the_batch(site: Site) -> None:
    site.put("a.jsonl", lines(1))
    site.root.joinpath("out").write_text("a file where the root should be")
    report = failed(site.run()["a.jsonl"])
    assert report.unavailable
    assert "out" in report.error


# --- large files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_a_file_that_is_cut_loses_and_doubles_no_line(site: Site, seed: int) -> None:
    dice = random.Random(seed)
    ending = dice.choice(["\n", "\r\n"])
    records = [{"id": number, "note": "é" * dice.choice([0, 1, 3, 50, 700])} for number in range(dice.randint(1, 400))]
    body = ending.join(json.dumps(record, ensure_ascii=False) for record in records) + dice.choice(["", ending])
    site.put("a.jsonl", body)
    site.reading(schema=SCHEMA, split_bytes=dice.randint(40, 3000))
    batches = site.batches(Limits(max_bytes=dice.randint(200, 20_000)))
    reports = site.carried(batches)
    assert sum(staged(report).counts.succeeded for report in reports) == len(records)
    files = site.publish(reports)
    assert site.rows() == records
    at, begins = 0, []
    for line in body.encode().splitlines(keepends=True):
        begins.append(at)
        at += len(line)
    # Names say the first item of each file, so the last item of one is the line before the first of the next.
    files.sort(key=lambda file: int(file["first"]))
    assert files[0]["first"] == 0
    for file, following in zip(files, [*files[1:], None], strict=True):
        assert file["key"].endswith(f"_{file['first']:020d}.parquet")
        assert file["first"] in begins
        stop = begins.index(following["first"]) if following else len(begins)
        assert file["last"] == begins[stop - 1]
        assert file["rows"] == stop - begins.index(file["first"])


def test_a_batch_gives_the_same_files_alone_and_in_company_directly_and_through_spark(site: Site) -> None:
    for name in ("a", "b", "c"):
        site.put(name, lines(9000, first=ord(name)) + "oops\n")

    def digests(batches: list[Any]) -> dict[str, str]:
        reports = site.run(batches)
        return {file["key"]: file["sha256"] for file in staged(reports["b"]).receipts["out"]["files"]}

    site.reading(schema=SCHEMA, split_bytes=70_000)
    at_once = digests(site.batches())
    assert len(at_once) > 2
    assert digests(site.batches()[1:2]) == at_once
    site.reading(unchanged, schema=SCHEMA, split_bytes=70_000)
    assert digests(site.batches()) == at_once


# --- processors and several sinks ----------------------------------------------------------------------------------


def test_two_sinks_are_served_by_one_job(site: Site) -> None:
    site.put("a.jsonl", lines(4).replace("note", "value"))
    site.reading(schema="id BIGINT, value STRING", sinks={"out": "parquet", "too": "jsonl"})
    group = f"{site.engine.job_group}-1"
    reports = site.run()
    assert len(site.spark.sparkContext.statusTracker().getJobIdsForGroup(group)) == 1
    for sink in ("out", "too"):
        site.publish(reports, sink)
        assert site.rows(sink) == [{"id": number, "value": f"n{number}"} for number in range(4)]


def test_reading_is_one_lazy_frame_with_the_system_columns_in_front(site: Site) -> None:
    site.put("a", lines(2) + "oops\n")
    site.reading(schema=SCHEMA)
    (batch,) = site.batches()
    frame = frame_of(site.spark, site.source.read(site.spark, [batch]))
    assert frame.columns == ["_batch", "_item", "_fault", "id", "note"]
    rows = frame.orderBy("_item").collect()
    assert [(row["_batch"], row["_item"], row["id"]) for row in rows] == [
        (batch.id, 0, 0),
        (batch.id, 24, 1),
        (batch.id, 48, None),
    ]
    assert json.loads(rows[2]["_fault"])["kind"] == "record"
    assert frame_of(site.spark, site.source.read(site.spark, [])).collect() == []


def test_filters_drop_rows_and_keep_faults(site: Site) -> None:
    site.put("a.jsonl", lines(4) + "oops\n")
    site.reading(Filter("id % 2 = 1"), schema=SCHEMA)
    reports = site.run()
    assert staged(reports["a.jsonl"]).counts == Counts(processed=3, succeeded=2, dead=1, dropped=2)
    site.publish(reports)
    assert [row["id"] for row in site.rows()] == [1, 3]


def test_a_function_that_drops_faults_is_found_out_and_the_other_batches_go_on(site: Site) -> None:
    site.put("a", lines(3))
    site.put("b", lines(3) + "oops\n")
    site.put("c.gz", gzip.compress(lines(9000).encode())[:-100])

    def drops_faults(frame: Any) -> Any:
        return frame.where("id >= 0")

    site.reading(drops_faults, schema=SCHEMA)
    reports = site.run()
    assert staged(reports["a"]).counts == Counts(processed=3, succeeded=3)
    assert "1 of 1 rows with a fault are lost" in failed(reports["b"]).error
    assert "1 of 1 rows with a fault are lost" in failed(reports["c.gz"]).error


def test_a_function_may_change_columns_and_order(site: Site) -> None:
    for name in ("a", "b"):
        site.put(name, lines(300))

    def mixed(frame: Any) -> Any:
        return frame.withColumn("twice", sql.col("id") * 2).drop("note").repartition(3, "twice")

    site.reading(mixed, schema=SCHEMA)
    reports = site.run()
    files = site.publish(reports)
    assert len({file["key"] for file in files}) == len(files)
    assert sorted(row["twice"] for row in site.rows()) == sorted([number * 2 for number in range(300)] * 2)


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_odd_column_names_are_kept(site: Site, form: str) -> None:
    site.put("a.jsonl", '{"a.b":1,"c`d":2}\n')
    site.reading(schema="`a.b` INT, `c``d` INT", sinks={"out": form})
    site.publish(site.run())
    assert site.rows() == [{"a.b": 1, "c`d": 2}]


def test_rows_of_one_record_in_two_files_of_one_name_are_refused(site: Site) -> None:
    site.put("a.jsonl", lines(1))

    def torn(frame: Any) -> Any:
        return frame.withColumn("part", sql.explode(sql.array(sql.lit(1), sql.lit(2)))).repartitionByRange(2, "part")

    site.spark.conf.set("spark.sql.adaptive.enabled", "false")
    try:
        site.reading(torn, schema=SCHEMA)
        assert "keep the rows of a record together" in failed(site.run()["a.jsonl"]).error
    finally:
        site.spark.conf.unset("spark.sql.adaptive.enabled")


def exploded(frame: Any) -> Any:
    return frame.withColumn("value", sql.explode_outer(sql.split("value", ";")))


def shuffled(frame: Any) -> Any:
    return exploded(frame).repartition(2, "value")


RECORDS = ['{"n":1};{"n":2}', '{"n":3};not JSON;{"n":4}', '{"n":5}']


def test_a_record_of_several_rows_of_which_one_is_refused_is_a_letter_of_the_whole_record(site: Site) -> None:
    site.put("a.txt", "\n".join(RECORDS))
    site.reading(exploded, codec="text", sinks={"out": "jsonl"})
    reports = site.run()
    site.publish(reports)
    assert [row["n"] for row in site.rows()] == [1, 2, 5]
    assert [(letter["raw"], letter.get("form")) for letter in site.dead_letters()] == [(RECORDS[1], None)] * 3
    assert (staged(reports["a.txt"]).counts.succeeded, staged(reports["a.txt"]).counts.dead) == (3, 3)


def test_where_a_processor_moves_rows_to_other_tasks_the_letter_of_a_row_cannot_be_sent_again(site: Site) -> None:
    site.put("a.txt", "\n".join(RECORDS))
    site.reading(shuffled, codec="text", sinks={"out": "jsonl"})
    site.publish(site.run())
    assert sorted(row["n"] for row in site.rows()) == [1, 2, 3, 4, 5]
    assert [(letter["raw"], letter["form"]) for letter in site.dead_letters()] == [(RECORDS[1], "row")]
