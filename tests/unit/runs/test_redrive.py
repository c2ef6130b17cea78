"""Which dead letters a redrive takes, what it refuses, and that no letter is sent twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from holdfast import assemble
from holdfast.assemble import StoredPipeline
from holdfast.buckets.local import LocalBucket
from holdfast.config.digest import digest_of
from holdfast.config.models import Settings
from holdfast.deadletters.letter_files import FileLetters
from holdfast.deadletters.source import LettersSource, letter_ids
from holdfast.errors import Refused, SelectionChanged, UsageError
from holdfast.flow.batch import Batch, Cut, Name
from holdfast.flow.fault import dead_letter, record_fault
from holdfast.flow.generations import Generation
from holdfast.flow.letter import Letter, LetterId
from holdfast.flow.names import dead_letter_key
from holdfast.flow.sink import Publication, PublishResult
from holdfast.leases import transitions
from holdfast.leases.action import Request
from holdfast.leases.lease import Commit, Lease, Ownership, Partition, Progress, Status, new_lease
from holdfast.leases.store import Store
from holdfast.registry import Registry
from holdfast.runs import letter_selection as limits
from holdfast.runs.actions import Actions
from holdfast.runs.letter_selection import Choice, Waiting, fence
from holdfast.runs.redrive import _prepared, look, mark_sent, redrive, run_pipeline
from holdfast.stores.memory import MemoryStore

CONFIG = """
pipelines:
  orders:
    generation: {generation}
    source: {source}
    processors: {processors}
    routes: {{big: "length(value) > 3"}}
    sinks:
      - files: {{root: "{root}/out", format: jsonl}}
      - {{name: other, files: {{root: "{root}/other", format: jsonl}}}}
"""
OBJECTS = "{objects: {folder: ROOT/in, codec: text}}"
KAFKA = "{kafka: {bootstrap_servers: '127.0.0.1:1', topics: [orders]}}"


class Site:
    """A pipeline that has read some objects, and the dead letters of its sinks."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.folder = folder
        self.store = store
        (folder / "in").mkdir()

    def settings(self, source: str = OBJECTS, processors: str = "[]", generation: int = 1) -> Settings:
        """Of a file whose parsing is the current one."""
        settings = self.written(source, processors, generation)
        mine = Generation(generation, digest_of(settings.pipelines["orders"]))
        self.stored(settings).generations().register(mine, switch=True)
        return settings

    def written(self, source: str = OBJECTS, processors: str = "[]", generation: int = 1) -> Settings:
        settings = {"source": source.replace("ROOT", str(self.folder)), "processors": processors, "root": self.folder}
        (self.folder / "p.yaml").write_text(CONFIG.format(generation=generation, **settings))
        return assemble.load_settings(self.folder / "p.yaml")

    def read(self, settings: Settings, *names: str) -> None:
        for name in names:
            (self.folder / "in" / name).write_text("x")
        source = assemble.build_pipeline(settings.pipelines["orders"], Registry.installed()).source
        found = [partition for partition in source.discover({}) if partition is not None]
        self.store.add([new_lease("orders", partition, "w", now=0.0) for partition in found])

    def bury(self, name: str, *records: bytes, sink: str = "out", reason: str = "bad") -> str:
        """A file of letters; returns its key."""
        faults = [record_fault(reason, record) for record in records]
        lines = [dead_letter("orders", f"in|{name}", 10 * at, fault) for at, fault in enumerate(faults)]
        key = dead_letter_key(Name("in", name), 1, 0)
        LocalBucket(self.folder / sink).create(key, b"".join(lines))
        return key

    def stored(self, settings: Settings) -> StoredPipeline:
        return StoredPipeline(settings, self.store, "orders")

    def waiting(self, settings: Settings, **choice: Any) -> Waiting:
        return _prepared(self.stored(settings), Choice("files", **choice))[1]

    def begin(self, settings: Settings, run: str) -> list[Lease]:
        """Make a run of all that waits, as with the lock; returns its rows."""
        waiting = self.waiting(settings)
        configuration = {"kind": "redrive", "sink": "files", "key": None, "reason": None, "generation": 1}
        runs = self.stored(settings).runs()
        runs.add(run, configuration=configuration, created_by="ann")
        runs.create(run, 1, waiting)
        return list(self.stored(settings).operator(run).rows())

    def move(self, settings: Settings, row: Lease, to: int, **changes: Any) -> None:
        moved = Progress({"offset": to})
        self.stored(settings).operator(row.run).change(
            row.key, lambda now_there, _: replace(now_there, progress=moved, **changes)
        )


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    store = MemoryStore()
    store.open()
    yield Site(tmp_path, store)
    store.close()


