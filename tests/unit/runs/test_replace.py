"""`rewind --replace`: old files are moved away by a plan, and the row begins again; every interruption is finished."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast import assemble
from holdfast.assemble import StoredPipeline
from holdfast.buckets.local import LocalBucket
from holdfast.config.digest import digest_of
from holdfast.config.models import Settings
from holdfast.errors import Refused, TransitionRefused, Unavailable, UsageError
from holdfast.events import Event
from holdfast.flow.generations import Generation, Generations
from holdfast.flow.run import RunStatus
from holdfast.leases import transitions
from holdfast.leases.lease import Commit, Counts, History, Lease, Ownership, Progress, Status
from holdfast.leases.store import Outcome, Swap
from holdfast.runs import replace as replacing
from holdfast.runs.replace import Replaced, Replacement, replacement_of
from holdfast.runs.rewind import Rewind
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
            self.archive.data_file([10, 12, 14, 16, 18], output_folder="dt=2026-01-01"),
            self.archive.data_file([11, 13, 15, 17], output_folder="dt=2026-01-02"),
            self.archive.dead_letters([19]),
        ]
        self.archive.commit(10, 20, second)
        self.archive.commit(20, 30)
        self.file = folder / "pipeline.yaml"
        self.events: list[Event] = []
        self.generations().register(Generation(1, digest_of(self.settings().pipelines["archive"])), switch=False)

    def settings(self, form: str = "raw") -> Settings:
        self.file.write_text(CONFIG.format(root=self.archive.root, format=form))
        return assemble.load_settings(self.file)

    def generations(self) -> Generations:
        return self.stored().generations()

    def stored(self, form: str = "raw") -> StoredPipeline:
        return StoredPipeline(self.settings(form), self.archive.store, "archive")

    def replacement(self, to: int, form: str = "raw") -> Replacement:
        return replacement_of(self.stored(form), Rewind("orders", 0, str(to)), self.events.append, "ann")

    def redrive(
        self, offsets: list[int], run: str = "redrive-0123456789ab", *, pending: bool = False, generation: int = 1
    ) -> str:
        """What a redrive of these offsets' letters has written, or has committed and not published; returns its key."""
        archive, label = self.archive, f"0-{run}"
        file = archive.data_file(offsets, label=label, generation=generation)
        commit = Commit(1, generation, "topic-id", run)
        if pending:
            key = f"_holdfast/staging/orders/{label}/{1:020d}/b1/0"
            archive.move(file["key"], key)
            receipt = {"files": [{**file, "staged": key}], "from": {"offset": 0}, "to": {"offset": 1}, "token": 1}
            commit = replace(commit, receipts={"files": receipt})
        else:
            last = archive.manifests["0"][-1]
            positions = {"start": {"offset": 0}, "end": {"offset": len(offsets)}}
            who = {"label": label, "sequence": 1, "commit_id": run, "generation": generation}
            archive.rewrite({**last, **who, "files": [file], **positions})
        status = Status.ASSIGNED if pending else Status.COMPLETED
        row = Lease(
            archive.pipeline,
            "orders|0",
            run,
            group="orders",
            spec={"stream": "orders", "label": "0", "letters": []},
            ownership=Ownership(status, "node" if pending else None, token=1, due_at=None),
            progress=Progress({"offset": len(offsets)}, counts=Counts(len(offsets), len(offsets))),
            commit=commit,
            history=History(created_at=1.0),
        )
        self.archive.store.add([row])
        self.make_run(run, "RUNNING" if pending else "COMPLETED")
        return str(file["key"])

    def make_run(self, run: str, status: str) -> None:
        values = {
            "id": run,
            "status": status,
            "configuration": {"kind": "redrive", "sink": "files"},
            "created_by": "ann",
        }
        state = {**values, "created_at": 1.0, "updated_at": 1.0, "groups": {}}
        row = Lease(f"{self.archive.pipeline}/$runs", run, progress=Progress(state=state))
        self.archive.store.add([row])

    def carry_out(self, to: int) -> Replaced:
        return self.replacement(to).carry_out()

    def assign(self, owner: str = "node") -> Lease:
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
    monkeypatch.setattr(replacing, "first_offset", lambda _settings, request: int(request.to))
    monkeypatch.setattr(replacing, "PATIENCE", 0.0)
    return Site(tmp_path)


