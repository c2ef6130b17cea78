"""What is written in Python runs: a processor on rows, faults of a function, and the notebook of the examples."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as sql

import holdfast
from holdfast.testing import run_processor

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook" / "orders.py"
ORDERS: list[dict[str, Any]] = [{"id": 1, "amount": 1.5}, {"id": 2, "amount": None}, {"id": 3, "amount": -1.0}]


def test_settings_of_a_processor_run_on_rows(spark: SparkSession) -> None:
    rows = [{"value": '{"id": 7}'}, {"value": "oops"}]
    done = run_processor({"parse_json": {"schema": "id BIGINT", "delete_source": True}}, rows, spark=spark)
    assert done.rows == [{"id": 7}]
    assert list(done.faults) == [1]
    assert "not a JSON object" in done.faults[1].reason
    assert done.faults[1].raw == "oops"


def test_rows_that_are_dropped_do_not_come_out(spark: SparkSession) -> None:
    done = run_processor({"filter": {"where": "amount > 0"}}, ORDERS, spark=spark)
    assert done.rows == [{"id": 1, "amount": 1.5}]
    assert done.faults == {}


def test_a_function_gives_faults_and_keeps_those_that_rows_have(spark: SparkSession) -> None:
    def checked(orders: DataFrame) -> DataFrame:
        missing = holdfast.fault("amount is missing", when=sql.col("amount").isNull())
        negative = sql.when(sql.col("amount") < 0, sql.concat(sql.lit("negative: "), sql.col("amount").cast("string")))
        later = holdfast.fault("is not the first reason", when=sql.col("amount").isNull())
        marked = orders.withColumn("_fault", missing).withColumn("_fault", holdfast.fault(negative))
        return marked.withColumn("_fault", later)

    done = run_processor(checked, ORDERS, "id BIGINT, amount DOUBLE", spark=spark)
    assert [row["id"] for row in done.rows] == [1]
    assert {number: fault.reason for number, fault in done.faults.items()} == {
        1: "amount is missing",
        2: "negative: -1.0",
    }
    assert {fault.kind for fault in done.faults.values()} == {"record"}


def test_what_is_wrong_with_rows_or_a_function_is_told(spark: SparkSession) -> None:
    with pytest.raises(holdfast.UsageError, match="give the columns as `schema`"):
        run_processor({"filter": {"where": "true"}}, [{"id": None}], spark=spark)
    with pytest.raises(holdfast.UsageError, match="without rows"):
        run_processor({"filter": {"where": "true"}}, [], spark=spark)
    with pytest.raises(holdfast.Refused, match="dropped _batch"):
        run_processor(lambda frame: frame.select("id"), ORDERS, "id BIGINT, amount DOUBLE", spark=spark)


def test_the_notebook_runs_from_its_first_cell_to_its_last(tmp_path: Path) -> None:
    # A process of its own, because the notebook starts Spark by itself, twice.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    done = subprocess.run(
        [sys.executable, str(NOTEBOOK)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows, faults, summary, written = done.stdout.splitlines()
    assert rows == "rows: [{'id': 1, 'cents': 150}, {'id': 3, 'cents': 25}]"
    assert faults == "faults: {1: 'amount is missing'}"
    assert summary.startswith("summary: 3 records in ")
    assert ", 1 dead letters, 0 partitions failed" in summary
    assert written == "written: [{'id': 1, 'cents': 150}, {'id': 3, 'cents': 25}]"
    letters = list((tmp_path / "build" / "notebook" / "out" / "_holdfast").rglob("deadletters/**/*"))
    assert any('"amount is missing"' in path.read_text() for path in letters if path.is_file())