def test_all_letters_of_a_sink_that_hold_their_record_are_taken(site: Site) -> None:
    settings = site.settings()
    site.read(settings, "a", "b")
    first, second = site.bury("a", b"one", b"x" * 70_000, b"two"), site.bury("b", b"three")
    site.bury("a", b"elsewhere", sink="other")
    taken = look(site.stored(settings), Choice("files"))
    assert [(chosen.row.key, list(chosen.ids)) for chosen in taken.partitions] == [
        ("in|a", [LetterId(first, 0), LetterId(first, 2)]),
        ("in|b", [LetterId(second, 0)]),
    ]
    assert taken.refused == {"only the beginning of its 70000 bytes is kept": 1}


def test_a_record_with_several_letters_is_sent_once_and_all_of_them_count_as_sent(site: Site) -> None:
    settings = site.settings()
    site.read(settings, "a")
    faults = [record_fault(reason, raw) for reason, raw in (("x", b"1"), ("y", b"1"), ("x", b"2"))]
    lines = [dead_letter("orders", "in|a", item, fault) for item, fault in zip((5, 5, 9), faults, strict=True)]
    key = dead_letter_key(Name("in", "a"), 1, 5)
    LocalBucket(site.folder / "out").create(key, b"".join(lines))
    (row,) = site.begin(settings, "redrive-1")
    assert (letter_ids(row), row.spec["repeats"]) == ([LetterId(key, number) for number in range(3)], [1])
    source = LettersSource(FileLetters(LocalBucket(site.folder / "out")), _Texts())
    batch = Batch("b", row, Name("in", "a"), Cut({"offset": 0}, {"offset": 3}))
    values = [value for rows in source.read(None, [batch]).rows(0) for value in rows.column("value").to_pylist()]
    assert values == ["1", "2"]
    site.move(settings, row, 3)
    assert look(site.stored(settings), Choice("files")).number == 0


class _Texts:
    """A source whose records are texts."""

    keeps = None

    def fields(self) -> Any:
        from pyspark.sql import types as kinds

        return kinds.StructType([kinds.StructField("value", kinds.StringType())])

    def refusal(self, letter: Letter) -> str | None:
        return None

    def row(self, letter: Letter) -> Any:
        return pa.RecordBatch.from_pydict({"value": [letter.record().decode()]})


def test_letters_are_chosen_by_partition_and_by_reason(site: Site) -> None:
    settings = site.settings()
    site.read(settings, "a", "b")
    site.bury("a", b"1", reason="is no time: x")
    site.bury("b", b"2", reason="is no number")

    def keys(**choice: Any) -> list[str]:
        return [chosen.row.key for chosen in site.waiting(settings, **choice).look().partitions]

    assert keys(key="in|b") == ["in|b"]
    assert keys(reason="no time") == ["in|a"]
    assert keys(key="in|b", reason="no time") == []


def test_a_partition_that_the_store_does_not_know_is_refused(site: Site) -> None:
    settings = site.settings()
    site.bury("gone", b"1", b"2")
    taken = look(site.stored(settings), Choice("files"))
    assert (taken.number, taken.refused) == (0, {"the store no longer has its partition in|gone": 2})


def test_letters_of_a_partition_that_is_being_replaced_are_left_alone(site: Site) -> None:
    settings = site.settings()
    site.read(settings, "a", "b")
    site.bury("a", b"1")
    site.bury("b", b"2")
    site.stored(settings).operator().change(
        "in|a", lambda row, now: transitions.set_aside(row, {"plan": "p"}, "replaced", now)
    )
    taken = look(site.stored(settings), Choice("files"))
    assert [chosen.row.key for chosen in taken.partitions] == ["in|b"]
    assert taken.refused == {"files of its partition in|a are being replaced": 1}


