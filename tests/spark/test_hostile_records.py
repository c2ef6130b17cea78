"""Records that are made to hurt: each costs its own row, never the JVM, and time in proportion to its length.

The simulator has no Spark and cannot see any of this.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.flow.processor import Processor
from tests.fuzz.mutation import mutated
from tests.spark.hostile_texts import APACHE, HOSTILE, KIB, SCHEMA, processor
from tests.spark.rig import Site, failed, staged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

RUNS = 3
SHORT = 0.4
"""Seconds of CPU that any job may take."""


def rows(spark: SparkSession, made: Processor, *texts: str) -> list[dict[str, Any]]:
    given = [("b", number, None, text) for number, text in enumerate(texts)]
    return [row.asDict(recursive=True) for row in made.apply(spark.createDataFrame(given, SCHEMA)).collect()]


def reason(row: dict[str, Any]) -> str | None:
    return str(json.loads(row["_fault"])["reason"]) if row["_fault"] else None


# --- the JVM lives ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        ("%{COMBINEDAPACHELOG}", f'{APACHE}"{"A" * 500_000}"'),
        ("%{COMBINEDAPACHELOG}", APACHE + '"' + r"\"" * 250_000 + '"'),
        ("^%{UNIXPATH:path}$", "/a" * 250_000),
        ("^%{URI:uri}$", "http://h" + "/a" * 250_000),
        (r"^%{PATH:path}$", "C:" + r"\a" * 250_000),
    ],
)
def test_grok_matches_lines_of_any_length_that_it_may_look_at(spark: SparkSession, pattern: str, line: str) -> None:
    (row,) = rows(spark, processor("grok", match={"value": pattern}, max_line_bytes="1MiB"), line)
    assert reason(row) is None


@pytest.mark.parametrize("on_error", ["dead_letter", "tag"])
def test_a_line_that_is_too_long_for_grok_is_not_looked_at(spark: SparkSession, on_error: str) -> None:
    grok = processor("grok", match={"value": "%{GREEDYDATA:all}"}, on_error=on_error)
    longest, longer = rows(spark, grok, "é" * (32 * KIB), "é" * (32 * KIB) + "x")
    assert longest["all"] == "é" * (32 * KIB)
    assert reason(longest) is None
    if on_error == "tag":
        assert (longer["all"], longer["tags"]) == (None, ["failed"])
    else:
        assert reason(longer) == "grok: value has 65537 bytes, more than max_line_bytes"


def test_a_record_for_which_javas_stack_is_too_small_fails_its_batch_alone(site: Site) -> None:
    site.put("a", "ab\n")
    site.put("b", "ab" * 30_000 + "\n")
    grok = processor("grok", match={"value": "^(?<all>(?:a|b|%{INT})*)$"})
    site.reading(grok, codec="text")
    reports = site.run()
    assert failed(reports["b"]).error.startswith("StackOverflowError: an expression recurses too deep for a record")
    staged(reports["a"])
    assert site.spark.range(3).count() == 3


@pytest.mark.parametrize("settings", [{"schema": "id INT"}, {"destination": "map"}, {"schema": "x STRING"}])
@pytest.mark.parametrize(
    "text",
    [
        '{"id": 1, "x": ' + "[" * 300_000 + "]" * 300_000 + "}",
        '{"x": ' * 100_000 + "1" + "}" * 100_000,
        '{"id": 1, "x": ' + "[" * 500_000,
    ],
    ids=["arrays", "objects", "unclosed"],
)
def test_json_that_is_nested_too_deep_is_a_fault(spark: SparkSession, settings: Any, text: str) -> None:
    bad, good = rows(spark, processor("parse_json", **settings), text, '{"id": 1}')
    assert str(reason(bad)).startswith("parse_json: value is not a JSON object")
    assert reason(good) is None


TEXTS = {
    "grok": [
        f'{APACHE}"Mozilla/5.0 (X11; Linux)"',
        "2026-01-01T00:00:00Z host app[17]: héllo wörld",
        "/a/b 1.2.3.4 -7e5",
    ],
    "key_value": ["a=1&b=two&c=&d", " a = 1 & a = 2 ", "a=&=b&&=="],
    "parse_json": ['{"id": 1, "x": {"y": [1, null, "z"]}, "t": "2026-01-01"}', '{"id": "1", "id": 2}'],
    "date": ["2026-01-01T12:00:00.5+01:00", "01/Jan/2026:12:00:00 +0100", "1767268800123", "2026-01-01"],
}
PATTERN = (
    "%{COMBINEDAPACHELOG}|%{TIMESTAMP_ISO8601:t} %{HOSTNAME:h} %{GREEDYDATA:m}|%{PATH:p} %{IP:i} %{NUMBER:n:double}"
)
FUZZED: dict[str, list[dict[str, Any]]] = {
    "grok": [{"match": {"value": PATTERN}}],
    "key_value": [{"destination": "map"}, {"include_keys": ["a", "b"]}],
    "parse_json": [{"schema": "id BIGINT, x STRUCT<y: ARRAY<STRING>>, t TIMESTAMP"}, {"destination": "map"}],
    "date": [
        {"match": [{"key": "value", "patterns": ["epoch_milli", "iso8601", "dd/MMM/yyyy:HH:mm:ss Z"]}]},
        {"match": [{"key": "value", "patterns": ["epoch_nano", "yyyy-MM-dd"]}], "source_timezone": "Europe/Berlin"},
    ],
}
TOKENS = [
    b"=",
    b"&",
    b'"',
    b"\\",
    b"[",
    b"{",
    b"\x00",
    b"\xff",
    b"\xed\xa0\x80",
    b"9999-12-31",
    b"+18:01",
    b"1e999",
    b" ",
]


@pytest.mark.parametrize("name", FUZZED)
def test_no_text_fails_the_job(spark: SparkSession, name: str) -> None:
    seeds = [text.encode() for text in TEXTS[name]]
    texts = [
        mutated(random.Random(f"{name} {number}"), seeds, TOKENS).decode("utf-8", "replace") for number in range(800)
    ]
    frame = spark.createDataFrame([("b", item, None, text) for item, text in enumerate([*TEXTS[name], *texts])], SCHEMA)
    for settings in FUZZED[name]:
        made = processor(name, **settings).apply(frame)
        # All columns are made, and none is brought here: Python has no years after 9999.
        made.write.format("noop").mode("overwrite").save()
        assert made.count() == len(TEXTS[name]) + len(texts)


# --- time ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HOSTILE)
def test_a_record_takes_time_in_proportion_to_its_length(spark: SparkSession, name: str) -> None:
    (plugin, settings), text = HOSTILE[name]
    made = processor(plugin, **settings)
    rows(spark, made, text(KIB))  # compiles the job
    before = _cpu_of(spark, made, text(64 * KIB))
    for size in (256 * KIB, 1024 * KIB):
        now = _cpu_of(spark, made, text(size))
        # Four times the length; sixteen times the time if it grew with the square. What a job costs anyway is added.
        assert now < 7 * before + SHORT, f"{size} bytes took {now:.2f} s, a quarter of it {before:.2f} s"
        before = now


def _cpu_of(spark: SparkSession, made: Processor, text: str) -> float:
    """Seconds of CPU that the JVM takes for the record: the least of several runs, or the first that is short."""
    frame = spark.createDataFrame([("b", 0, None, text)], SCHEMA).cache()
    frame.count()
    taken: list[float] = []
    while len(taken) < RUNS and min(taken, default=SHORT) >= SHORT:
        before = _cpu_of_jvm(spark)
        made.apply(frame).write.format("noop").mode("overwrite").save()
        taken.append(_cpu_of_jvm(spark) - before)
    frame.unpersist()
    return min(taken)


def _cpu_of_jvm(spark: SparkSession) -> float:
    """Seconds that all threads of the JVM have used."""
    gateway: Any = spark.sparkContext._gateway
    fields = Path(f"/proc/{gateway.proc.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
