"""A process that is stopped while it holds the lock of a store in files does not keep the others from writing."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.leases.lease import Lease
from holdfast.leases.store import ClaimRequest, Outcome, Store, Swap
from holdfast.stores.object.folder import FolderObjects
from holdfast.stores.object.store import ObjectStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.rows import PIPELINE, make_row, touched

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and pidfd")
PATIENT = 20.0


def stop_here() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


class StoppingFolder(FolderObjects):
    """Stops its process when it has the lock of an object."""

    def _replace(self, draft: Path, path: Path, tag: str | None) -> str:
        stop_here()
        return super()._replace(draft, path, tag)


def claim_in_sqlite(folder: Path) -> None:
    def stopping() -> float:
        stop_here()
        return time.time()

    store = SqliteStore(folder / "leases.db", busy_timeout=0.5, now=stopping)
    store.claim(ClaimRequest(PIPELINE, "me", "claim", 1))


def swap_in_folder(folder: Path) -> None:
    store = ObjectStore(StoppingFolder(folder / "store", patience=0.5, above=folder))
    row = make_row("a")
    store.swap([Swap(row.version, touched(row))])


def sqlite_store(folder: Path) -> Store:
    return SqliteStore(folder / "leases.db", busy_timeout=PATIENT)


def folder_store(folder: Path) -> Store:
    return ObjectStore(FolderObjects(folder / "store", patience=PATIENT, above=folder))


KINDS = {"sqlite": (sqlite_store, claim_in_sqlite), "folder": (folder_store, swap_in_folder)}


def never_goes_on(work: Callable[[Path], None], folder: Path) -> None:
    signal.signal(signal.SIGCONT, lambda _number, _frame: stop_here())
    work(folder)


def started_and_stopped(work: Callable[..., None], *arguments: object) -> int:
    child = multiprocessing.get_context("fork").Process(target=work, args=arguments)
    child.start()
    assert child.pid is not None
    _, status = os.waitpid(child.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    return child.pid


def version_written(store: Store) -> Outcome:
    """Write a row of our own, which needs the same lock, and say what came of it."""
    row = make_row("a")
    (present,) = store.get([row.id])
    assert isinstance(present, Lease)
    (outcome,) = store.swap([Swap(present.version, touched(present))])
    return outcome


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> tuple[Callable[[Path], Store], Callable[[Path], None]]:
    return KINDS[request.param]


def test_a_holder_that_is_stopped_goes_on_and_lets_the_others_write(
    kind: tuple[Callable[[Path], Store], Callable[[Path], None]], tmp_path: Path
) -> None:
    make_store, work = kind
    store = make_store(tmp_path)
    store.open()
    store.add([make_row("a")])
    pid = started_and_stopped(work, tmp_path)
    assert version_written(store) in (Outcome.OK, Outcome.CONFLICT)  # the other write may come first
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    store.close()


def test_a_holder_that_cannot_go_on_is_killed(
    kind: tuple[Callable[[Path], Store], Callable[[Path], None]], tmp_path: Path
) -> None:
    make_store, work = kind
    store = make_store(tmp_path)
    store.open()
    store.add([make_row("a")])
    pid = started_and_stopped(never_goes_on, work, tmp_path)
    assert version_written(store) is Outcome.OK
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert version_written(store) is Outcome.OK
    store.close()