def test_names_of_letters_never_outgrow_the_row(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_NAME_BYTES", 350)
    settings = site.settings()
    site.read(settings, "a")
    for label in ("x" * 60, "y" * 60, "z" * 60):
        (line,) = [dead_letter("orders", "in|a", 0, record_fault("bad", b"1"))]
        LocalBucket(site.folder / "out").create(dead_letter_key(Name("in", label), 1, 0), line)
    taken = look(site.stored(settings), Choice("files"))
    assert (taken.number, taken.left) == (2, 1)


def test_no_more_is_taken_than_a_row_can_name(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_LETTERS", 3)
    settings = site.settings()
    site.read(settings, "a")
    site.bury("a", *(b"%d" % number for number in range(5)))
    taken = look(site.stored(settings), Choice("files"))
    assert (taken.number, taken.left) == (3, 2)


def test_what_a_former_run_has_committed_is_not_taken_again_even_if_it_was_never_marked(site: Site) -> None:
    settings = site.settings()
    site.read(settings, "a")
    key = site.bury("a", b"1", b"2", b"3")
    (row,) = site.begin(settings, "redrive-1")
    assert letter_ids(row) == [LetterId(key, 0), LetterId(key, 1), LetterId(key, 2)]
    site.move(settings, row, 2)
    (next_one,) = site.begin(settings, "redrive-2")
    assert letter_ids(next_one) == [LetterId(key, 2)]


def test_marks_count_where_the_rows_of_a_run_are_gone(site: Site) -> None:
    settings = site.settings()
    site.read(settings, "a")
    key = site.bury("a", b"1", b"2")
    (row,) = site.begin(settings, "redrive-1")
    site.move(settings, row, 1)
    assert mark_sent(site.stored(settings), "redrive-1") == 1
    box = FileLetters(LocalBucket(site.folder / "out"))
    assert [letter.redriven for letter in box.letters()] == ["redrive-1", None]
    site.store.remove(list(site.stored(settings).operator("redrive-1").rows()))
    assert [chosen.ids for chosen in site.waiting(settings).look().partitions] == [[LetterId(key, 1)]]


def test_a_node_of_a_former_run_cannot_commit_any_more_when_the_next_has_begun(site: Site) -> None:
    settings = site.settings()
    site.read(settings, "a")
    site.bury("a", b"1", b"2")
    (row,) = site.begin(settings, "redrive-1")
    site.move(settings, row, 1, ownership=Ownership(Status.ASSIGNED, "zombie", 7, row.version))
    (before,) = site.store.get([row.id])
    assert before is not None
    site.begin(settings, "redrive-2")
    (after,) = site.store.get([row.id])
    assert after is not None
    assert (after.status, after.version > before.version) == (Status.FAILED, True)


def test_a_partition_that_its_node_completes_while_it_is_fenced_stays_completed(site: Site) -> None:
    settings = site.settings()
    site.read(settings, "a")
    site.bury("a", b"1", b"2")
    (read_before,) = site.begin(settings, "redrive-1")
    site.move(settings, read_before, 2, ownership=Ownership(Status.COMPLETED, None, 7, read_before.version))
    fence(site.stored(settings).operator("redrive-1"), read_before, {}, "another redrive has begun")
    (after,) = site.store.get([read_before.id])
    assert after is not None
    assert after.status is Status.COMPLETED


def test_what_a_former_run_has_committed_and_not_published_is_published_first(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = site.settings()
    site.read(settings, "a")
    site.bury("a", b"1", b"2")
    (row,) = site.begin(settings, "redrive-1")
    receipt = {"files": [], "from": {"offset": 0}, "to": {"offset": 1}, "token": 1}
    site.move(settings, row, 1, commit=Commit(1, 1, "a", "commit", {"files": receipt}))
    seen: list[Publication] = []

    def publish(_self: Any, publications: list[Publication]) -> list[PublishResult]:
        seen.extend(publications)
        return [None]

    monkeypatch.setattr("holdfast.sinks.files.sink.FilesSink.publish", publish)
    site.begin(settings, "redrive-2")
    assert [(publication.name.label.endswith("-redrive-1"), publication.receipt) for publication in seen] == [
        (True, receipt)
    ]
    (after,) = site.store.get([row.id])
    assert after is not None
    assert after.commit.receipts is None


def test_only_the_current_parsing_sends_letters_again(site: Site) -> None:
    site.settings()
    settings = site.written(processors="[{filter: {where: 'true'}}]")
    with pytest.raises(Refused, match="roll out this file's parsing first"):
        redrive(site.stored(settings), Choice("files"), lambda _: None, by="ann")


def test_a_redrive_fixes_the_parsing_before_it_begins(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = site.settings()

    def begin(*_: object) -> None:
        with pytest.raises(Refused, match="Raise `generation`"):
            site.settings(processors="[{filter: {where: 'true'}}]")
        raise Refused("far enough")

    monkeypatch.setattr("holdfast.runs.redrive.begin", begin)
    with pytest.raises(Refused, match="far enough"):
        redrive(site.stored(settings), Choice("files"), lambda _: None, by="ann", detached=True)


def test_a_letter_that_keeps_less_of_a_message_than_the_pipeline_may_need_is_left(site: Site) -> None:
    source = {"topic": "orders", "partition": 0, "offset": 1, "timestamp": 5, "timestamp_type": 0, "key": None}
    earlier = dead_letter("orders", "orders|0", 0, record_fault("bad", b"1"))
    whole = dead_letter("orders", "orders|0", 1, record_fault("bad", b"1"), {"source": source})
    gone = dead_letter("orders", "orders|0", 2, record_fault("bad", b"1"), {"source": source, "missing": "compacted"})
    LocalBucket(site.folder / "out").create(dead_letter_key(Name("orders", "0"), 1, 0), earlier + whole + gone)
    spec = {"topic": "orders", "partition": 0, "start": 0}
    site.store.add([new_lease("orders", Partition("orders|0", spec=spec), "w", now=0.0)])
    taken = look(site.stored(site.settings(KAFKA, "[{filter: {where: 'true'}}]")), Choice("files"))
    ((why, left),) = taken.refused.items()
    assert why.startswith("it does not keep headers, key, timestamp, timestamp_type of its record")
    assert (taken.number, left) == (1, 2)
    taken = look(site.stored(site.settings(KAFKA, generation=2)), Choice("files"))
    assert (taken.number, dict(taken.refused)) == (3, {}), "text needs the value alone"


def test_an_unknown_sink_is_refused(site: Site) -> None:
    with pytest.raises(UsageError, match="there is no sink 'x'; there are files, other"):
        look(site.stored(site.settings()), Choice("x"))


def test_a_redrive_tolerates_any_number_of_dead_letters_as_all_its_records_failed_before(site: Site) -> None:
    run = run_pipeline(site.stored(site.settings()), {"sink": "files", "generation": 1})
    assert run.loop_settings().tolerance is None


def test_a_redrive_is_started_as_a_row_alone_if_as_many_letters_wait_as_were_seen(site: Site) -> None:
    settings = site.settings()
    site.read(settings, "a")
    site.bury("a", b"one", b"two")
    actions = Actions(settings, site.store, Request("ana", "web")).pipeline("orders")
    assert actions.preview_redrive(Choice("files")).number == 2
    assert list(site.stored(settings).runs().list()) == []
    with pytest.raises(SelectionChanged, match="2 letters match now, not 3"):
        actions.redrive(Choice("files"), expect=3)
    started = actions.redrive(Choice("files"), expect=2)
    (run,) = site.stored(settings).runs().list()
    assert (run.status.value, run.created_by, started.outcome.run) == ("INITIALIZING", "ana", run.id)
    assert list(site.stored(settings).operator(run.id).rows()) == []
    assert SparkSession.getActiveSession() is None


def test_a_redrive_takes_nothing_if_other_letters_wait_when_a_node_begins_with_it(site: Site) -> None:
    settings = site.settings()
    site.read(settings, "a", "b")
    site.bury("a", b"one", b"two")
    Actions(settings, site.store, Request("ana", "web")).pipeline("orders").redrive(Choice("files"), expect=2)
    (run,) = site.stored(settings).runs().list()
    assert len(list(run_pipeline(site.stored(settings), run.configuration).driver.partitions(run))) == 1
    site.bury("b", b"three")
    with pytest.raises(SelectionChanged, match="3 letters match now, not 2"):
        list(run_pipeline(site.stored(settings), run.configuration).driver.partitions(run))