def test_whole_commits_are_moved_away_and_the_row_begins_again_under_a_new_generation(site: Site) -> None:
    owned = site.assign()
    done = site.carry_out(15)
    assert (done.start, done.end, done.requested, done.generation, len(done.moves)) == (10, 30, 15, 2, 4)
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
    would = site.replacement(15).preview()
    assert (would.start, len(would.moves)) == (10, 4)
    assert (site.visible(), site.archive.row(), site.plans()) == (before, row, [])


STEPS: list[tuple[type, str]] = [
    (LocalBucket, "discard"),
    (LocalBucket, "create"),
    (LocalBucket, "move"),
    (Generations, "switch"),
    (Replacement, "_finish"),
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
        site.stored().operator().reopen("orders|0")
    assert site.archive.doubts() == []
    done = site.carry_out(29)  # what was begun is finished first, whatever is asked for now
    assert (done.start, len(done.moves), done.missing) == (10, 4, ())
    assert site.archive.row().progress.position == {"offset": 10}
    site.archive.commit(10, 30, generation=done.generation)
    assert site.archive.doubts(deep=True, generation=2) == []
    assert len(site.plans()) == 1


def test_an_answer_that_is_lost_at_the_end_does_not_make_it_refused(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = site.archive.store
    swap = store.swap

    def losing(swaps: Sequence[Swap]) -> list[Outcome]:
        (outcome,) = swap(swaps)
        row = swaps[0].lease
        if outcome is not Outcome.OK or row.key != "orders|0" or row.status is not Status.UNASSIGNED:
            return [outcome]
        swap([Swap(row.version, transitions.stamped(row, transitions.take(row, "node", 1e10), "a node's"))])
        return [Outcome.UNKNOWN]

    monkeypatch.setattr(store, "swap", losing)
    assert site.carry_out(15).generation == 2
    assert site.archive.row().owner == "node"


def _crashing(real: Callable[..., Any], *, after: bool) -> Callable[..., Any]:
    def broken(*arguments: Any) -> Any:
        if after:
            real(*arguments)
        raise Crash

    return broken


def test_what_was_staged_before_can_never_appear_again(site: Site) -> None:
    row = site.assign()
    key, bucket = "orders/1_0_00000000000000000020.parquet", LocalBucket(site.archive.root)
    key = f"_holdfast/staging/orders/0/{row.token:020d}/b1/0"
    bucket.stage(key, key).close()
    site.carry_out(15)
    assert list(bucket.staged_under("_holdfast/staging/")) == []


def test_a_bucket_that_does_not_delete_what_is_staged_stops_it_before_anything_is_moved(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> None:
        raise Unavailable("not now")

    monkeypatch.setattr(LocalBucket, "discard", away)
    before = site.visible()
    with pytest.raises(Unavailable):
        site.carry_out(15)
    assert (site.visible(), site.plans()) == (before, [])


def test_a_commit_that_waits_to_be_published_comes_first(site: Site) -> None:
    site.archive.pend(30, 40)
    with pytest.raises(Refused, match="not published yet; nothing was changed"):
        site.carry_out(15)
    assert site.archive.row().status is Status.UNASSIGNED
    assert site.replacement(35).preview().start == 30


def test_nothing_is_replaced_before_its_parsing_is_the_current_one(site: Site) -> None:
    with pytest.raises(Refused, match="Roll out this file's parsing first"):
        site.replacement(15, form="text").carry_out()
    assert site.archive.row().status is Status.UNASSIGNED


def test_there_must_be_something_to_replace(site: Site) -> None:
    with pytest.raises(UsageError, match="committed up to 30"):
        site.carry_out(30)


def test_a_file_that_was_lost_before_is_told_and_does_not_stop_the_rest(site: Site) -> None:
    site.archive.path("orders/1_0_00000000000000000020.parquet").unlink()
    done = site.carry_out(15)
    assert done.missing == ("orders/1_0_00000000000000000020.parquet",)
    assert site.archive.row().progress.position == {"offset": 10}
    assert any("does not exist and was not moved" in str(event) for event in site.events)


def test_nothing_is_replaced_where_a_manifest_is_missing(site: Site) -> None:
    site.archive.manifest_path(2).unlink()
    before = site.visible()
    with pytest.raises(Refused, match="are not contiguous"):
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


# --- what redrives have written ------------------------------------------------------------------------------------


def test_what_was_redriven_is_replaced_too(site: Site) -> None:
    redriven = site.redrive([19])
    done = site.carry_out(15)
    assert redriven in [key for _, key in done.moves]
    assert site.visible() == ["orders/1_0_00000000000000000000.parquet"]
    site.archive.commit(10, 30, generation=2)
    assert site.visible() == ["orders/1_0_00000000000000000000.parquet", "orders/2_0_00000000000000000010.parquet"]
    assert site.archive.doubts(deep=True, generation=2, redrives=("redrive-0123456789ab",)) == []


def test_verify_finds_what_was_redriven_and_is_visible_twice(site: Site) -> None:
    site.carry_out(15)
    site.archive.commit(10, 30, generation=2)
    left = site.redrive([19], generation=1)
    found = site.archive.doubts(generation=2, redrives=("redrive-0123456789ab",))
    assert len(found) == 1
    assert found[0].startswith(f"{left} holds redriven records")


def test_what_is_redriven_of_the_range_that_was_written_again_is_proven(site: Site) -> None:
    site.carry_out(15)
    site.archive.commit(10, 30, generation=2)
    site.redrive([19], generation=2)
    assert site.archive.doubts(generation=2, redrives=("redrive-0123456789ab",)) == []


def test_what_was_redriven_before_the_range_stays(site: Site) -> None:
    kept = site.redrive([5])
    assert site.carry_out(15).start == 10
    assert kept in site.visible()
    assert site.archive.doubts(deep=True, generation=2, redrives=("redrive-0123456789ab",)) == []


def test_no_redriven_file_is_cut_in_two_the_replaced_range_begins_before_it(site: Site) -> None:
    redriven = site.redrive([5, 19])
    assert site.replacement(15).preview().start == 0
    done = site.carry_out(15)
    assert (done.start, redriven in [key for _, key in done.moves]) == (0, True)
    assert site.archive.row().progress.position == {"offset": 0}
    assert site.visible() == []


def test_what_a_plan_has_moved_away_is_not_looked_for_by_the_next_one(site: Site) -> None:
    site.redrive([19])
    site.carry_out(15)
    site.archive.commit(10, 30, generation=2)
    later = site.redrive([12], "redrive-ba9876543210")
    done = site.carry_out(15)
    assert done.missing == ()
    assert sorted(key for _, key in done.moves) == [later, "orders/2_0_00000000000000000010.parquet"]


def test_what_a_redrive_has_committed_is_published_and_moved_and_its_node_lets_go(site: Site) -> None:
    redriven = site.redrive([19], pending=True)
    done = site.carry_out(15)
    assert (redriven in [key for _, key in done.moves], done.missing) == (True, ())
    row = site.stored().operator("redrive-0123456789ab").show("orders|0")
    assert (row.status, row.owner, row.commit.receipts) == (Status.FAILED, None, None)
    assert list(LocalBucket(site.archive.root).staged_under("_holdfast/staging/")) == []
    assert site.visible() == ["orders/1_0_00000000000000000000.parquet"]


def test_a_redrive_that_is_choosing_its_letters_is_ended(site: Site) -> None:
    site.make_run("redrive-0123456789ab", "INITIALIZING")
    site.carry_out(15)
    run = site.stored().runs().show("redrive-0123456789ab")
    assert (run.status, "are being replaced" in (run.error or "")) == (RunStatus.FAILED, True)
