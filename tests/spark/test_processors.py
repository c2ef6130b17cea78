"""Processors of expressions: what comes out of a row, and what becomes of rows on which one fails."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.errors import Refused
from holdfast.flow.processor import Processor
from holdfast.leases.lease import Counts
from holdfast.processors.grok import SEPARATOR
from holdfast.processors.key_value import MAX_LOOKED_UP
from holdfast.processors.python import PythonFunction
from holdfast.registry import Registry
from holdfast.spark.job import by_number_and_name, processed
from holdfast.spark.row_counts import ProcessorCounts
from tests.spark.rig import Site, failed, staged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SYSTEM = "_batch STRING, _item BIGINT, _fault STRING"
APACHE = '1.2.3.4 - bob [10/Oct/2000:13:55:36 -0700] "GET /a.gif HTTP/1.0" 200 2326'


def processor(name: str, **settings: Any) -> Processor:
    plugin = Registry.installed().get("processors", name)
    made: Processor = plugin.build(plugin.config(**settings))
    return made


def _counts(spark: SparkSession, *processors: Processor) -> ProcessorCounts:
    return ProcessorCounts(spark, by_number_and_name(processors))


class Bench:
    """Rows through processors, as a round takes them."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def rows(self, *processors: Processor, schema: str = "value STRING", given: list[Any]) -> list[dict[str, Any]]:
        system = [("b", number, None) for number in range(len(given))]
        cells = [row if isinstance(row, tuple) else (row,) for row in given]
        frame = self._spark.createDataFrame(
            [(*first, *then) for first, then in zip(system, cells, strict=True)], f"{SYSTEM}, {schema}"
        )
        return [row.asDict(recursive=True) for row in processed(_counts(self._spark, *processors), frame).collect()]

    def data(self, *processors: Processor, schema: str = "value STRING", given: list[Any]) -> list[dict[str, Any]]:
        """The data columns of rows of which none may fail."""
        rows = self.rows(*processors, schema=schema, given=given)
        assert [row["_fault"] for row in rows] == [None] * len(rows)
        return [{name: cell for name, cell in row.items() if not name.startswith("_")} for row in rows]


@pytest.fixture
def bench(spark: SparkSession) -> Bench:
    return Bench(spark)


# --- parse_json ------------------------------------------------------------------------------------------------------


def test_json_becomes_columns_by_its_schema(bench: Bench) -> None:
    parse = processor("parse_json", schema="id BIGINT, at STRUCT<x: INT>", delete_source=True)
    assert bench.data(parse, given=['{"id": 1, "at": {"x": 2}, "other": 3}', "{}", None]) == [
        {"id": 1, "at": {"x": 2}},
        {"id": None, "at": None},
        {"id": None, "at": None},
    ]


def test_json_becomes_a_struct_or_a_map_in_its_destination(bench: Bench) -> None:
    by_schema = processor("parse_json", schema="id INT", destination="a")
    as_map = processor("parse_json", destination="b")
    (row,) = bench.data(by_schema, as_map, given=['{"id": 1, "more": {"x": [1]}}'])
    assert row["a"] == {"id": 1}
    assert row["b"] == {"id": "1", "more": '{"x":[1]}'}


def test_bytes_are_taken_for_text(bench: Bench) -> None:
    parse = processor("parse_json", schema="id INT", delete_source=True)
    assert bench.data(parse, schema="value BINARY", given=[b'{"id": 7}']) == [{"id": 7}]


NO_OBJECTS = ["nonsense", "[1]", "null", "3", "", '{"id": 1}{"id": 2}', '{"id": 1} and more', '{"id": 1']
BY_SCHEMA, TO_MAP = {"schema": "id INT"}, {"destination": "map"}


