"""Runs that begin by themselves."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from holdfast.assemble import StoredPipeline
from holdfast.config import load_text
from holdfast.errors import ConfigError
from holdfast.flow.runs import Runs
from holdfast.registry import Registry
from holdfast.runs.pickup import GRACE, start_if_due
from holdfast.stores.memory import MemoryStore

FILE = """\
pipelines:
  catalog:
    source:
      database:
        url: sqlite:///{folder}/app.db
        schedule: {{cron: "{cron}", time_zone: Europe/Berlin, entities: [users]}}
        entities:
          users: {{table: users, key: id}}
          teams: {{table: teams, key: id}}
    sinks:
      - opensearch: {{hosts: ["http://127.0.0.1:9"], mode: staged}}
"""
THREE = datetime(2026, 3, 30, 3, 0, tzinfo=ZoneInfo("Europe/Berlin")).timestamp()


def pipeline(folder: Path, cron: str = "0 3 * * *") -> tuple[StoredPipeline, Runs]:
    settings = load_text(FILE.format(folder=folder, cron=cron), "catalog.yaml", Registry.installed())
    stored = StoredPipeline(settings, MemoryStore(), "catalog")
    return stored, stored.runs()


def test_a_run_begins_at_its_time_once_however_many_nodes_there_are(tmp_path: Path) -> None:
    stored, runs = pipeline(tmp_path)
    assert start_if_due(stored, runs, THREE - 1) is None
    run = start_if_due(stored, runs, THREE)
    assert run is not None
    assert (run.id, run.configuration["entities"]) == ("reindex-20260330t010000z", ["users"])
    assert start_if_due(stored, runs, THREE + 1) is None
    assert [found.id for found in runs.list()] == [run.id]


def test_a_time_that_all_nodes_have_missed_is_made_up_for_within_an_hour(tmp_path: Path) -> None:
    stored, runs = pipeline(tmp_path)
    assert start_if_due(stored, runs, THREE + GRACE + 1) is None
    assert start_if_due(stored, runs, THREE + GRACE) is not None


def test_no_run_begins_while_an_earlier_one_of_the_schedule_goes_on(tmp_path: Path) -> None:
    stored, runs = pipeline(tmp_path, "*/10 * * * *")
    first = start_if_due(stored, runs, THREE)
    assert first is not None
    assert start_if_due(stored, runs, THREE + 600) is None
    runs.fail(first.id, "stopped by the test")
    assert start_if_due(stored, runs, THREE + 600) is not None


def test_what_is_not_a_cron_expression_is_named_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"catalog.yaml:6:\d+: .*is not a cron expression"):
        pipeline(tmp_path, "61 * * * *")


def test_a_schedule_that_names_an_unknown_entity_is_refused_with_its_line(tmp_path: Path) -> None:
    text = FILE.format(folder=tmp_path, cron="0 3 * * *").replace("entities: [users]", "entities: [teams, user]")
    with pytest.raises(ConfigError, match=r"catalog.yaml:6:\d+: 'user' .*did you mean 'users'"):
        load_text(text, "catalog.yaml", Registry.installed())
