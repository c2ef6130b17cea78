from __future__ import annotations

import sqlite3

import pytest

from holdfast import configured_store, errors
from holdfast.cli.exit_codes import CODES, MEANINGS, ExitCode, exit_code
from holdfast.leases.lease import Partition
from tests.unit.cli.conftest import Site

AWAY = "tests.unit.cli.fakes:AWAY:"
BROKEN = "tests.unit.cli.fakes:BROKEN:"
ON_THE_STORE = [("nodes",), ("nodes", "--json"), ("partitions", "list"), ("partitions", "list", "--json")]


@pytest.mark.parametrize("command", ON_THE_STORE, ids=" ".join)
def test_a_store_that_does_not_answer_is_3(site: Site, command: tuple[str, ...]) -> None:
    result = site.invoke(*command, site.write(store=AWAY))

    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == "error: db.example.com:5432 does not answer\n"


def test_a_store_that_is_locked_is_3(site: Site) -> None:
    file = site.write()
    site.coordinator(file).create([Partition("a")])
    other = sqlite3.connect(site.folder / "leases.db", isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        result = site.invoke("partitions", "fail", file, "a")
    finally:
        other.close()

    assert result.exit_code == 3
    assert "locked" in result.stderr


def test_a_bug_is_70_and_one_line(site: Site) -> None:
    result = site.invoke("nodes", site.write(store=BROKEN))

    assert (result.exit_code, result.stdout) == (70, "")
    assert result.stderr == (
        "error: this is a bug: KeyError: 'a programming error\\nover two lines' (--verbose shows where it happened)\n"
    )


def test_a_bug_shows_where_it_happened_on_request(site: Site) -> None:
    result = site.invoke("--verbose", "nodes", site.write(store=BROKEN))

    assert result.exit_code == 70
    assert "Traceback (most recent call last)" in result.stderr
    assert "in _broken" in result.stderr


def test_an_error_of_holdfast_shows_where_it_happened_on_request(site: Site) -> None:
    file = site.write(store=AWAY)

    assert "Traceback" not in site.invoke("nodes", file).stderr
    result = site.invoke("--verbose", "nodes", file)
    assert result.exit_code == 3
    assert "Traceback" in result.stderr
    assert result.stderr.endswith("error: db.example.com:5432 does not answer\n")


def test_the_keyboard_ends_a_command_with_130(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object, *, create: bool) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(configured_store, "open_store", interrupted)
    result = site.invoke("nodes", site.write())
    assert (result.exit_code, result.output) == (130, "")


@pytest.mark.parametrize(
    "arguments", [("nodes",), ("frobnicate",), ("nodes", "f.yaml", "--frobnicate"), ("partitions", "show", "f.yaml")]
)
def test_wrong_usage_is_2(site: Site, arguments: tuple[str, ...]) -> None:
    result = site.invoke(*arguments)

    assert (result.exit_code, result.stdout) == (2, "")
    assert "Usage: holdfast" in result.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigError([]), 2),
        (errors.UsageError(""), 2),
        (errors.Refused(""), 2),
        (errors.SchemaMismatch(""), 2),
        (errors.TransitionRefused(""), 2),
        (errors.PartitionNotFound("k", ""), 2),
        (errors.PartitionUpdateFailed("k", ""), 3),
        (errors.AnswerLost(""), 3),
        (errors.SourceUnavailable(""), 3),
        (errors.SinkUnavailable(""), 3),
        (errors.Interrupted(""), 130),
        (errors.LeaseLost(""), 70),
        (ValueError(""), 70),
    ],
)
def test_codes_of_errors(error: Exception, code: int) -> None:
    assert exit_code(error) == code


def test_every_code_has_a_meaning() -> None:
    assert set(MEANINGS) == set(ExitCode)
    assert {code for _, code in CODES} <= set(ExitCode)