@pytest.mark.parametrize(
    ("settings", "text"),
    [*((settings, text) for settings in (BY_SCHEMA, TO_MAP) for text in NO_OBJECTS), (BY_SCHEMA, '{"id": "x"}')],
)
def test_what_is_no_json_object_is_a_fault_with_the_record(bench: Bench, settings: Any, text: str) -> None:
    (row,) = bench.rows(processor("parse_json", **settings), given=[text])
    assert json.loads(row["_fault"]) == {
        "kind": "record",
        "reason": "parse_json: value is not a JSON object" + " that fits the schema" * ("schema" in settings),
        "raw": text,
    }


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"on_error": "keep"}, [{"id": 1}, {"id": None}]),
        ({"on_error": "tag"}, [{"id": 1, "tags": []}, {"id": None, "tags": ["failed"]}]),
        (
            {"on_error": "tag", "tags_on_failure": ["a", "b"]},
            [{"id": 1, "tags": []}, {"id": None, "tags": ["a", "b"]}],
        ),
    ],
)
def test_rows_that_failed_may_be_kept_and_tagged(bench: Bench, settings: Any, expected: Any) -> None:
    parse = processor("parse_json", schema="id INT", delete_source=True, **settings)
    assert bench.data(parse, given=['{"id": 1}', "x"]) == expected


