"""Settings that cannot be are refused with a reason, and reading them loads nothing heavy."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from holdfast.config import load_text
from holdfast.errors import ConfigError, UsageError
from holdfast.processors.parse import PLUGIN
from holdfast.registry import Registry

JSON_TIME = {"json": {"field": "t", "unit": "seconds"}}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"time": {}}, "needs exactly one of"),
        ({"time": {"kafka": {}, **JSON_TIME}}, "needs exactly one of"),
        ({"time": {"json": {"field": "t"}}}, "needs either unit or format"),
        ({"time": {"json": {"field": "t", "unit": "seconds", "format": "%Y-%j"}}}, "needs either unit or format"),
        ({"time": {"json": {"field": "a..b", "unit": "seconds"}}}, "names with '.' between them"),
        ({"time": {"json": {"field": "t", "format": "%Y-%q"}}}, "has the unknown directive %q"),
        ({"time": {"json": {"field": "t", "format": "%H"}}}, "must have %Y"),
        ({"time": {"json": {"field": "t", "format": "%Y-%j%"}}}, "single '%'"),
        ({"time": {"json": {"field": "t", "format": "%Y-%j %Y"}}}, "not have a directive twice"),
        ({"time": {"regex": {"pattern": "(", "unit": "seconds"}}}, "is not a regular expression"),
        ({"time": {"regex": {"pattern": "(a)", "unit": "seconds"}}}, "every group of pattern needs a name"),
        ({"time": {"regex": {"pattern": "a", "unit": "seconds"}}}, "pattern needs one group"),
        ({"time": {"regex": {"pattern": "(?P<a>.)", "group": "b", "unit": "seconds"}}}, "no group 'b'"),
        ({"time": {"avro": {"field": "t"}}}, "either schema_file or registry"),
        ({"time": {"avro": {"field": "t", "registry": {"url": "ftp://x"}}}}, "url"),
        ({"time": {"avro": {"field": "t", "registry": {"url": "http://x", "user": "me"}}}}, "allow_http_login: true"),
        ({"time": "kafka", "zone": "Mars/Base"}, "is not a time zone"),
        ({"time": "kafka", "template": "fixed"}, "must have at least one of"),
        ({"time": "kafka", "template": "/%Y"}, "before and after every '/'"),
        ({"constant": "a//b"}, "before and after every '/'"),
        ({"time": "kafka", "min_year": 2030, "max_year": 2020}, "min_year is after max_year"),
        ({"time": "kafka", "order": ["time", "time"]}, "order must name each of time once"),
        ({"names": {"time": {"json": {"field": "t"}}}}, "use another key"),
        ({"keep": ["key"]}, "keep needs columns"),
        ({"time": "kafka", "python": "a:b"}, "no other setting can give them"),
        ({"python": "a"}, "must be module:name"),
        ({"time": "kafka", "topics": [{"match": "a", "order": ["x"]}]}, "topics that match 'a': order must name"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError) as refused:
        PLUGIN.config(**settings)
    assert reason in str(refused.value)


@pytest.mark.parametrize("more", [{"url": "https://x"}, {"url": "http://localhost:8081"}, {"allow_http_login": True}])
def test_a_registry_may_be_given_a_password(more: dict[str, Any]) -> None:
    login = {"url": "http://x", "user": "me", "password": "p", **more}
    PLUGIN.config(time={"avro": {"field": "t", "registry": login}})


def test_an_error_stands_at_its_place_in_the_file() -> None:
    text = """
pipelines:
  archive:
    source:
      objects: {folder: in}
    processors:
      - parse:
          time:
            json: {field: t, unit: weeks}
    sinks:
      - files: {root: out}
"""
    with pytest.raises(ConfigError, match="expected 'seconds', 'millis'") as refused:
        load_text(text, "pipeline.yaml", Registry.installed())
    assert "pipeline.yaml:9:" in str(refused.value)


def test_an_expression_that_only_python_knows_is_told_at_the_start() -> None:
    settings = {"time": {"regex": {"pattern": r"(?P<t>\d+)(?=x)", "unit": "seconds"}}}
    with pytest.raises(UsageError, match="is not supported"):
        PLUGIN.build(PLUGIN.config(**settings))


def test_a_rule_takes_over_what_it_does_not_say() -> None:
    above = {"time": JSON_TIME, "template": "%Y", "zone": "Asia/Tokyo", "columns": {"json": {"schema": "a INT"}}}
    below = [{"match": "a", "style": "plain"}, {"match": "b", "constant": "x"}, {"match": "c", "python": "m:f"}]
    plain, constant, python, default = (rule for _, rule in PLUGIN.config(**above, topics=below).rules())
    assert (plain.time, plain.time_pattern(), plain.zone) == (default.time, "%Y-%m-%d", "Asia/Tokyo")
    assert (constant.time, constant.constant, constant.columns) == (None, "x", default.columns)
    assert (python.time, python.columns) == (None, None)


def test_settings_are_read_without_loading_spark_or_arrow() -> None:
    code = (
        "import sys; from holdfast.processors.parse import PLUGIN; PLUGIN.config(time='kafka');"
        "print([name for name in ('pyarrow', 'numpy', 'pyspark', 'msgspec', 'fastavro') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
