"""Processes that share one pipeline, and what happens when one of them is killed, paused or stopped."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.e2e.fleet import Site, eventually

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_one_of_three_nodes_is_killed_in_the_middle_and_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.add_files(30, 8_000)
    with site.nodes("a", "b", "c") as nodes:
        eventually(lambda: site.statuses()["COMPLETED"] >= 5, what="five files are completed")
        eventually(lambda: any(site.owned_by(node) for node in nodes), what="somebody is at work")
        victim = next(node for node in nodes if site.owned_by(node))
        victim.kill()
        survivors = [node for node in nodes if node is not victim]
        assert [node.exit_code(300) for node in survivors] == [0, 0]
    assert site.statuses() == {"COMPLETED": 30}
    site.assert_exactly_once()


def test_a_node_that_was_paused_beyond_its_session_writes_nothing_when_it_wakes_up(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.add_files(8, 20_000)
    with site.nodes("sleeper") as (sleeper,):
        eventually(lambda: site.owned_by(sleeper), what="the sleeper is at work")
        sleeper.send(signal.SIGSTOP)
        with site.nodes("heir") as (heir,):
            assert heir.exit_code(300) == 0
            site.assert_exactly_once()
            before = site.published()
            sleeper.send(signal.SIGCONT)
            assert sleeper.exit_code(240) == 0
    assert site.published() == before
    assert "SessionEnded" in sleeper.said()


def test_sigterm_hands_the_leases_back_and_exits_0(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.add_files(12, 20_000)
    with site.nodes("a") as (node,):
        eventually(lambda: site.owned_by(node) and site.statuses()["COMPLETED"], what="the node is at work")
        node.send(signal.SIGTERM)
        assert node.exit_code() == 0
    assert "ASSIGNED" not in site.statuses()
    assert {status for _, status, _ in site.rows(pipeline="$nodes")} == {"COMPLETED"}
    with site.nodes("b") as (heir,):
        assert heir.exit_code(300) == 0
    site.assert_exactly_once()


def test_one_bad_file_fails_alone_after_its_retries_with_its_error_on_the_row(tmp_path: Path) -> None:
    site = Site(tmp_path, max_batches=10)
    site.add_files(5, 500)
    (tmp_path / "in" / "broken.jsonl.gz").write_bytes(b"\x1f\x8b\x08\x00 this is no gzip")
    with site.nodes("a") as (node,):
        assert node.exit_code(240) == 1
    assert site.statuses() == {"COMPLETED": 5, "FAILED": 1}
    rows = site.rows("key, json_extract(body, '$.attempts'), json_extract(body, '$.last_error')")
    ((key, attempts, error),) = [row for row in rows if row[2]]
    assert str(key).endswith("broken.jsonl.gz")
    assert attempts == 3
    assert "gzip" in str(error).lower()
    site.assert_exactly_once()


def test_in_memory_is_for_one_process_and_says_so(tmp_path: Path) -> None:
    site = Site(tmp_path, store="in_memory")
    site.add_files(20, 20_000)
    with site.nodes("a") as (first,):
        eventually(site.published, what="the first node has published something")
        with site.nodes("b") as (second,):
            assert second.exit_code(240) == 2
        assert "sqlite" in second.said()
        first.send(signal.SIGTERM)
        assert first.exit_code() == 0
    assert "loses everything when it ends" in first.said()
    with site.nodes("c") as (third,):
        assert third.exit_code(240) == 2
    assert "sqlite" in third.said()
