"""Functions on three nodes that are killed and replaced. `make chaos-functions MINUTES=N` is the long form."""

from __future__ import annotations

import random
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.chaos.functions import EmbeddedRecords, Site, chaos, report
from tests.chaos.handled import Handled
from tests.e2e.fleet import eventually

BUSY = 1.0
"""Seconds by which a note of a busy machine may come late."""
STRIKES = 4
"""A worker is killed, a node is replaced, a node is killed, a node stands still."""


def handled(folder: Path, *lines: str, struck: set[int] | None = None) -> Handled:
    (folder / "0").write_text("".join(f"{line} 1.0\n" for line in lines))
    return Handled(folder, struck or set())


IN_ORDER = ("begin 0 7", "end 0 7", "begin 1 7", "end 1 7")


def test_records_that_came_once_and_in_order_are_right(tmp_path: Path) -> None:
    assert list(handled(tmp_path, *IN_ORDER).wrong(0, 2)) == []


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (IN_ORDER[:2], "were not handled"),
        (IN_ORDER[:3], "were not handled"),
        ((*IN_ORDER[2:], *IN_ORDER[:2]), "begun after -1"),
        ((*IN_ORDER, "begin 1 8", "end 1 8"), "nothing was done"),
    ],
)
def test_a_gap_another_order_and_a_repetition_are_found(tmp_path: Path, lines: tuple[str, ...], found: str) -> None:
    (wrong, *_) = handled(tmp_path, *lines).wrong(0, 2)
    assert found in wrong


def test_a_record_may_come_again_after_a_kill_but_not_once_it_is_committed(tmp_path: Path) -> None:
    seen = handled(tmp_path, *IN_ORDER, struck={7})
    seen.note_committed({0: (1, ())})
    assert list(handled(tmp_path, *IN_ORDER, "begin 1 8", "end 1 8", struck={7}).wrong(0, 2)) == []
    (tmp_path / "0").write_text((tmp_path / "0").read_text() + "begin 0 8 2.0\n")
    assert any("after it was committed" in wrong for wrong in seen.wrong(0, 2))


@pytest.mark.slow
def test_every_record_is_handled_in_order_whatever_happens_to_nodes_and_workers(tmp_path: Path) -> None:
    site = Site(tmp_path, EmbeddedRecords(tmp_path), timeout=6.0, heartbeat=1.8, spark=False)
    notes: list[str] = []
    try:
        verdict = chaos(site, STRIKES, time.monotonic(), random.Random(1), notes.append)
    finally:
        site.close()
    assert verdict.wrong == [], "\n".join([*notes, report(verdict)])
    assert verdict.records > 0


@pytest.mark.slow
def test_a_node_whose_store_is_away_stops_in_time_and_goes_on_when_it_is_back(tmp_path: Path) -> None:
    site = Site(tmp_path, EmbeddedRecords(tmp_path), timeout=4.0, heartbeat=1.0, spark=False)
    try:
        with site.producing():
            site.start("alone")
            site.wait_for_shares(1)
            site.wait_for_progress()
            with closing(sqlite3.connect(tmp_path / "leases.db", isolation_level=None)) as connection:
                connection.execute("BEGIN IMMEDIATE")  # nobody else writes until it ends
                locked_at = time.time()
                site.strike(site.nodes["alone"].pid)
                eventually(lambda: time.time() > locked_at + 2 * site.timeout, what="an outage longer than a session")
                handled = [line.at for shard in range(site.shards) for line in site.handled.lines(shard)]
                # Workers go on while the session lasts, and begin nothing after it.
                assert locked_at < max(handled) < locked_at + site.timeout + BUSY
            site.wait_for_progress()
        site.wait_until_handled(site.put)
        site.stop("alone")
        assert site.wrong() == []
    finally:
        site.close()
