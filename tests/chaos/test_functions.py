"""Functions on three nodes that are killed and replaced. `make chaos-functions MINUTES=N` is the long form."""

from __future__ import annotations

import os
import random
import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from holdfast.assemble import load_settings, new_session, open_store
from holdfast.leases.lease import Status
from holdfast.leases.query import Query
from holdfast.leases.session import nodes_of
from holdfast.leases.store import Swap
from holdfast.leases.world import host_world
from tests.chaos.functions import EmbeddedRecords, KafkaRecords, Site, chaos, report
from tests.chaos.handled import Handled
from tests.e2e.fleet import eventually
from tests.servers.kafka import KafkaServer
from tests.servers.processes import running

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


def test_a_node_that_left_is_not_struck_and_one_whose_session_ended_otherwise_is(tmp_path: Path) -> None:
    site = Site(tmp_path, EmbeddedRecords(tmp_path))
    settings, ended = load_settings(tmp_path / "pipeline.yaml"), Status.COMPLETED
    with closing(open_store(settings)) as store:
        session = new_session(settings, store, host_world(lambda _event: None), pipelines=["orders"])
        session.join()
        session.drain()
        session.leave()
        assert site.expired() == []
        session.join()
        (row,) = store.find(Query(nodes_of(""), statuses=(Status.ASSIGNED,)))
        ownership = replace(row.ownership, status=ended, version=row.version + 1, write_id="expired", due_at=None)
        store.swap([Swap(row.version, replace(row, ownership=ownership))])
    assert site.expired() == [os.getpid()]
    site.close()


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


@pytest.mark.slow
def test_a_function_says_that_it_waits_for_brokers_that_stand_still_and_goes_on_in_the_same_process(
    tmp_path: Path,
) -> None:
    with running(KafkaServer) as kafka:
        site = Site(tmp_path, KafkaRecords(kafka), timeout=6.0, heartbeat=1.8, spark=False)
        log = tmp_path / "alone.log"
        try:
            with site.producing():
                site.start("alone")
                site.wait_for_shares(1)
                site.wait_for_progress()
                for outage in (1, 2):
                    kafka.freeze()
                    said = partial(lambda words, times: log.read_text().count(words) >= times, times=outage)
                    eventually(partial(said, "the shards wait for their stream"), what="a notice that it waits")
                    kafka.thaw()
                    eventually(partial(said, "the stream responds"), what="a notice that it goes on")
                    site.wait_for_progress()
            site.wait_until_handled(site.put)
            site.stop("alone")
        finally:
            site.close()
        # Nobody was struck: no record may come twice.
        assert site.wrong() == []
        assert len({worker for shard in range(site.shards) for worker in site.handled.workers(shard)}) == 1
