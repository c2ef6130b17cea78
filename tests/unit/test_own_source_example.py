"""The example of a source of one's own does what its README says: nothing is skipped when a worker dies or sleeps."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from examples.own_source.holdfast_own_source.chapters import LOOK_AGAIN, STILL_WRITTEN, Book, Reader
from examples.own_source.holdfast_own_source.ranges import PLUGIN, Ranges, RangesConfig
from holdfast.errors import SourceUnavailable
from holdfast.flow.batch import Cut, Done, Limits
from holdfast.leases.lease import Key, Lease, Progress, Status
from holdfast.leases.session import NodeInfo, Session, SessionTiming
from holdfast.leases.source_coordinator import SourceCoordinator
from holdfast.leases.world import host_world
from holdfast.registry import Plugin
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_source"
SOURCES = Path(__file__).parents[2] / "src"
PAGES = 4
WAIT = 60


# --- the worker on the API for source authors: processes that are killed and stopped ------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A book of one chapter whose third page is a pipe: who reads it waits there until the test lets it go on."""
    (tmp_path / "book" / "01").mkdir(parents=True)
    for number in range(1, PAGES + 1):
        _page(tmp_path, number).write_text("one two three")
    _page(tmp_path, 3).unlink()
    os.mkfifo(_page(tmp_path, 3))
    (tmp_path / "settings.yaml").write_text(
        "source_coordination: {store: {sqlite: {path: leases.db}}}\nnode: {session_timeout: 1s}\n"
    )
    return tmp_path


def _page(place: Path, number: int) -> Path:
    return place / "book" / "01" / f"{number:02d}.txt"


@contextmanager
def _worker(place: Path) -> Iterator[subprocess.Popen[str]]:
    worker = subprocess.Popen(
        [sys.executable, "-m", "holdfast_own_source.chapters", "settings.yaml", "book", "words"],
        cwd=place,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(EXAMPLE), str(SOURCES)])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with worker:
        try:
            yield worker
        finally:
            worker.kill()


@contextmanager
def _stuck_at_page_3(place: Path) -> Iterator[IO[str]]:
    """Entered when a worker reads page 3, and no sooner. Whoever comes later finds an ordinary page."""
    with _page(place, 3).open("w") as pipe:
        _page(place, 3).rename(place / "pipe")
        _page(place, 3).write_text("one two three")
        yield pipe


def _row(place: Path) -> Lease:
    store = SqliteStore(place / "leases.db")
    store.open()
    (row,) = store.get([Key("chapters", "", "01")])
    store.close()
    assert row is not None
    return row


def _words(place: Path) -> dict[str, int]:
    results = [json.loads(file.read_text()) for file in (place / "words").iterdir()]
    return {result["page"]: result["words"] for result in results}


def test_another_worker_goes_on_at_the_saved_page_of_a_killed_one(place: Path) -> None:
    with _worker(place) as killed, _stuck_at_page_3(place):
        killed.kill()
        killed.wait(WAIT)
    left = _row(place)
    assert (left.status, left.progress.state) == (Status.ASSIGNED, {"next_page": 2})

    with _worker(place) as heir:
        printed, _ = heir.communicate(timeout=WAIT)

    assert [line for line in printed.splitlines() if line.startswith("chapter")] == [
        "chapter 01 page 03 under token 2",
        "chapter 01 page 04 under token 2",
    ]
    assert heir.returncode == 0
    assert _words(place) == {"01": 3, "02": 3, "03": 3, "04": 3}
    assert _row(place).status is Status.COMPLETED


def test_a_worker_that_wakes_up_late_is_refused(place: Path) -> None:
    with _worker(place) as sleeper, _stuck_at_page_3(place) as pipe:
        sleeper.send_signal(signal.SIGSTOP)
        with _worker(place) as heir:
            heir.communicate(timeout=WAIT)
        done = _row(place)
        sleeper.send_signal(signal.SIGCONT)
        pipe.write("one two three")
        pipe.close()
        printed, _ = sleeper.communicate(timeout=WAIT)

    assert "let go: partition '01'" in printed
    assert "page 03" not in printed
    assert sleeper.returncode == 0
    assert _row(place) == done
    assert done.progress.state == {"next_page": PAGES}


def test_a_worker_that_is_asked_to_stop_hands_its_chapter_back_at_once(place: Path) -> None:
    with _worker(place) as stopped, _stuck_at_page_3(place):
        stopped.terminate()
        stopped.wait(WAIT)

    row = _row(place)
    assert (row.status, row.owner, row.progress.state) == (Status.UNASSIGNED, None, {"next_page": 2})


def test_a_worker_says_why_when_its_book_cannot_be_listed_and_so_does_the_next(place: Path) -> None:
    (place / "book").rename(place / "elsewhere")
    for _ in range(2):
        with _worker(place) as worker:
            _, why = worker.communicate(timeout=WAIT)
        assert worker.returncode not in {0, None}
        assert "not done: cannot list book: No such file or directory" in why