def test_a_condition_leaves_other_rows_as_they_are(bench: Bench) -> None:
    parse = processor("parse_json", schema="id INT", when="value LIKE '{%'")
    assert bench.data(parse, given=['{"id": 1}', "x"]) == [{"value": '{"id": 1}', "id": 1}, {"value": "x", "id": None}]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"schema": "id INT", "source": "valu"}, "parse_json: there is no column 'valu'; did you mean 'value'?"),
        ({"schema": "id NONSENSE"}, "parse_json: schema 'id NONSENSE' cannot be read"),
        ({"schema": "_fault STRING"}, "parse_json: the name _fault is reserved for holdfast"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_runs(bench: Bench, settings: Any, reason: str) -> None:
    with pytest.raises(Refused, match=reason.replace("?", r"\?")):
        bench.rows(processor("parse_json", **settings), given=["{}"])


# --- grok ------------------------------------------------------------------------------------------------------------


def test_a_line_of_a_web_server_becomes_columns(bench: Bench) -> None:
    (row,) = bench.data(processor("grok", match={"value": "%{COMMONAPACHELOG}"}), given=[APACHE])
    assert row == {
        "value": APACHE,
        "clientip": "1.2.3.4",
        "ident": "-",
        "auth": "bob",
        "timestamp": "10/Oct/2000:13:55:36 -0700",
        "verb": "GET",
        "request": "/a.gif",
        "httpversion": "1.0",
        "rawrequest": None,
        "response": "200",
        "bytes": "2326",
    }


def test_the_first_pattern_that_matches_counts(bench: Bench) -> None:
    patterns = ["took %{NUMBER:seconds:double}s", "%{WORD:word} took %{GREEDYDATA:rest}"]
    first, second = bench.data(processor("grok", match={"value": patterns}), given=["it took 1.5s", "it took long"])
    assert (first["seconds"], first["word"], first["rest"]) == (1.5, None, None)
    assert (second["seconds"], second["word"], second["rest"]) == (None, "it", "long")


def test_fields_may_go_into_one_column(bench: Bench) -> None:
    grok = processor("grok", match={"value": "%{INT:n:int}"}, target_key="found", on_error="keep")
    rows = bench.data(grok, given=["x 12", "y", "99999999999"])
    assert [row["found"] for row in rows] == [{"n": 12}, {"n": None}, {"n": None}]


def test_groups_of_own_patterns_do_not_shift_the_fields(bench: Bench) -> None:
    grok = processor("grok", match={"value": r"(a|b)%{KEY:key}=%{INT:n:int}"}, pattern_definitions={"KEY": r"(x(y)?)+"})
    (row,) = bench.data(grok, given=["bxyx=5"])
    assert (row["key"], row["n"]) == ("xyx", 5)


def test_fields_may_hold_any_character(bench: Bench) -> None:
    grok = processor("grok", match={"value": "%{DATA:a};%{GREEDYDATA:b}"})
    (row,) = bench.data(grok, given=[f"x{SEPARATOR}y;$1{SEPARATOR}\\"])
    assert (row["a"], row["b"]) == (f"x{SEPARATOR}y", f"$1{SEPARATOR}\\")


def test_a_text_without_a_match_or_with_another_type_is_a_fault(bench: Bench) -> None:
    grok = processor("grok", match={"value": "%{WORD:name} %{NUMBER:n:int}"})
    rows = bench.rows(grok, given=["a 1", "nothing", "a 1.5", None])
    reasons = [json.loads(row["_fault"])["reason"] if row["_fault"] else None for row in rows]
    assert reasons == [None, "grok: no pattern matches value", "grok: n is not of type int: 1.5", None]


def test_an_expression_that_java_does_not_take_is_refused(bench: Bench) -> None:
    with pytest.raises(Refused, match="is not a regular expression"):
        bench.rows(processor("grok", match={"value": "%{WORD:a} (["}), given=["x"])


# --- date ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "text", "zone", "expected"),
    [
        ("dd/MMM/yyyy:HH:mm:ss Z", "10/Oct/2000:13:55:36 -0700", "UTC", datetime(2000, 10, 10, 20, 55, 36, tzinfo=UTC)),
        ("yyyy-MM-dd HH:mm", "2026-07-01 12:00", "UTC", datetime(2026, 7, 1, 12, tzinfo=UTC)),
        ("yyyy-MM-dd HH:mm", "2026-07-01 12:00", "Europe/Berlin", datetime(2026, 7, 1, 10, tzinfo=UTC)),
        ("yyyy-MM-dd HH:mm XXX", "2026-07-01 12:00 +01:00", "Asia/Tokyo", datetime(2026, 7, 1, 11, tzinfo=UTC)),
        ("iso8601", "2026-07-01T12:00:00.25Z", "Asia/Tokyo", datetime(2026, 7, 1, 12, 0, 0, 250000, tzinfo=UTC)),
        ("iso8601", "2026-07-01T12:00:00", "Asia/Tokyo", datetime(2026, 7, 1, 3, tzinfo=UTC)),
        ("epoch_second", "1700000000.5", "UTC", datetime(2023, 11, 14, 22, 13, 20, 500000, tzinfo=UTC)),
        ("epoch_milli", "1700000000123", "UTC", datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC)),
        ("epoch_micro", "1700000000123456", "UTC", datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=UTC)),
        ("epoch_nano", "1700000000123456789", "UTC", datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=UTC)),
    ],
)
def test_times_are_read_as_they_are_written(
    bench: Bench, pattern: str, text: str, zone: str, expected: datetime
) -> None:
    match = [{"key": "value", "patterns": ["HH:mm", pattern]}]
    date = processor("date", match=match, destination="at", source_timezone=zone)
    as_text = processor("sql", select=["date_format(at, \"yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX\") AS at"])
    (row,) = bench.data(date, as_text, given=[text])
    assert datetime.fromisoformat(row["at"]) == expected


def test_the_first_column_that_is_not_null_counts_and_no_time_is_a_fault(bench: Bench) -> None:
    match = [{"key": "a", "patterns": "epoch_second"}, {"key": "b", "patterns": ["yyyy"]}]
    date = processor("date", match=match, destination="at")
    as_text = processor("sql", select=["year(at) AS at"])
    rows = bench.rows(
        date, as_text, schema="a BIGINT, b STRING", given=[(0, "2026"), (None, "2026"), (None, "x"), (None, None)]
    )
    assert [row["at"] for row in rows] == [1970, 2026, None, None]
    assert [json.loads(row["_fault"]) if row["_fault"] else None for row in rows] == [
        None,
        None,
        {"kind": "record", "reason": "date: b is not a time: x", "raw": '{"b":"x"}', "form": "columns"},
        None,
    ]


# --- columns ---------------------------------------------------------------------------------------------------------


