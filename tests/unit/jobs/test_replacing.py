"""`rewind --replace`: old files are moved away by a plan, and the row begins again; every interruption is finished."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast import app
from holdfast.buckets.local import LocalBucket
from holdfast.config.digest import digest_of
from holdfast.config.models import Settings
from holdfast.errors import Refused, SinkUnavailable, TransitionRefused, UsageError
from holdfast.events import Event
from holdfast.flow.generations import Generation, Generations
from holdfast.jobs import replacing
from holdfast.jobs.replacing import Replaced, Replacing
from holdfast.jobs.rewinding import Rewind
from holdfast.leases.lease import Lease, Status
from tests.unit.audit.archive import Archive

CONFIG = """
source_coordination: {{partition_prefix: prod}}
pipelines:
  archive:
    source:
      kafka: {{bootstrap_servers: "127.0.0.1:1", topics: [orders]}}
    sinks:
      - files: {{root: "{root}", format: {format}}}
"""


class Crash(Exception):
    """The process ends here."""


class Site:
    """Commits 0-10, 10-20 (with a dead letter and two places), 20-30 of one partition, which a node holds."""

    def __init__(self, folder: Path) -> None:
        self.archive = Archive(folder / "root")
        self.archive.commit(0, 10)
        second = [
            self.archive.data_file([10, 12, 14, 16, 18], place="dt=2026-01-01"),
            self.archive.data_file([11, 13, 15, 17], place="dt=2026-01-02"),
            self.archive.dead_letters([19]),
        ]
        self.archive.commit(10, 20, second)
        self.archive.commit(20, 30)
        self.file = folder / "pipeline.yaml"
        self.events: list[Event] = []
        known = self.generations()
        known.register(Generation(1, digest_of(self.settings().pipelines["archive"])), switch=False)

    def settings(self, form: str = "raw") -> Settings:
        self.file.write_text(CONFIG.format(root=self.archive.root, format=form))
        return app.load_settings(self.file)

    def generations(self) -> Generations:
        return app.generations(self.settings(), self.archive.store, "archive")

    def replacing(self, to: int, form: str = "raw") -> Replacing:
        asked = Rewind("archive", "orders", 0, str(to))
        return Replacing(self.settings(form), self.archive.store, asked, self.events.append, "ann")

    def carry_out(self, to: int) -> Replaced:
        return self.replacing(to).carry_out()

    def own(self, owner: str = "node") -> Lease:
        row = self.archive.row()
        held = replace(row, ownership=replace(row.ownership, status=Status.ASSIGNED, owner=owner, token=7, due_at=None))
        self.archive.put(held)
        return self.archive.row()

    def visible(self) -> list[str]:
        found = (path.relative_to(self.archive.root).as_posix() for path in self.archive.root.rglob("*.parquet"))
        return sorted(key for key in found if not key.startswith("_"))

    def plans(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in self.archive.root.glob("_holdfast/replaced/*/plan.json")]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(replacing, "first_offset", lambda _settings, asked: int(asked.to))
    monkeypatch.setattr(replacing, "PATIENCE", 0.0)
    return Site(tmp_path)


def test_whole_commits_are_moved_away_and_the_row_begins_again_under_a_new_generation(site: Site) -> None:
    owned = site.own()
    done = site.carry_out(15)
    assert (done.start, done.end, done.asked, done.generation, len(done.moves)) == (10, 30, 15, 2, 4)
    assert site.visible() == ["orders/1_0_00000000000000000000.parquet"]
    row = site.archive.row()
    assert (row.status, row.owner, row.progress.position) == (Status.UNASSIGNED, None, {"offset": 10})
    assert (row.commit.generation, row.commit.sequence, row.token) == (2, 3, owned.token + 1)
    assert site.generations().current() == (2, digest_of(site.settings().pipelines["archive"]))
    (plan,) = site.plans()
    assert (plan["pipeline"], plan["topic"], plan["partition"]) == ("prod|archive", "orders", 0)
    assert (plan["from"], plan["to"], plan["generation"], len(plan["moves"])) == (10, 30, 2, 4)


@pytest.mark.parametrize("deep", [False, True])
def test_what_is_written_anew_is_proven(site: Site, deep: bool) -> None:
    site.carry_out(15)
    hole = site.archive.proof(deep=deep, generation=2)
    assert (hole.verdict, hole.end, hole.replaced) == ("proven", {"offset": 10}, 4)
    site.archive.commit(10, 25, generation=2)
    site.archive.commit(25, 40, generation=2)
    proof = site.archive.proof(deep=deep, generation=2)
    assert site.archive.doubts(deep=deep, generation=2) == []
    assert (proof.start, proof.end, proof.rows) == ({"offset": 0}, {"offset": 40}, 40)


def test_what_was_replaced_can_be_replaced_again(site: Site) -> None:
    site.carry_out(15)
    site.archive.commit(10, 25, generation=2)
    site.archive.commit(25, 40, generation=2)
    done = site.carry_out(3)
    assert (done.start, done.end, done.generation, len(done.moves)) == (0, 40, 3, 3)
    site.archive.commit(0, 40, generation=3)
    assert site.archive.doubts(deep=True, generation=3) == []
    assert site.visible() == ["orders/3_0_00000000000000000000.parquet"]


def test_a_dry_run_lists_and_changes_nothing(site: Site) -> None:
    before, row = site.visible(), site.archive.row()
    would = site.replacing(15).preview()
    assert (would.start, len(would.moves)) == (10, 4)
    assert (site.visible(), site.archive.row(), site.plans()) == (before, row, [])


STEPS: list[tuple[type, str]] = [
    (LocalBucket, "discard"),
    (LocalBucket, "create"),
    (LocalBucket, "move"),
    (Generations, "switch"),
    (Replacing, "_finish"),
]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("where", "verb"), STEPS, ids=[verb for _, verb in STEPS])
def test_a_call_that_was_interrupted_is_finished_by_the_next_one(
    site: Site, monkeypatch: pytest.MonkeyPatch, where: type, verb: str, after: bool
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(where, verb, _crashing(getattr(where, verb), after=after))
        with pytest.raises(Crash):
            site.carry_out(15)
    assert site.archive.row().status is Status.FAILED
    with pytest.raises(TransitionRefused):
        app.operator(site.settings(), site.archive.store, "archive").reopen("orders|0")
    assert site.archive.doubts() == []
    done = site.carry_out(29)  # what was begun is finished first, whatever is asked for now
    assert (done.start, len(done.moves), done.missing) == (10, 4, ())
    assert site.archive.row().progress.position == {"offset": 10}
    site.archive.commit(10, 30, generation=done.generation)
    assert site.archive.doubts(deep=True, generation=2) == []
    assert len(site.plans()) == 1


def _crashing(real: Callable[..., Any], *, after: bool) -> Callable[..., Any]:
    def broken(*arguments: Any) -> Any:
        if after:
            real(*arguments)
        raise Crash

    return broken


def test_what_was_staged_before_can_never_appear_again(site: Site) -> None:
    row = site.own()
    key, bucket = "orders/1_0_00000000000000000020.parquet", LocalBucket(site.archive.root)
    place = f"_holdfast/staging/orders/0/{row.token:020d}/b1/0"
    bucket.stage(place, key).close()
    site.carry_out(15)
    assert list(bucket.staged_under("_holdfast/staging/")) == []


def test_a_bucket_that_does_not_delete_what_is_staged_stops_it_before_anything_is_moved(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> None:
        raise SinkUnavailable("not now")

    monkeypatch.setattr(LocalBucket, "discard", away)
    before = site.visible()
    with pytest.raises(SinkUnavailable):
        site.carry_out(15)
    assert (site.visible(), site.plans()) == (before, [])


def test_a_commit_that_waits_to_be_published_comes_first(site: Site) -> None:
    site.archive.pend(30, 40)
    with pytest.raises(Refused, match="not published yet; nothing was changed"):
        site.carry_out(15)
    assert site.archive.row().status is Status.UNASSIGNED
    assert site.replacing(35).preview().start == 30


def test_nothing_is_replaced_before_its_parsing_is_the_current_one(site: Site) -> None:
    with pytest.raises(Refused, match="Roll this file's parsing out first"):
        site.replacing(15, form="text").carry_out()
    assert site.archive.row().status is Status.UNASSIGNED


def test_there_must_be_something_to_replace(site: Site) -> None:
    with pytest.raises(UsageError, match="committed up to 30"):
        site.carry_out(30)


def test_a_file_that_was_lost_before_is_told_and_does_not_stop_the_rest(site: Site) -> None:
    site.archive.path("orders/1_0_00000000000000000020.parquet").unlink()
    done = site.carry_out(15)
    assert done.missing == ("orders/1_0_00000000000000000020.parquet",)
    assert site.archive.row().progress.position == {"offset": 10}
    assert any("was not there to be moved" in str(event) for event in site.events)


def test_nothing_is_replaced_where_a_manifest_is_missing(site: Site) -> None:
    site.archive.manifest_path(2).unlink()
    before = site.visible()
    with pytest.raises(Refused, match="do not follow one another"):
        site.carry_out(15)
    assert (site.visible(), site.archive.row().status) == (before, Status.UNASSIGNED)


def test_a_roll_out_in_the_middle_does_not_keep_the_plan_from_being_finished(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(LocalBucket, "move", _crashing(LocalBucket.move, after=True))
        with pytest.raises(Crash):
            site.carry_out(15)
    site.generations().register(Generation(5, "another parsing"), switch=True)
    assert site.carry_out(15).generation == 2
    assert site.generations().current()[0] == 5
    assert site.archive.row().status is Status.UNASSIGNED
