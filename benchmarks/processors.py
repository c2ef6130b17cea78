"""Every processor on a megabyte of input, once as a single record that is made to take long and once as short records.

The peer is a figure, not a program: one second. The time is that of a whole Spark job with one task, whose code is
compiled. That the time grows in proportion to the length is a test (`tests/spark/test_hostile_records.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from benchmarks._archive_site import timed
from benchmarks.harness import Comparison, compare
from holdfast.flow.processor import Processor
from holdfast.spark.session import start_session, stop_session
from tests.spark.hostile_texts import APACHE, HOSTILE, KIB, SCHEMA, filled, processor

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SIZE = 1024 * KIB
SHORT = 145
"""Bytes of a short record."""
REPETITIONS = 5
SECOND = 1.0

JSON = filled("x", before='{"ts": 1767268800123, "user": "u", "note": "', behind='"}')
BY_FIELD = {"json": {"field": "ts", "unit": "millis"}}
BY_REGEX = {"regex": {"pattern": '"ts": (?P<ts>[0-9]+)', "unit": "millis"}}
ORDINARY: dict[str, tuple[tuple[str, dict[str, Any]], Callable[[int], str]]] = {
    "grok": (("grok", {"match": {"value": "%{COMBINEDAPACHELOG}"}}), filled("A", before=f'{APACHE}"', behind='"')),
    "key_value": (("key_value", {"include_keys": ["a", "b"]}), filled("a=1&b=2&")),
    "parse_json": (("parse_json", {"schema": "ts BIGINT, user STRING, note STRING"}), JSON),
    "date": (("date", {"match": [{"key": "value", "patterns": ["iso8601"]}]}), filled(" ", before="2026-01-01")),
    "parse, a JSON field": (("parse", {"time": BY_FIELD}), JSON),
    "parse, a JSON field behind brackets": (("parse", {"time": BY_FIELD}), filled("[", before='{"x": ')),
    "parse, a JSON field behind keys": (("parse", {"time": BY_FIELD}), filled('"a":1,', before="{", behind='"ts":1}')),
    "parse, a regular expression": (("parse", {"time": BY_REGEX}), JSON),
    "parse, a regular expression that almost matches": (("parse", {"time": BY_REGEX}), filled('"ts": ')),
    "parse, columns": (("parse", {"columns": {"json": {"schema": "ts BIGINT, user STRING, note STRING"}}}), JSON),
    "filter": (("filter", {"where": "value LIKE '%z'"}), filled("x")),
    "drop_events": (("drop_events", {"drop_when": "value LIKE '%z'"}), filled("x")),
    "sql": (("sql", {"select": ["upper(value) AS value"]}), filled("x")),
    "python": (("python", {"function": "benchmarks.processors:unchanged"}), filled("x")),
    "add_entries": (("add_entries", {"entries": [{"key": "n", "value_expression": "length(value)"}]}), filled("x")),
    "rename_keys": (("rename_keys", {"entries": [{"from_key": "value", "to_key": "text"}]}), filled("x")),
    "delete_entries": (("delete_entries", {"with_keys": ["value"]}), filled("x")),
}


def unchanged(frame: DataFrame) -> DataFrame:
    """A function for the processor `python`."""
    return frame


def run() -> list[Comparison]:
    with _session() as spark:
        found = []
        for name, ((plugin, settings), text) in {**HOSTILE, **ORDINARY}.items():
            made = processor(plugin, **settings)
            found.append(_case(spark, f"{name}, one record", made, [text(SIZE)]))
            if name in ORDINARY:
                found.append(_case(spark, f"{name}, short records", made, [text(SHORT)] * (SIZE // SHORT)))
    return found


def _case(spark: SparkSession, name: str, made: Processor, texts: list[str]) -> Comparison:
    given = [("b", number, None, text) for number, text in enumerate(texts)]
    frame = spark.createDataFrame(given, SCHEMA).coalesce(1).cache()
    frame.count()
    job = made.apply(frame).write.format("noop").mode("overwrite").save
    job()  # compiles it
    seconds = min(timed(job) for _ in range(REPETITIONS))  # what else the machine does can only slow a run down
    frame.unpersist()
    return compare("processors", name, seconds, SECOND, "seconds", "<= 1")


@contextmanager
def _session() -> Iterator[SparkSession]:
    spark = start_session("bench", {}, "local[2]")
    try:
        yield spark
    finally:
        stop_session(spark)
