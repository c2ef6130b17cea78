"""A source with a loop of its own, on the API for source authors: counts the words of a book.

A chapter is a folder and one partition; a page is a file in it. Any number of processes may run this at once on one
store. Progress is saved after every page, so that a chapter whose worker died goes on at the page that was next.

    python -m holdfast_own_source.chapters pipeline.yaml book words
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from holdfast import (
    FINISHED,
    Event,
    HoldfastError,
    Keeper,
    Lease,
    Partition,
    PartitionNotOwned,
    SessionExpired,
    SourceCoordinator,
    SourceUnavailable,
    host_world,
    load_settings,
    new_session,
    open_store,
)

PIPELINE = "chapters"
PAGE_LIMIT = 60.0
"""Seconds that one page may take. A worker that hangs for longer stops its heartbeat and loses its chapter."""
LOOK_AGAIN = 30.0
MOST_LOOKS = 100
STILL_WRITTEN = "WRITING"
"""A chapter that holds a file of this name gets more pages later."""


class Book:
    """The source itself: knows folders and files, and nothing of leases."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def chapters(self, state: dict[str, Any]) -> Iterator[Partition]:
        """The supplier: every chapter, in order. Runs on one worker at a time; `state` is shared by all of them."""
        yield from (Partition(path.name) for path in _listed(self._folder) if path.is_dir())
        state["times_listed"] = state.get("times_listed", 0) + 1

    def pages(self, chapter: str) -> list[Path]:
        return [path for path in _listed(self._folder / chapter) if path.suffix == ".txt"]

    def is_complete(self, chapter: str) -> bool:
        return not (self._folder / chapter / STILL_WRITTEN).exists()


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        # An error must not look like an empty folder: it is tried again, by any worker.
        raise SourceUnavailable(f"cannot list {folder}: {error.strerror}") from error


class Reader:
    """Works through chapters under leases. `step` tells the keeper what begins now and how long it may take."""

    def __init__(
        self, book: Book, coordinator: SourceCoordinator, output: Path, step: Callable[[str, float], None]
    ) -> None:
        self._book = book
        self._coordinator = coordinator
        self._output = output
        self._step = step

    def read(self, chapter: Lease) -> None:
        """From the saved page to the last one; then the chapter is done, or sleeps until there is more."""
        next_page = (chapter.progress.state or {"next_page": 0})["next_page"]
        # Asked before the pages are listed: a page that comes in between is read the next time, not skipped.
        complete = self._book.is_complete(chapter.key)
        for number, page in enumerate(self._book.pages(chapter.key)):
            if number >= next_page:
                self._step("page", PAGE_LIMIT)
                self._count_words(chapter.key, page)
                self._coordinator.save_state(chapter, {"next_page": number + 1})
                print(f"chapter {chapter.key} page {page.stem} under token {chapter.token}", flush=True)
        if complete:
            self._coordinator.complete(chapter)
        else:
            self._coordinator.close(chapter, LOOK_AGAIN, MOST_LOOKS)

    def _count_words(self, chapter: str, page: Path) -> None:
        # A worker may die between this and `save_state`; the next one then does the page again. So the result has a
        # name that follows from the page: written twice, it is there once.
        words = len(page.read_text().split())
        result = self._output / f"{chapter}-{page.stem}.json"
        result.write_text(json.dumps({"chapter": chapter, "page": page.stem, "words": words}))


def work(settings_file: Path, book: Book, output: Path) -> None:
    """Read until every chapter is COMPLETED or FAILED, whoever reads it.

    Raises `SupplierFailed` if the book cannot be listed: that is not the same as a book that has been read.
    """
    settings = load_settings(settings_file)
    store = open_store(settings)
    world = host_world(_report)
    session = new_session(settings, store, world, pipelines=[])
    keeper = Keeper(session, world)
    pipeline = settings.identifier(PIPELINE)
    coordinator = SourceCoordinator(
        store, world, session, pipeline, ownership_timeout=settings.coordination.ownership_timeout
    )
    reader = Reader(book, coordinator, output, keeper.step)
    try:
        while True:
            if not session.usable:  # at the start, or when this worker was away for too long
                session.join()
                keeper.start()
            keeper.step("acquire", PAGE_LIMIT)
            chapter = next_chapter(coordinator, book)
            if chapter is not None:
                read_or_let_go(reader, chapter)
            elif coordinator.supplied() and not set(store.count(pipeline)) - set(FINISHED):
                return
            else:
                world.clock.wait(session.timing.heartbeat)
    finally:
        coordinator.give_up_all()
        keeper.stop()
        session.leave()
        store.close()


def next_chapter(coordinator: SourceCoordinator, book: Book) -> Lease | None:
    try:
        return coordinator.acquire_next(book.chapters)
    except SessionExpired:
        return None  # this worker was away for too long, and joins again


def read_or_let_go(reader: Reader, chapter: Lease) -> None:
    try:
        reader.read(chapter)
    except PartitionNotOwned as lost:
        # This worker was taken for dead and another one has the chapter now: nothing to do but to let go.
        print(f"let go: {lost}", flush=True)


def _report(event: Event) -> None:
    if event.level in {"warning", "error"}:
        print(event, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Count the words of a book, page by page.")
    parser.add_argument("settings", type=Path, help="the YAML file with the store")
    parser.add_argument("book", type=Path, help="the folder with one folder per chapter")
    parser.add_argument("output", type=Path, help="the folder for the counts")
    given = parser.parse_args()
    # A worker that is asked to stop hands its chapter back at once instead of letting the others wait.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    given.output.mkdir(parents=True, exist_ok=True)
    try:
        work(given.settings, Book(given.book), given.output)
    except HoldfastError as failed:
        sys.exit(f"not done: {failed}")


if __name__ == "__main__":
    main()
