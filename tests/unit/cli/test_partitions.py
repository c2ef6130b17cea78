from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.cli import output
from holdfast.cli.partitions import StatusName
from holdfast.leases import transitions
from holdfast.leases.coordinator import Coordinator
from holdfast.leases.lease import Key, Lease, Partition, Status
from holdfast.leases.store import Swap
from holdfast.leases.token_floor import REST
from tests.unit.cli.conftest import Site

DAY = 86_400.0


@pytest.fixture
def file(site: Site) -> str:
    return site.write()


@pytest.fixture
def leases(site: Site, file: str) -> Coordinator:
    return site.coordinator(file)


def made(leases: Coordinator, *keys: str) -> None:
    leases.create([Partition(key) for key in keys])


def completed(leases: Coordinator, *keys: str, days_ago: float = 0.0) -> None:
    made(leases, *keys)
    for lease in leases.claim(len(keys)):
        (done,) = leases.write([lease], transitions.complete)
        assert isinstance(done, Lease)
        at = (done.history.completed_at or 0.0) - days_ago * DAY
        long_ago = replace(done, history=replace(done.history, completed_at=at))
        leases.store.swap([Swap(done.version, long_ago)])


def row(leases: Coordinator, key: str) -> Lease:
    (found,) = leases.store.get([Key(leases.pipeline, "", key)])
    assert found is not None
    return found


# --- list and show ---------------------------------------------------------------------------------------------------


def test_list_shows_every_partition_with_its_state(site: Site, file: str, leases: Coordinator) -> None:
    made(leases, "bucket|a", "bucket|b")
    leases.claim(1)

    result = site.invoke("partitions", "list", file)

    assert result.exit_code == 0
    head, first, second = result.stdout.splitlines()
    assert head.split()[:3] == ["KEY", "STATUS", "OWNER"]
    assert first.split()[:4] == ["bucket|a", "ASSIGNED", leases.session.id, "1"]
    assert second.split()[:4] == ["bucket|b", "UNASSIGNED", "-", "0"]
    assert result.stderr == "2 partitions in total: 1 UNASSIGNED, 1 ASSIGNED\n"


def test_list_as_json_is_a_list_of_rows(site: Site, file: str, leases: Coordinator) -> None:
    assert site.json("partitions", "list", file) == []
    made(leases, "b", "a")
    leases.claim(1)

    rows = site.json("partitions", "list", file)
    keys_and_statuses = [(row["sourcePartitionKey"], row["sourcePartitionStatus"]) for row in rows]
    assert keys_and_statuses == [("a", "UNASSIGNED"), ("b", "ASSIGNED")]
    assert {row["sourceIdentifier"] for row in rows} == {"prod|orders"}
    assert rows[1]["partitionOwner"] == leases.session.id


def test_list_by_status_and_limit(site: Site, file: str, leases: Coordinator) -> None:
    made(leases, "a", "b", "c")
    leases.claim(1)

    def keys(*options: str) -> list[str]:
        return [row["sourcePartitionKey"] for row in site.json("partitions", "list", file, *options)]

    assert keys("--status", "ASSIGNED") == ["a"]
    assert keys("--status", "unassigned") == ["b", "c"]
    assert keys("--status", "FAILED", "--status", "ASSIGNED") == ["a"]
    assert keys("--limit", "2") == ["a", "b"]


def test_a_status_that_does_not_exist_is_wrong_usage(site: Site, file: str) -> None:
    result = site.invoke("partitions", "list", file, "--status", "DONE")

    assert result.exit_code == 2
    assert "DONE" in result.stderr


def test_keys_cannot_act_on_the_terminal(site: Site, file: str, leases: Coordinator) -> None:
    made(leases, "a\x1b[2J\nb", "[red]c")

    lines = site.invoke("partitions", "list", file).stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["[red]c", r"a\x1b[2J\nb"]
    result = site.invoke("partitions", "fail", file, "a\x1b[2J\nb")
    assert result.stdout == "a\\x1b[2J\\nb is now FAILED\n"
    assert site.json("partitions", "show", file, "a\x1b[2J\nb")["sourcePartitionKey"] == "a\x1b[2J\nb"


def test_show_one_partition(site: Site, file: str, leases: Coordinator) -> None:
    made(leases, "a")

    shown = site.json("partitions", "show", file, "a")
    assert (shown["sourcePartitionKey"], shown["sourcePartitionStatus"], shown["token"]) == ("a", "UNASSIGNED", 0)
    text = site.invoke("partitions", "show", file, "a").stdout
    assert shown.pop("tenures") == []
    assert [line.split()[0] for line in text.splitlines()] == ["FIELD", *shown]


def test_show_who_held_a_partition(site: Site, file: str, leases: Coordinator) -> None:
    made(leases, "a")
    (taken,) = leases.claim(1)
    site.invoke("partitions", "release", file, "a")

    (held,) = site.json("partitions", "show", file, "a")["tenures"]
    assert (held["token"], held["owner"], held["how"]) == (1, taken.owner, "released")
    assert held["by"], "the person who has released it"
    last = site.invoke("partitions", "show", file, "a").stdout.splitlines()[-1].split()
    assert (last[0], last[1], last[-2:]) == ("1", taken.owner, ["released", held["by"]])


