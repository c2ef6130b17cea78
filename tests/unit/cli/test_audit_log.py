"""`holdfast audit-log`: every command that changes something is in it."""

from __future__ import annotations

import getpass
import socket

import pytest

from holdfast import assemble
from holdfast.errors import StoreUnavailable
from holdfast.leases.lease import Partition
from holdfast.stores.sqlite import SqliteStore
from tests.unit.cli.conftest import Site

HOSTILE = "<b>|\x1b[31m'; drop\n"


@pytest.fixture
def file(site: Site) -> str:
    file = site.write()
    leases = site.coordinator(file)
    leases.create([Partition("a"), Partition(HOSTILE)])
    leases.claim(2)
    opened = assemble.StoredPipeline(assemble.load_settings(file), leases.store, "orders")
    opened.runs().add("redrive-1", configuration={"kind": "redrive"}, created_by="ben")
    return file


def test_every_command_that_changes_something_is_audited(site: Site, file: str) -> None:
    commands = (
        ("partitions", "release", file, "a", "--reason", "stuck"),
        ("partitions", "fail", file, "a", "--reason", "wrong bucket"),
        ("partitions", "reopen", file, "--status", "FAILED", "--yes"),
        ("partitions", "reopen", file, "nothing"),
        ("pipelines", "pause", file, "--reason", "upgrade"),
        ("pipelines", "resume", file),
        ("drain", file, "replica1"),
        ("undrain", file, "replica1"),
        ("runs", "throttle", file, "redrive-1", "5"),
        ("runs", "stop", file, "redrive-1"),
        ("runs", "resume", file, "redrive-1"),
        ("generation", "switch", file, "7"),
        ("generation", "back", file),
        ("rewind", file, "--topic", "t", "--partition", "0", "--to", "3"),
    )
    for command in commands:
        site.invoke(*command)
    entries = site.json("audit-log", file)[::-1]
    assert [(entry["action"], entry["outcome"], entry["reason"]) for entry in entries] == [
        ("partitions release", "done", "stuck"),
        ("partitions fail", "done", "wrong bucket"),
        ("partitions reopen", "done", ""),
        ("partitions reopen", "refused", ""),
        ("pipelines pause", "done", "upgrade"),
        ("pipelines resume", "done", ""),
        ("drain", "done", ""),
        ("undrain", "done", ""),
        ("runs throttle", "done", ""),
        ("runs stop", "done", ""),
        ("runs resume", "done", ""),
        ("generation switch", "refused", ""),
        ("generation back", "refused", ""),
        ("rewind", "refused", ""),
    ]
    assert {(entry["who"], entry["via"], entry["origin"]) for entry in entries} == {
        (getpass.getuser(), "cli", socket.gethostname())
    }
    assert [entry["action"] for entry in site.json("audit-log", file, "--limit", "2")] == ["rewind", "generation back"]
    (before,) = site.json("audit-log", file, "--limit", "1", "--before", entries[1]["id"])
    assert before["id"] == entries[0]["id"]


def test_commands_that_only_look_are_not(site: Site, file: str) -> None:
    for command in (
        ("partitions", "list", file),
        ("partitions", "purge", file, "--older-than", "1d", "--dry-run"),
        ("runs", "show", file, "redrive-1"),
        ("nodes", file),
        ("pipelines", "list", file),
    ):
        assert site.invoke(*command).exit_code == 0
    assert site.json("audit-log", file) == []


def test_text_of_others_stays_text(site: Site, file: str) -> None:
    site.invoke("partitions", "release", file, HOSTILE, "--reason", "\x1b[2Jgone\nTIME WHO")
    assert site.json("audit-log", file)[0]["keys"] == [HOSTILE]
    shown = site.invoke("audit-log", file).stdout
    assert "\x1b" not in shown
    assert len(shown.splitlines()) == 2


def test_without_an_audit_log_a_command_changes_nothing(site: Site, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise StoreUnavailable("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(SqliteStore, "add", away)
        result = site.invoke("partitions", "release", file, "a")
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == "error: nothing was done, because the audit log cannot be written: the disk is full\n"
    assert "2 ASSIGNED" in site.invoke("partitions", "list", file).stderr
