"""What a job is made of: its generation, its roots, and what is refused before anything begins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import assemble
from holdfast.assemble import StoredPipeline
from holdfast.config.digest import digest_of
from holdfast.config.models import Settings
from holdfast.errors import Refused, UsageError
from holdfast.flow.batch import Name
from holdfast.flow.generations import Generation
from holdfast.leases.lease import Lease, Progress
from holdfast.leases.store import Store
from holdfast.runs import rewind as rewinding
from holdfast.runs.backfill import Backfill, backfill
from holdfast.runs.next_generation import (
    check_digest,
    check_roots_are_free,
    expected_generation,
    new_roots,
    next_generation,
    parsing_as,
    registered_roots,
    seal,
)
from holdfast.runs.rewind import Rewind, rewind
from holdfast.stores.memory import MemoryStore
from tests.unit.audit.archive import Archive

CONFIG = """
pipelines:
  daily:
    generation: {generation}
    source:
      kafka: {{bootstrap_servers: "127.0.0.1:1", topics: [orders]}}
    processors: {processors}
    sinks:
      - files: {{root: "{root}/daily", format: {format}}}
  backup:
    source:
      kafka: {{bootstrap_servers: "127.0.0.1:1", topics: [orders]}}
    sinks:
      - files: {{root: "{root}/backup", format: {backup}}}