def test_show_a_partition_that_does_not_exist(site: Site, file: str) -> None:
    site.store(file).close()
    result = site.invoke("partitions", "show", file, "nowhere")

    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == "error: partition 'nowhere': there is no such partition\n"


# --- which pipeline --------------------------------------------------------------------------------------------------


def test_the_pipeline_must_be_named_if_there_are_several(site: Site) -> None:
    file = site.write("orders", "users")
    made(site.coordinator(file, "users"), "u")

    result = site.invoke("partitions", "list", file)
    assert result.exit_code == 2
    assert result.stderr == "error: this file has several pipelines; add --pipeline with one of orders, users\n"
    (row,) = site.json("partitions", "list", file, "--pipeline", "users")
    assert row["sourceIdentifier"] == "prod|users"
    assert site.json("partitions", "list", file, "--pipeline", "orders") == []


def test_a_pipeline_that_is_not_in_the_file(site: Site, file: str) -> None:
    result = site.invoke("partitions", "list", file, "--pipeline", "order")

    assert result.exit_code == 2
    assert result.stderr == "error: there is no pipeline 'order' in this file; did you mean 'orders'?\n"


def test_two_prefixes_on_one_store_do_not_see_each_other(site: Site) -> None:
    blue, green = site.write(prefix="blue", name="blue"), site.write(prefix="green", name="green")
    made(site.coordinator(blue), "a")
    made(site.coordinator(green, node="replica2"), "b")

    for file, prefix, key, node in ((blue, "blue", "a", "replica1"), (green, "green", "b", "replica2")):
        (row,) = site.json("partitions", "list", file)
        assert (row["sourceIdentifier"], row["sourcePartitionKey"]) == (f"{prefix}|orders", key)
        assert [shown["name"] for shown in site.json("nodes", file)] == [node]
    assert site.invoke("partitions", "fail", green, "a").exit_code == 2


# --- changes ---------------------------------------------------------------------------------------------------------


def test_release_takes_a_partition_from_its_owner(site: Site, file: str, leases: Coordinator) -> None:
    made(leases, "a")
    (lease,) = leases.claim(1)

    result = site.invoke("partitions", "release", file, "a")

    assert (result.exit_code, result.stdout) == (0, "a is now UNASSIGNED\n")
    (late,) = leases.write([lease], transitions.complete)
    assert not isinstance(late, Lease)
    assert row(leases, "a").owner is None


def test_fail_and_reopen_several_partitions(site: Site, file: str, leases: Coordinator) -> None:
    made(leases, "a", "b")

    failed = site.invoke("partitions", "fail", file, "a", "b", "--reason", "wrong encoding")
    assert (failed.exit_code, failed.stdout) == (0, "a is now FAILED\nb is now FAILED\n")
    shown = site.json("partitions", "show", file, "b")
    assert (shown["halt_reason"], shown["last_error"]) == ("wrong encoding", "wrong encoding")

    reopened = site.invoke("partitions", "reopen", file, "a", "b")
    assert (reopened.exit_code, reopened.stdout) == (0, "a is now UNASSIGNED\nb is now UNASSIGNED\n")


def test_reopen_all_failed_partitions(site: Site, file: str, leases: Coordinator) -> None:
    made(leases, "a", "b", "c")
    site.invoke("partitions", "fail", file, "a", "c")

    unconfirmed = site.invoke("partitions", "reopen", file, "--status", "FAILED")
    assert unconfirmed.stderr == "error: there is no terminal to ask for confirmation; use --yes\n"
    reopened = site.invoke("partitions", "reopen", file, "--status", "failed", "--yes")
    assert (reopened.exit_code, reopened.stdout) == (0, "a is now UNASSIGNED\nc is now UNASSIGNED\n")
    assert site.invoke("partitions", "reopen", file, "--status", "FAILED").stdout == "there are no FAILED partitions\n"