def test_columns_are_renamed_deleted_and_added(bench: Bench) -> None:
    rename = processor("rename_keys", entries=[{"from_key": "a", "to_key": "x.y"}])
    delete = processor("delete_entries", with_keys=["b"])
    add = processor(
        "add_entries",
        entries=[
            {"key": "site", "value": "here"},
            {"key": "twice", "value_expression": "`x.y` * 2", "add_when": "`x.y` > 1"},
            {"key": "c", "value": "none"},
            {"key": "twice", "value": 0, "overwrite_if_key_exists": True, "add_when": "twice IS NULL"},
        ],
    )
    assert bench.data(rename, delete, add, schema="a INT, b INT, c STRING", given=[(1, 2, None), (3, 4, "kept")]) == [
        {"x.y": 1, "c": "none", "site": "here", "twice": 0},
        {"x.y": 3, "c": "kept", "site": "here", "twice": 6},
    ]


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        ("rename_keys", {"entries": [{"from_key": "x", "to_key": "y"}]}, "no column 'x'"),
        ("rename_keys", {"entries": [{"from_key": "a", "to_key": "b"}]}, "there is a column 'b' already"),
        ("rename_keys", {"entries": [{"from_key": "a", "to_key": "_item"}]}, "_item is reserved for holdfast"),
        ("delete_entries", {"with_keys": ["x"]}, "no column 'x'"),
        ("delete_entries", {"with_keys": ["_fault"]}, "_fault is reserved for holdfast"),
        ("add_entries", {"entries": [{"key": "_batch", "value": 1}]}, "_batch is reserved for holdfast"),
        ("sql", {"query": "SELECT a FROM records"}, "the query dropped _batch, _item, _fault"),
    ],
)
def test_changes_that_cannot_be_are_refused(bench: Bench, name: str, settings: Any, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        bench.rows(processor(name, **settings), schema="a INT, b INT", given=[(1, 2)])


def test_rows_are_dropped_by_a_condition_of_which_null_is_not_true(bench: Bench) -> None:
    drop = processor("drop_events", drop_when="value = 'x'")
    assert bench.data(drop, given=["x", "y", None]) == [{"value": "y"}, {"value": None}]


# --- sql -------------------------------------------------------------------------------------------------------------


def test_expressions_keep_what_is_holdfasts(bench: Bench) -> None:
    sql = processor("sql", select=["*", "upper(value) AS big"], where="value <> 'x'")
    assert bench.data(sql, given=["x", "y"]) == [{"value": "y", "big": "Y"}]


def test_a_query_sees_the_records_and_leaves_no_view_behind(bench: Bench, spark: SparkSession) -> None:
    sql = processor("sql", query="SELECT r.*, explode(split(value, ',')) AS part FROM records r")
    assert [row["part"] for row in bench.data(sql, given=["a,b"])] == ["a", "b"]
    assert not spark.catalog.tableExists("records")


# --- key_value -------------------------------------------------------------------------------------------------------


def test_pairs_become_a_map_of_which_the_first_value_counts(bench: Bench) -> None:
    to_map = processor("key_value", destination="map", field_split_characters="&;", when="value <> 'skip'")
    rows = bench.data(to_map, given=["a=1&b=x=y; c =  & a=2&&flag", "", None, "skip"])
    assert [row["map"] for row in rows] == [{"a": "1", "b": "x=y", "c": "", "flag": None}, {}, None, None]


@pytest.mark.parametrize("keys", [1, MAX_LOOKED_UP, MAX_LOOKED_UP + 1])
def test_of_keys_that_come_twice_the_first_value_counts(bench: Bench, keys: int) -> None:
    text = "&".join(f"k{number % keys}={number}" for number in range(2 * keys))
    (row,) = bench.data(processor("key_value", destination="map"), given=[text])
    assert row["map"] == {f"k{number}": str(number) for number in range(keys)}


def test_pairs_become_columns(bench: Bench) -> None:
    to_columns = processor("key_value", include_keys=["a", "b"], field_split_characters=" ", value_split_characters=":")
    rows = bench.rows(to_columns, given=["a:1 c:2", "no pair"])
    assert [(row["a"], row["b"]) for row in rows] == [("1", None), (None, None)]
    assert json.loads(rows[1]["_fault"])["reason"] == "key_value: value has no pair of key and value"


# --- in a round ------------------------------------------------------------------------------------------------------


def test_a_letter_holds_the_record_as_it_was_read_whatever_processors_made_of_it(site: Site) -> None:
    site.put("a.log", f"{APACHE}\nnonsense\n{APACHE.replace('Oct', 'XXX')}\n")
    site.reading(
        processor("grok", match={"value": "%{NOTSPACE:client}(?: .*\\[%{DATA:at}\\])?"}),
        processor("delete_entries", with_keys=["value"]),
        processor("add_entries", entries=[{"key": "at", "value": "missing"}]),
        processor("date", match=[{"key": "at", "patterns": ["dd/MMM/yyyy:HH:mm:ss Z"]}], destination="time"),
        codec="text",
    )
    reports = site.run()
    assert staged(reports["a.log"]).counts == Counts(processed=3, succeeded=1, dead=2)
    site.publish(reports)
    assert [letter["raw"] for letter in site.dead_letters()] == ["nonsense", APACHE.replace("Oct", "XXX")]
    assert "form" not in site.dead_letters()[0]
    (row,) = site.rows()
    assert row["time"] == datetime(2000, 10, 10, 20, 55, 36, tzinfo=UTC)


def test_a_letter_of_typed_columns_holds_the_line_that_they_were_read_from(site: Site) -> None:
    site.put("a.jsonl", '{"id": 1, "at": "2026"}\n{"id": 2, "at": "x", "more": 1}\n')
    site.reading(
        processor("rename_keys", entries=[{"from_key": "at", "to_key": "when"}]),
        processor("date", match=[{"key": "when", "patterns": ["yyyy"]}], destination="time"),
        schema="id INT, at STRING",
    )
    site.publish(site.run())
    (letter,) = site.dead_letters()
    assert (letter["raw"], letter.get("form")) == ('{"id": 2, "at": "x", "more": 1}', None)
    assert (letter["source"]["path"], letter["source"]["item"]) == (str(site.root / "in" / "a.jsonl"), 24)


def test_a_long_record_is_cut_and_tells_its_size(bench: Bench) -> None:
    (row,) = bench.rows(processor("parse_json", schema="a INT"), given=["x" * 100_000])
    fault = json.loads(row["_fault"])
    assert (len(fault["raw"]), fault["size"]) == (64 * 1024, 100_000)


def test_bytes_that_are_no_text_are_kept_in_base64(bench: Bench) -> None:
    (row,) = bench.rows(processor("parse_json", schema="a INT"), schema="value BINARY", given=[b"\xff\xfe"])
    fault = json.loads(row["_fault"])
    assert (fault["raw"], fault["encoding"]) == ("//4=", "base64")


@pytest.mark.parametrize(
    ("name", "settings", "form", "row"),
    [
        ("filter", {"where": "true"}, None, None),
        ("add_entries", {"entries": [{"key": "value", "value": "9?", "overwrite_if_key_exists": True}]}, None, "9?"),
        ("sql", {"query": "SELECT *, 1 AS one FROM records"}, None, "9!"),
    ],
)
def test_a_row_that_a_sink_refuses_is_kept_as_the_record_that_it_was(
    site: Site, name: str, settings: Any, form: str | None, row: str | None
) -> None:
    site.put("a.log", "9!\n")
    site.reading(processor(name, **settings), codec="text", sinks={"out": {"text": {"delimiter": "9"}}})
    site.publish(site.run())
    (letter,) = site.dead_letters()
    assert (letter["raw"], letter.get("form"), letter.get("row")) == ("9!", form, row)


def test_a_setting_that_spark_refuses_fails_the_batch_with_its_reason(site: Site) -> None:
    site.put("a.log", "x\n")
    site.reading(processor("delete_entries", with_keys=["other"]), codec="text")
    assert "there is no column 'other'" in failed(site.run()["a.log"]).error


# --- what processors drop --------------------------------------------------------------------------------------------

AMOUNTS = '{"amount": 5}\nthis is no JSON\n{"amount": 7}\n{"amount": -1}\n{"amount": 0}\n'


def only_positive(orders: Any) -> Any:
    return orders.where("amount > 0")


def only_positive_or_faulty(orders: Any) -> Any:
    return orders.where("amount > 0 OR _fault IS NOT NULL")


def looking_twice(orders: Any) -> Any:
    """A function that runs queries of its own, and keeps its rows in memory."""
    kept = orders.where("amount > 0 OR _fault IS NOT NULL").cache()
    assert kept.count() > 0
    assert not orders.isEmpty()
    return kept


def twice(orders: Any) -> Any:
    return orders.union(orders)


PARSED = {"schema": "amount BIGINT"}


def test_a_fault_of_one_processor_that_another_drops_fails_the_batch_and_names_it(site: Site) -> None:
    site.put("a", AMOUNTS)
    site.put("b", '{"amount": 5}\n')
    site.reading(processor("parse_json", **PARSED), only_positive, codec="text", sinks={"out": "jsonl"})
    reports = site.run()
    error = failed(reports["a"]).error
    assert "1 of 1 rows with a fault are lost in processor 2-python tests:only_positive" in error
    assert staged(reports["b"]).counts == Counts(1, 1)


@pytest.mark.parametrize(
    ("chain", "dropped"),
    [
        ([only_positive_or_faulty], {"2-python tests:only_positive_or_faulty": 2}),
        ([looking_twice], {"2-python tests:looking_twice": 2}),
        ([("filter", {"where": "amount > 0"})], {"2-filter": 2}),
        (
            [("drop_events", {"drop_when": "amount < 0"}), ("sql", {"select": ["*"], "where": "amount < 7"})],
            {"2-drop_events": 1, "3-sql": 1},
        ),
        (
            [
                ("sql", {"query": "SELECT * FROM records WHERE amount <> 5 OR _fault IS NOT NULL"}),
                ("rename_keys", {"entries": [{"from_key": "amount", "to_key": "cents"}]}),
                ("filter", {"where": "cents >= 0"}),
            ],
            {"2-sql": 1, "4-filter": 1},
        ),
        ([twice], {}),
    ],
)
def test_good_rows_that_a_processor_drops_are_counted(site: Site, chain: Any, dropped: Any) -> None:
    site.put("a", AMOUNTS)
    processors = [step if callable(step) else processor(step[0], **step[1]) for step in chain]
    site.reading(processor("parse_json", **PARSED), *processors, codec="text", sinks={"out": "parquet"})
    (report,) = site.run().values()
    assert staged(report).dropped == dropped
    assert staged(report).counts.dropped == sum(dropped.values())
    assert staged(report).counts.dead == (2 if chain == [twice] else 1)


@pytest.mark.parametrize(
    ("names", "observed"),
    [
        (["python"], 0),
        (["parse_json", "filter"], 0),
        (["filter", "parse_json"], 0),
        (["parse_json", "python"], 1),
        (["filter", "parse_json", "python"], 1),
        (["filter", "filter"], 1),
    ],
)
def test_spark_counts_only_where_nothing_else_tells(spark: SparkSession, names: list[str], observed: int) -> None:
    made = {
        "python": PythonFunction("tests:only_positive", only_positive),
        "parse_json": processor("parse_json", **PARSED),
        "filter": processor("filter", where="_item > 0"),
    }
    frame = spark.createDataFrame([], f"{SYSTEM}, value STRING, amount BIGINT")
    plan = processed(_counts(spark, *(made[name] for name in names)), frame)._jdf.queryExecution().toString()
    assert plan.partition("== Optimized")[0].count("CollectMetrics") == 2 * observed
