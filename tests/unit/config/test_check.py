"""Checking a file where its variables are not set, as in CI."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.config import check
from holdfast.errors import ConfigError
from holdfast.registry import Registry
from tests.unit.config.samples import PIPELINE, REGISTRY


def _file(folder: Path, text: str) -> Path:
    path = folder / "holdfast.yaml"
    path.write_text(text)
    return path


def test_variables_may_be_unset(tmp_path: Path) -> None:
    settings = check(_file(tmp_path, PIPELINE.replace("path: in", "path: '${env:NOPE}'")), REGISTRY, {})
    assert settings is not None
    assert list(settings.pipelines) == ["clicks"]


def test_settings_that_need_an_unset_variable_are_not_built(tmp_path: Path) -> None:
    text = PIPELINE.replace("path: in", "path: in, endpoint: {host: a, port: '${env:PORT}'}")
    assert check(_file(tmp_path, text), REGISTRY, {}) is None


def test_other_mistakes_are_shown(tmp_path: Path) -> None:
    text = PIPELINE.replace("path: in", "path: '${env:NOPE}', endpoint: {host: a, port: x}")
    with pytest.raises(ConfigError, match="expected a whole number, not 'x'") as raised:
        check(_file(tmp_path, text), REGISTRY, {})
    assert len(raised.value.problems) == 1


ADDRESSES = """
source_coordination: {store: {postgresql: {url: "${env:STORE}"}}}
pipelines:
  tables:
    source: {database: {url: "${env:TABLES}", time_zone: "${env:ZONE}", entities: {users: {table: users, key: id}}}}
    sinks: [{opensearch: {hosts: ["${env:SEARCH}"], mode: staged}}]
  topics:
    source: {kafka: {bootstrap_servers: "${env:BROKERS}", topics: ["${env:TOPIC}"]}}
    sinks: [{files: {root: out, format: text}}]
  folders:
    source: {objects: {folder: "${env:FOLDER}"}}
    sinks: [{files: {root: out2, format: text}}]
"""


def test_addresses_and_names_are_not_judged_before_they_are_set(tmp_path: Path) -> None:
    check(_file(tmp_path, ADDRESSES), Registry.installed(), {})