@pytest.mark.parametrize("arguments", [(), ("a", "--status", "FAILED"), ("--status", "ASSIGNED")])
def test_what_cannot_be_reopened_is_said(site: Site, file: str, arguments: tuple[str, ...]) -> None:
    result = site.invoke("partitions", "reopen", file, *arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")


def test_a_change_that_the_partitions_state_does_not_allow(site: Site, file: str, leases: Coordinator) -> None:
    made(leases, "a")
    leases.claim(1)

    result = site.invoke("partitions", "reopen", file, "a")

    assert result.exit_code == 2
    assert result.stderr == f"error: 'a' is being worked on by {leases.session.id}; release it first\n"


# --- purge -----------------------------------------------------------------------------------------------------------


def test_a_dry_run_says_how_many_and_changes_nothing(site: Site, file: str, leases: Coordinator) -> None:
    completed(leases, "old1", "old2", days_ago=8)
    completed(leases, "new", days_ago=6)
    before = row(leases, "old1")

    result = site.invoke("partitions", "purge", file, "--status", "COMPLETED", "--older-than", "7d", "--dry-run")

    assert (result.exit_code, result.stdout) == (0, "2 partitions would be purged\n")
    assert row(leases, "old1") == before


def test_purged_rows_keep_key_and_token_only(site: Site, file: str, leases: Coordinator) -> None:
    completed(leases, "old", days_ago=8)
    completed(leases, "new")
    token, new = row(leases, "old").token, row(leases, "new")

    result = site.invoke("partitions", "purge", file, "--older-than", "7d", "--yes")

    assert (result.exit_code, result.stdout) == (0, "1 partition purged\n")
    purged = row(leases, "old")
    assert (purged.status.value, purged.token, purged.history.created_at) == ("COMPLETED", token, None)
    assert row(leases, "new") == new
    second = site.invoke("partitions", "purge", file, "--older-than", "7d", "--yes")
    assert (second.exit_code, second.stdout) == (0, "there is nothing to purge\n")


def test_rows_that_were_purged_a_day_ago_are_forgotten(
    site: Site, file: str, leases: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    completed(leases, "old", "older", days_ago=8)
    completed(leases, "new")
    site.invoke("partitions", "purge", file, "--older-than", "7d", "--yes")
    assert (
        site.invoke("partitions", "forget", file, "--yes").stdout
        == "there is nothing to forget: only partitions that were purged at least a day ago can be forgotten\n"
    )

    later = time.time() + REST + 1
    monkeypatch.setattr("holdfast.stores.sqlite.SqliteStore.now", lambda _: later)
    assert site.invoke("partitions", "forget", file, "--dry-run").stdout == "2 partitions would be forgotten\n"
    assert site.invoke("partitions", "forget", file, "--yes").stdout == "2 partitions forgotten\n"
    assert [row["sourcePartitionKey"] for row in site.json("partitions", "list", file)] == ["new"]


@pytest.mark.parametrize("status", ["FAILED", "UNASSIGNED", "ASSIGNED", "CLOSED"])
def test_no_other_status_is_purged(site: Site, file: str, status: str) -> None:
    result = site.invoke("partitions", "purge", file, "--status", status, "--older-than", "7d", "--yes")

    assert result.exit_code == 2
    assert result.stderr == (f"error: {status} partitions cannot be purged: only COMPLETED ones are no longer needed\n")


def test_purge_does_not_ask_where_there_is_no_terminal(site: Site, file: str, leases: Coordinator) -> None:
    completed(leases, "old", days_ago=8)
    before = row(leases, "old")

    result = site.invoke("partitions", "purge", file, "--older-than", "7d", answer="y\n")

    assert result.exit_code == 2
    assert result.stderr == "error: there is no terminal to ask for confirmation; use --yes\n"
    assert row(leases, "old") == before


@pytest.mark.parametrize(
    ("answer", "said"), [("y\n", "1 partition purged"), ("n\n", "nothing was changed"), ("\n", "nothing was changed")]
)
def test_purge_asks_at_a_terminal(
    site: Site, file: str, leases: Coordinator, monkeypatch: pytest.MonkeyPatch, answer: str, said: str
) -> None:
    monkeypatch.setattr(output, "can_ask", lambda: True)
    completed(leases, "old", days_ago=8)

    result = site.invoke("partitions", "purge", file, "--older-than", "7d", answer=answer)

    assert result.exit_code == 0
    assert result.stderr == "Purge 1 partition of prod|orders? [y/N] "
    assert result.stdout == f"{said}\n"
    assert (row(leases, "old").history.created_at is None) == ("purged" in said)


def test_more_rows_than_fit_into_one_write_are_purged(
    site: Site, file: str, leases: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.runs.partition_actions.PURGE_CHUNK", 2)
    completed(leases, *"abcde", days_ago=1)

    result = site.invoke("partitions", "purge", file, "--older-than", "1h", "--yes")
    assert result.stdout == "5 partitions purged\n"


def test_a_duration_that_is_none(site: Site, file: str) -> None:
    result = site.invoke("partitions", "purge", file, "--older-than", "a week")

    assert result.exit_code == 2
    assert result.stderr == "error: --older-than: 'a week' is not a duration; write 30s, 5m, 1h or PT30S\n"


def test_a_store_that_is_not_there_is_an_error_and_is_not_made(tmp_path: Path) -> None:
    file = tmp_path / "typo.yaml"
    file.write_text(
        f"source_coordination: {{store: {{sqlite: {{path: {tmp_path}/typo.db}}}}}}\n"
        "pipelines: {p: {source: {objects: {folder: in, codec: text}}, sinks: [{files: {root: out, format: jsonl}}]}}\n"
    )
    result = subprocess.run(
        [sys.executable, "-m", "holdfast", "partitions", "list", str(file)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert "does not exist" in result.stderr
    assert not (tmp_path / "typo.db").exists()


def test_every_status_can_be_named_on_the_command_line() -> None:
    assert [status.value for status in StatusName] == [status.value for status in Status]
