"""Before a node joins, every part of a pipeline is analysed on a frame without rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.assemble import build_pipeline
from holdfast.config import load_text
from holdfast.engines import check_plans
from holdfast.errors import ConfigError
from holdfast.registry import Registry
from holdfast.sinks.files.staging import FilesStager

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

FILE = """\
pipelines:
  orders:
    source:
      objects:
        folder: {folder}
        schema: {schema}
    processors: {processors}
    routes: {routes}
    sinks:
      - {sink}
"""
FILES = "files: {root: out, format: jsonl}"
SEARCH = 'opensearch: {hosts: ["http://127.0.0.1:9200"], index: "orders-{tenant}", document_id: "{id}"}'


def drops_batch(frame: Any) -> Any:
    return frame.drop("_batch")


def uses_unknown_column(frame: Any) -> Any:
    return frame.withColumn("total", frame["prize"] * 2)


def shown(spark: SparkSession, folder: Path, **given: str) -> str | None:
    """`line:column message` of what is wrong."""
    parts = {"schema": "id BIGINT, status INT", "processors": "[]", "routes": "{}", "sink": FILES, **given}
    settings = load_text(FILE.format(folder=folder, **parts), "shop.yaml", Registry.installed())
    built = {name: build_pipeline(chosen, Registry.installed()) for name, chosen in settings.pipelines.items()}
    try:
        check_plans(spark, settings, built, lambda _event: None)
    except ConfigError as error:
        ((mark, message),) = error.problems
        assert mark is not None
        return f"{mark.line}:{mark.column} {message}"
    finally:
        for pipeline in built.values():
            pipeline.close()
    return None


@pytest.mark.parametrize(
    ("given", "begins"),
    [
        ({}, None),
        ({"processors": "[filter: {where: id > 3}, sql: {select: ['*', status AS code]}]"}, None),
        ({"sink": SEARCH, "schema": "id BIGINT, tenant STRING"}, None),
        (
            {"processors": "[filter: {where: id > 3 AND stat = 5}]"},
            "7:45 A column, variable, or function parameter with",
        ),
        ({"processors": "[filter: {where: id >}]"}, "7:38 Syntax error at or near end of input"),
        ({"processors": "[filter: {where: status}]"}, "7:18 Cannot resolve"),
        ({"processors": "[sql: {select: ['*', uper(id) AS i]}]"}, "7:38 Cannot resolve routine `uper`"),
        ({"processors": "[sql: {query: SELECT id FROM records}]"}, "7:18 sql: the query dropped _batch"),
        ({"processors": "[parse_json: {source: valeu, schema: x INT}]"}, "7:39 parse_json: there is no column 'valeu'"),
        ({"processors": "[python: {function: 'tests.spark.test_analysis:drops_batch'}]"}, "7:18 tests.spark"),
        (
            {"processors": "[python: {function: 'tests.spark.test_analysis:uses_unknown_column'}]"},
            "7:18 A column, variable, or function parameter with name `prize`",
        ),
        ({"routes": "{bad: stats > 3}", "sink": f"{FILES}\n        routes: [bad]"}, "8:19 route 'bad': A column"),
        (
            {"routes": "{bad: id + 1}", "sink": f"{FILES}\n        routes: [bad]"},
            "8:14 route 'bad' must be true or false",
        ),
        ({"schema": "id BIGINTT"}, '6:20 Unsupported data type "BIGINTT"'),
        ({"processors": "[sql: {select: ['*', status AS id]}]"}, "2:3 two columns have the same name"),
        ({"sink": SEARCH}, "10:63 a template names 'tenant', and there is no such column"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_shown_where_it_is(
    spark: SparkSession, tmp_path: Path, given: dict[str, str], begins: str | None
) -> None:
    found = shown(spark, tmp_path, **given)
    assert found == begins if begins is None or found is None else found.startswith(begins), found


def test_an_expression_of_a_sink_that_does_not_fit_is_a_problem_of_the_pipeline(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql import functions as sql

    monkeypatch.setattr(FilesStager, "columns", lambda *_: {"total": sql.col("prize")})
    found = shown(spark, tmp_path, processors="[filter: {where: id > 3}]")
    assert found is not None
    assert found.startswith("2:3 A column, variable, or function parameter with name `prize`"), found