"""
PARSED = "[{parse: {time: kafka}}]"


class Site:
    def __init__(self, folder: Path, store: Store) -> None:
        self.folder = folder
        self.store = store

    def settings(
        self, generation: int = 1, form: str = "text", backup: str = "raw", processors: str = "[]"
    ) -> Settings:
        values = {"generation": generation, "format": form, "backup": backup, "processors": processors}
        (self.folder / "p.yaml").write_text(CONFIG.format(root=self.folder, **values))
        return assemble.load_settings(self.folder / "p.yaml")

    def stored(self, settings: Settings) -> StoredPipeline:
        return StoredPipeline(settings, self.store, "daily")

    def run_live(self, settings: Settings) -> None:
        chosen = settings.pipelines["daily"]
        self.stored(settings).generations().register(Generation(chosen.generation, digest_of(chosen)), switch=True)

    def next(self, settings: Settings) -> int:
        return next_generation(self.stored(settings), "ann")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    store = MemoryStore()
    store.open()
    yield Site(tmp_path, store)
    store.close()


def test_the_files_own_generation_is_used_where_it_comes_next(site: Site) -> None:
    site.run_live(site.settings(1, "text"))
    fixed = site.settings(2, "jsonl")
    assert [site.next(fixed), site.next(fixed)] == [2, 2]
    assert site.stored(fixed).generations().current()[0] == 1
    site.run_live(fixed)
    assert site.stored(fixed).generations().current()[0] == 2


def test_what_is_current_or_taken_by_another_parsing_is_never_used_again(site: Site) -> None:
    current = site.settings(1, "text")
    site.run_live(current)
    assert [site.next(current), site.next(current)] == [2, 2]
    assert site.next(site.settings(1, "jsonl")) == 3
    assert site.next(site.settings(2, "jsonl")) == 3


def test_a_number_in_which_nothing_was_committed_is_free_for_a_changed_file(site: Site) -> None:
    site.run_live(site.settings(1, "text"))
    first_try = site.stored(site.settings(2, "jsonl"))
    first_try.generations().register(parsing_as(first_try, 2, "ann"), switch=False)
    changed = site.settings(2, "raw")
    assert expected_generation(site.stored(changed)) == 2
    assert site.next(changed) == 2


def test_a_node_joins_a_run_only_with_the_parsing_that_it_was_begun_with(site: Site) -> None:
    number = site.next(site.settings(2, "jsonl"))
    check_digest(site.stored(site.settings(1, "jsonl")), number)
    with pytest.raises(Refused, match="was started"):
        check_digest(site.stored(site.settings(2, "text")), number)


def test_a_run_fixes_the_parsing_of_its_generation_though_it_has_committed_nothing(site: Site) -> None:
    number = site.next(site.settings(2, "jsonl"))
    with pytest.raises(Refused, match="Raise `generation`"):
        site.run_live(site.settings(number, "text"))


def test_a_run_is_not_begun_with_a_parsing_that_a_node_has_just_replaced(site: Site) -> None:
    site.run_live(site.settings(1, "text"))
    mine = parsing_as(site.stored(site.settings(1, "text")), 1, "ann")
    site.run_live(site.settings(1, "jsonl"))
    with pytest.raises(Refused, match="the parsing of another file"):
        seal(site.stored(site.settings(1, "text")).generations(), mine)


def test_files_go_to_a_root_of_their_own_that_has_none_of_the_partition(site: Site) -> None:
    pipeline = site.stored(site.settings())
    assert new_roots(pipeline, None, 2) == {"files": f"{site.folder}/daily-g2"}
    changed = pipeline.with_roots(new_roots(pipeline, f"{site.folder}/daily", 2))
    check_roots_are_free(changed, [Name("orders", "0")])
    Archive(site.folder / "daily").commit(0, 10)
    check_roots_are_free(changed, [Name("orders", "1")])
    with pytest.raises(UsageError, match="and their records would be there twice"):
        check_roots_are_free(changed, [Name("orders", "0")])


def refused(site: Site, settings: Settings, request: Backfill, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        backfill(site.stored(settings), request, lambda _: None, root=None, by="ann")
    assert list(site.stored(settings).generations().list()) == []
    assert not (site.folder / "daily-g1").exists()


def test_a_backup_that_does_not_keep_what_the_parser_needs_is_refused_up_front(site: Site) -> None:
    Archive(site.folder / "backup", raw=False).commit(0, 10)
    settings = site.settings(backup="text", processors=PARSED)
    refused(site, settings, Backfill("backup"), Refused, "does not keep timestamp")
    by_time = Backfill("backup", between="2026-01-01..")
    refused(site, site.settings(backup="text"), by_time, Refused, "does not keep timestamp")


def test_there_must_be_something_to_write_again(site: Site) -> None:
    Archive(site.folder / "backup").commit(0, 10)
    settings = site.settings()
    refused(site, settings, Backfill("backup", "10.."), UsageError, "hold no such records")
    refused(site, settings, Backfill("backup", topics=["other"]), UsageError, "hold no such records")
    refused(site, settings, Backfill("backup", names="dt=1"), UsageError, "needs a parser")
    refused(site, settings, Backfill("daily"), UsageError, "hold no such records")


def test_a_run_whose_root_is_not_free_registers_no_generation(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    Archive(site.folder / "backup").commit(0, 10)
    Archive(site.folder / "daily-g1").commit(0, 10)
    pipeline = site.stored(site.settings())
    with pytest.raises(UsageError, match="would be there twice"):
        backfill(pipeline, Backfill("backup"), lambda _: None, root=None, by="ann", detached=True)
    row = Lease(pipeline.identifier, "orders|0", progress=Progress({"offset": 10}))
    monkeypatch.setattr(rewinding, "partition_row", lambda *_: row)
    monkeypatch.setattr(rewinding, "first_offset", lambda *_: 0)
    with pytest.raises(UsageError, match="would be there twice"):
        rewind(pipeline, Rewind("orders", 0, "0"), lambda _: None, root=None, by="ann", detached=True)
    assert list(pipeline.generations().list()) == []


def test_roots_are_those_of_the_number_that_was_registered_in_the_end(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = site.stored(site.settings(form="jsonl"))

    def taken_meanwhile(stored: StoredPipeline, by: str) -> int:
        site.run_live(site.settings(1, "text"))
        return next_generation(stored, by)

    monkeypatch.setattr("holdfast.runs.next_generation.next_generation", taken_meanwhile)
    number, roots = registered_roots(pipeline, None, [Name("orders", "0")], by="ann")
    assert (number, roots) == (2, {"files": f"{site.folder}/daily-g2"})
    assert [found.number for found in pipeline.generations().list()] == [1, 2]
