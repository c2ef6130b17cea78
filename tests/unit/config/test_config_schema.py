"""The JSON Schema says to an editor what loading says to everybody."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from holdfast.config import json_schema
from holdfast.registry import Registry
from tests.unit.config.samples import PIPELINE, REGISTRY, problems

FIXTURES = Path(__file__).parent / "fixtures"
SCHEMA = json_schema(REGISTRY)
VALIDATOR = Draft202012Validator(SCHEMA)


def complaints(text: str) -> list[str]:
    return [error.message for error in VALIDATOR.iter_errors(yaml.safe_load(text))]


def test_it_is_a_schema_of_draft_2020_12() -> None:
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize(
    "text",
    [
        (FIXTURES / "everything.yaml").read_text(),
        (FIXTURES / "in_memory.yaml").read_text(),
        PIPELINE,
        "node: {metrics_port: '${env:PORT}', log: '${env:LOG}', session_timeout: '${env:TIMEOUT}'}",
        "source_coordination: {store: {'my.module:PLUGIN': {anything: 1}}}",
        PIPELINE.replace("{files: {path: out}}", "{name: a, files: {path: out}}, {'my.module:SINK': , name: b}"),
    ],
)
def test_a_right_file_fits(text: str) -> None:
    assert complaints(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "pipelnes: {}",
        "node: {metrics_port: 0}",
        "node: {metrics_port: ninety}",
        "node: {session_timeout: 30x}",
        "node: {log: xml}",
        "source_coordination: {store: {dynamodb: {}}}",
        "source_coordination: {store: {}}",
        "source_coordination: {store: {in_memory: , sqlite: {path: a}}}",
        "source_coordination: {store: {sqlite: }}",
        PIPELINE.replace("clicks", "my clicks"),
        PIPELINE.replace("path: out", "pat: out"),
        PIPELINE.replace("[{files: {path: out}}]", "[]"),
        PIPELINE.replace("{files: {path: out}}", "{name: a}"),
        PIPELINE.replace("{files: {path: out}}", "{name: a b, files: {path: out}}"),
        PIPELINE.replace("path: out", "path: out, format: {parquet: }"),
        PIPELINE + "    batch: {max_bytes: many}",
    ],
)
def test_a_wrong_file_fits_neither_the_schema_nor_the_models(text: str) -> None:
    assert complaints(text) != []
    assert problems(text) != []


@pytest.mark.parametrize("registry", [REGISTRY, Registry.installed()], ids=["samples", "installed"])
def test_every_setting_is_described(registry: Registry) -> None:
    whole = json_schema(registry)
    missing = [path for path, schema in _settings(whole, "") if not _description(schema, whole["$defs"])]
    assert missing == []


def test_a_plugin_is_described_by_its_summary() -> None:
    assert SCHEMA["$defs"]["stores"]["properties"]["sqlite"]["description"] == "The sample sqlite."


def _settings(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, below in schema.get("properties", {}).items():
        yield f"{path}.{name}", below
    for name, definition in schema.get("$defs", {}).items():
        yield from _settings(definition, name)


def _description(schema: dict[str, Any], definitions: dict[str, Any]) -> str:
    referred = definitions[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else {}
    return str(schema.get("description") or referred.get("description", ""))
