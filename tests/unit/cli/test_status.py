"""`holdfast status` as a person or a script uses them."""

from __future__ import annotations

import json

import pytest

from holdfast.cli.status import WATCH_EVERY
from holdfast.leases import transitions
from holdfast.leases.lease import Partition
from holdfast.observe.overview import MOST_FAILURES
from tests.unit.cli.conftest import Site


def test_everything_is_on_one_screen_with_the_next_command(site: Site) -> None:
    file = site.write()
    leases = site.coordinator(file)
    leases.create([Partition("a"), Partition("b\x1b[2J")])
    leases.write(leases.claim(2)[1:], lambda row, now: transitions.halt(row, "disk <full>", now))

    shown = site.invoke("status", file)

    assert (shown.exit_code, shown.stderr) == (0, "")
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert ["orders", "active", "1", "0", "1", "0", "1", "0", "-", "-", "0"] in lines
    assert ["replica1", "alive", "1"] in [line[:3] for line in lines]
    assert "disk <full>" in shown.stdout
    assert "\x1b" not in shown.stdout
    assert f"`holdfast partitions reopen {file} --pipeline orders --status FAILED`" in shown.stdout


def test_failures_that_are_not_shown_are_counted(site: Site) -> None:
    file = site.write()
    leases = site.coordinator(file)
    leases.create([Partition(f"p{number:02d}") for number in range(MOST_FAILURES + 3)])
    leases.write(leases.claim(MOST_FAILURES + 3), lambda row, now: transitions.halt(row, "bad", now))
    lines = site.invoke("status", file).stdout.splitlines()
    assert sum(" bad" in line for line in lines) == MOST_FAILURES
    listed = f"`holdfast partitions list {file} --pipeline orders --status FAILED` shows them"
    assert f"orders: 3 more are FAILED; {listed}" in lines


def test_json_is_the_overview(site: Site) -> None:
    file = site.write("orders", "users")
    site.store(file).close()
    found = site.json("status", file)
    assert list(found) == ["at", "pipelines", "nodes", "runs", "failures"]
    assert [row["pipeline"] for row in found["pipelines"]] == ["orders", "users"]
    assert "no node is alive" in site.invoke("status", file).stdout


def test_watching_repeats_until_it_is_interrupted(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    file = site.write()
    site.store(file).close()
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("holdfast.cli.status.time.sleep", sleep)
    result = site.invoke("status", file, "--watch", "--json")
    assert [json.loads(line)["pipelines"][0]["pipeline"] for line in result.stdout.splitlines()] == ["orders"] * 3
    assert min(waits) >= WATCH_EVERY
