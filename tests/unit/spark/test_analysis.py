"""Spark's errors as they are shown before a node joins."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pyspark.errors import AnalysisException, ParseException

from holdfast.assemble import build_pipeline
from holdfast.config import load_text
from holdfast.config.settings_file import Fragment
from holdfast.engines import check_plans
from holdfast.errors import ConfigError, PlanError, Refused, SinkUnavailable
from holdfast.events import Event, Notice
from holdfast.registry import Registry
from holdfast.spark.analysis import explained, fragment_of
from holdfast.spark.failures import planning

PARSE = """
[PARSE_SYNTAX_ERROR] Syntax error at or near 'as'. SQLSTATE: 42601 (line 1, pos 8)

== SQL ==
upper(b as x
--------^^^
"""
COLUMN = (
    "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable, or function parameter with name `stat` cannot be resolved."
    " Did you mean one of the following? [`a`, `b`]. SQLSTATE: 42703; line 1 pos 2;\n'Filter 'or(isnotnull(a#0)\n"
)


def wrong(cause: Exception) -> PlanError:
    with pytest.raises(PlanError) as raised, planning("processors", 0):
        raise cause
    return raised.value


def test_text_that_cannot_be_parsed_is_found_by_its_line() -> None:
    error = wrong(ParseException(PARSE))
    assert explained(error) == "Syntax error at or near 'as'"
    assert fragment_of(error) == Fragment("upper(b as x", 0, 0, 8)


def test_the_plan_and_the_state_are_not_shown() -> None:
    error = wrong(ParseException(COLUMN))
    assert explained(error) == (
        "A column, variable, or function parameter with name `stat` cannot be resolved. "
        "Did you mean one of the following? [`a`, `b`]"
    )


def test_the_name_of_a_route_stays() -> None:
    error = PlanError(("routes", "errors"), f"route 'errors': {COLUMN}")
    assert explained(error).startswith("route 'errors': A column, variable")


def test_a_refusal_is_shown_as_it_is() -> None:
    error = wrong(Refused("parse_json: there is no column 'x'"))
    assert explained(error) == "parse_json: there is no column 'x'"
    assert fragment_of(error) is None


def test_an_error_of_a_function_has_its_type() -> None:
    assert explained(wrong(KeyError("colour"))) == "KeyError: 'colour'"


def test_a_server_that_does_not_respond_is_not_a_wrong_setting() -> None:
    with pytest.raises(SinkUnavailable), planning("sinks", 0):
        raise SinkUnavailable("away")


# --- sources ---------------------------------------------------------------------------------------------------------

FILE = """\
pipelines:
  orders:
    source: {objects: {folder: in}}
    sinks: [files: {root: out}]
"""


class FailsToRead:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def read(self, *_: Any) -> Any:
        raise self.error


def notices_of(error: Exception) -> list[Event]:
    """What is emitted if the source raises this without batches."""
    settings, emitted = load_text(FILE, "shop.yaml", Registry.installed()), list[Event]()
    built = build_pipeline(settings.pipelines["orders"], Registry.installed())
    source: Any = FailsToRead(error)
    spark: Any = None
    check_plans(spark, settings, {"orders": replace(built, source=source)}, emitted.append)
    return emitted


def test_a_source_that_cannot_be_read_without_batches_does_not_keep_the_node_from_starting() -> None:
    (notice,) = notices_of(TypeError("reduce() of empty iterable with no initial value"))
    assert isinstance(notice, Notice)
    assert notice.message.startswith("pipeline 'orders' is not analysed")
    assert "TypeError: reduce() of empty iterable" in notice.message


@pytest.mark.parametrize("error", [Refused("no such schema"), AnalysisException(COLUMN)], ids=["ours", "of Spark"])
def test_what_a_source_or_spark_refuses_keeps_the_node_from_starting(error: Exception) -> None:
    with pytest.raises(ConfigError, match=r"shop.yaml:3:14"):
        notices_of(error)