# --- the same, in one process --------------------------------------------------------------------------------------


class _Desk:
    """One worker's view of a store whose clock the test sets."""

    def __init__(self, place: Path) -> None:
        self.now = 1000.0
        self.store = MemoryStore(lambda: self.now)
        self.book = Book(place / "book")
        world = host_world(lambda _: None)
        session = Session(self.store, world, "$nodes", NodeInfo("desk", "desk"), SessionTiming())
        session.join()
        self.coordinator = SourceCoordinator(self.store, world, session, "chapters")
        (place / "words").mkdir()
        self.reader = Reader(self.book, self.coordinator, place / "words", lambda _name, _limit: None)

    def read_next(self) -> str | None:
        chapter = self.coordinator.acquire_next(self.book.chapters)
        if chapter is None:
            return None
        self.reader.read(chapter)
        return chapter.key


def _write(place: Path, *names: str) -> None:
    for name in names:
        file = place / "book" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("a page")


def test_a_chapter_that_is_still_written_sleeps_and_goes_on_at_its_next_page(tmp_path: Path) -> None:
    _write(tmp_path, "01/01.txt", f"01/{STILL_WRITTEN}")
    desk = _Desk(tmp_path)

    assert desk.read_next() == "01"
    (row,) = desk.store.get([Key("chapters", "", "01")])
    assert row is not None
    assert (row.status, row.progress.state) == (Status.CLOSED, {"next_page": 1})
    assert desk.read_next() is None

    (tmp_path / "words" / "01-01.json").unlink()
    (tmp_path / "book" / "01" / STILL_WRITTEN).unlink()
    _write(tmp_path, "01/02.txt")
    desk.now += LOOK_AGAIN
    assert desk.read_next() == "01"
    assert [file.name for file in (tmp_path / "words").iterdir()] == ["01-02.json"]
    assert desk.store.count("chapters") == {Status.COMPLETED: 1}


def test_chapters_are_read_in_order_and_a_later_one_is_found(tmp_path: Path) -> None:
    _write(tmp_path, "02/01.txt", "01/01.txt")
    desk = _Desk(tmp_path)

    assert [desk.read_next(), desk.read_next(), desk.read_next()] == ["01", "02", None]
    _write(tmp_path, "03/01.txt")
    assert [desk.read_next(), desk.read_next()] == ["03", None]


def test_a_book_that_cannot_be_listed_is_an_error_and_not_empty(tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailable):
        list(Book(tmp_path / "missing").chapters({}))


def test_a_chapter_that_cannot_be_listed_is_an_error_and_not_read(tmp_path: Path) -> None:
    _write(tmp_path, "01/01.txt")
    desk = _Desk(tmp_path)
    chapter = desk.coordinator.acquire_next(desk.book.chapters)
    assert chapter is not None
    (tmp_path / "book" / "01").rename(tmp_path / "away")
    with pytest.raises(SourceUnavailable):
        desk.reader.read(chapter)
    (row,) = desk.store.get([Key("chapters", "", "01")])
    assert row is not None
    assert row.status is Status.ASSIGNED


# --- the source for `holdfast run` ---------------------------------------------------------------------------------


def _numbers(position: int | None, up_to: int = 250) -> tuple[Ranges, Lease]:
    source = Ranges(RangesConfig(up_to=up_to, partition_size=100))
    last = list(source.discover({}))[-1]
    return source, Lease("p", last.key, spec=last.spec, progress=Progress(position=position))


def test_partitions_cover_every_number_once() -> None:
    source = Ranges(RangesConfig(up_to=250, partition_size=100))
    covered = [range(found.spec["start"], found.spec["end"]) for found in source.discover({})]
    assert [number for span in covered for number in span] == list(range(250))


@pytest.mark.parametrize(
    ("position", "limits", "planned"),
    [
        (None, Limits(), Cut(200, 250, last=True, size=400)),
        (None, Limits(max_records=20), Cut(200, 220, size=160)),
        (220, Limits(max_records=20), Cut(220, 240, size=160)),
        (240, Limits(max_records=20), Cut(240, 250, last=True, size=80)),
        (None, Limits(max_bytes=80), Cut(200, 210, size=80)),
        (None, Limits(max_bytes=1), Cut(200, 201, size=8)),
        (250, Limits(), Done()),
    ],
)
def test_a_batch_begins_at_the_position_and_keeps_the_limits(
    position: int | None, limits: Limits, planned: Cut | Done
) -> None:
    source, lease = _numbers(position)
    assert source.plan([lease], limits) == [planned]


def test_the_entry_point_of_the_example_names_its_plugin() -> None:
    offered = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["entry-points"]
    assert offered["holdfast.sources"] == {PLUGIN.name: "holdfast_own_source.ranges:PLUGIN"}
    assert isinstance(PLUGIN, Plugin)
    assert PLUGIN.build(PLUGIN.config(up_to=1)).name(_numbers(None)[1]).stream == "numbers"
