"""Actions on pages, while the fleet goes on: what a person has seen is what is done, or nothing is."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from holdfast.assemble import StoredPipeline, coordinator_of, new_session
from holdfast.leases.lease import Status
from holdfast.leases.query import Query
from holdfast.leases.store import Outcome, Swap
from holdfast.leases.world import host_world
from holdfast.runs import rewind
from tests.web.browser import PATIENCE, ServedFleet, quick, served_fleet
from tests.web.fleet import HOSTILE, populate_letters


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[ServedFleet]:
    with served_fleet(tmp_path, readings=quick()) as served:
        yield served


def confirm(page: Page, action: str, reason: str) -> None:
    page.locator(f"[data-action='{action}']").click()
    page.locator("#confirm-reason").fill(reason)
    page.locator("#confirm-go").click()


def failed_in_clicks(fleet: ServedFleet) -> int:
    return len(fleet.store.find(Query(fleet.dashboard.identifier("clicks"), statuses=(Status.FAILED,))))


def test_all_that_match_are_acted_on_only_if_they_are_as_many_as_were_seen(fleet: ServedFleet, page: Page) -> None:
    page.goto("/pipelines/clicks?status=FAILED")
    page.locator("[data-action='Reopen all 8']").click()
    expect(page.locator("#confirm-title")).to_have_text("Reopen all 8 failed partitions?")
    identifier = fleet.dashboard.identifier("clicks")
    held = fleet.store.find(Query(identifier, statuses=(Status.ASSIGNED,), limit=2))
    fleet.change(held[0], status=Status.FAILED, owner=None)
    page.locator("#confirm-reason").fill("the parser is mended")
    page.locator("#confirm-go").click()
    expect(page.locator("#confirm-error")).to_contain_text("9")
    expect(page.locator("#confirm")).to_be_visible()
    assert failed_in_clicks(fleet) == 9
    page.locator("#confirm-cancel").click()
    # The button has the focus after the dialog: its text must follow anyway.
    fleet.change(held[1], status=Status.FAILED, owner=None)
    expect(page.locator("[data-action='Reopen all 10']")).to_have_text("Reopen all 10")
    confirm(page, "Reopen all 10", "the parser is mended")
    expect(page.locator("#toast")).to_contain_text("10 partitions reopened")
    expect(page.locator("#region-partitions")).to_contain_text("No partition matches")
    assert failed_in_clicks(fleet) == 0


def test_a_partition_is_released_while_its_owner_commits(fleet: ServedFleet, page: Page) -> None:
    page.goto("/pipelines/orders/partition?key=orders%7C3")
    before = fleet.row("orders|3", "orders")
    begun, committed = threading.Event(), list[int]()

    def commit() -> None:
        """What the owner does until it is refused: read nothing but its own row, and swap that."""
        row = before
        while True:
            owned = replace(row.ownership, version=row.version + 1)
            next_row = replace(row, ownership=owned, commit=replace(row.commit, sequence=row.commit.sequence + 1))
            (outcome,) = fleet.store.swap([Swap(row.version, next_row)])
            if outcome is not Outcome.OK:
                return
            row = next_row
            committed.append(row.commit.sequence)
            begun.set()

    owner = threading.Thread(target=commit)
    owner.start()
    assert begun.wait(60)
    confirm(page, "Release", "it is stuck")
    expect(page.locator("h1 + .state")).to_contain_text("UNASSIGNED")
    owner.join(60)
    after = fleet.row("orders|3", "orders")
    assert (after.owner, after.status) == (None, Status.UNASSIGNED)
    assert after.commit.sequence == committed[-1] == before.commit.sequence + len(committed)


def bury(fleet: ServedFleet, folder: Path, sequence: int, *reasons: str) -> StoredPipeline:
    return populate_letters(fleet.dashboard.settings, fleet.store, folder, sequence, *reasons)


def audited(page: Page, *texts: str) -> None:
    page.goto("/audit")
    for text in texts:
        expect(page.locator("#region-entries tbody tr").first).to_contain_text(text)


def test_letters_are_sent_again_after_a_dry_run_and_a_confirmation_and_that_is_audited(
    fleet: ServedFleet, page: Page, tmp_path: Path
) -> None:
    stored = bury(fleet, tmp_path, 1, f"odd {HOSTILE}", "bad")
    page.goto("/letters?pipeline=invoices")
    expect(page.locator("#letters-invoices")).to_contain_text("2 waiting")
    page.get_by_role("link", name="Redrive files…").click()
    preview = page.locator("#region-preview")
    expect(preview).to_contain_text("nothing is changed yet")
    page.get_by_text("By partition").click()
    expect(preview.locator("tbody tr")).to_contain_text(["invoices|1"])
    expect(page.locator("#region-letters")).to_contain_text(HOSTILE)
    assert list(stored.runs().list()) == []
    confirm(page, "Redrive 2", "the parser is mended")
    expect(page.locator("#confirm")).to_be_hidden()
    (run,) = [run.id for run in stored.runs().list()]
    audited(page, "the parser is mended", "redrive", run)


def test_letters_are_sent_again_only_if_as_many_wait_as_were_seen(
    fleet: ServedFleet, page: Page, tmp_path: Path
) -> None:
    stored = bury(fleet, tmp_path, 1, "bad", "odd")
    page.goto("/letters/redrive?pipeline=invoices&sink=files&reason=bad")
    page.locator("[data-action='Redrive 1']").click()
    bury(fleet, tmp_path, 2, "bad")
    page.locator("#confirm-reason").fill("the parser is mended")
    page.locator("#confirm-go").click()
    expect(page.locator("#confirm-error")).to_contain_text("2 letters match now, not 1")
    assert list(stored.runs().list()) == []
    page.locator("#confirm-cancel").click()
    expect(page.locator("[data-action='Redrive 2']")).to_be_visible()
    confirm(page, "Redrive 2", "the parser is mended")
    expect(page.locator("#toast")).to_contain_text("redrive-")
    assert len(list(stored.runs().list())) == 1


class KafkaLog:
    """A log that begins at 0."""

    def starts(self, wanted: list[Any]) -> dict[Any, int]:
        return dict.fromkeys(wanted, 0)

    def close(self) -> None:
        """Nothing is open."""


def test_a_partition_is_rewound_after_a_look_at_what_that_would_do(
    fleet: ServedFleet, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewind, "_cluster", lambda _pipeline: KafkaLog())
    page.goto("/pipelines/invoices/partition?key=invoices%7C1")
    page.get_by_role("link", name="Rewind…").click()
    expect(page.locator("#region-preview")).to_be_hidden()
    page.locator("[name=to]").fill("2000000")
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page.locator("#region-preview")).to_contain_text("committed up to 1000997: there is nothing to read again")
    page.locator("[name=to]").fill("1000000")
    page.keyboard.press("Enter")
    expect(page.locator("#region-preview")).to_contain_text("Offsets 1,000,000 to 1,000,996 of invoices|1")
    stored = StoredPipeline(fleet.dashboard.settings, fleet.store, "invoices")
    assert list(stored.runs().list()) == []
    confirm(page, "Rewind", "the bucket has lost them")
    expect(page.locator("#toast")).to_contain_text("rewind-")
    (run,) = stored.runs().list()
    audited(page, "the bucket has lost them", "rewind", run.id)
    page.goto(f"/runs/invoices?run={run.id}")
    expect(page.locator("#region-run")).to_contain_text("initializing")


@pytest.mark.parametrize(
    ("address", "button", "region", "text"),
    [
        ("/pipelines/clicks", "[data-action=Pause]", "#region-summary", "paused"),
        ("/nodes", "#node-n1-00000000 [data-action=Drain]", "#node-n1-00000000", "drained"),
        ("/runs/clicks?run=rewind-2026-11-17", "[data-action=Stop]", "#region-run", "stopped"),
        ("/generations", "[data-action='Switch to 2']", "#region-generations tbody tr >> nth=0", "current"),
        ("/proof", "#proof-invoices [data-action=Verify]", "#proof-invoices", "doubt"),
    ],
)
def test_an_action_is_done_on_the_page_of_what_it_is_about_and_audited(
    fleet: ServedFleet, page: Page, address: str, button: str, region: str, text: str
) -> None:
    page.goto(address)
    expect(page.locator(region)).not_to_contain_text(text)
    page.locator(button).click()
    page.locator("#confirm-reason").fill("for a test")
    page.locator("#confirm-go").click()
    expect(page.locator(region)).to_contain_text(text)
    assert fleet.url in page.url
    audited(page, "for a test")


NODE = """
import sys
from holdfast.assemble import StoredPipeline, coordinator_of, load_settings, new_session, open_store
from holdfast.leases.world import host_world

settings = load_settings(sys.argv[1])
store, world = open_store(settings), host_world(lambda _event: None)
session = new_session(settings, store, world, pipelines=["clicks"], name="doomed")
session.join()
(lease,) = coordinator_of(StoredPipeline(settings, store, "clicks"), world, session).claim(1)
print(lease.key, flush=True)
sys.stdin.read()
"""


def test_a_node_is_killed_and_the_timeline_says_who_held_its_partition_then_and_who_does_now(
    fleet: ServedFleet, page: Page
) -> None:
    file = fleet.dashboard.file
    file.write_text(f"node: {{session_timeout: 3s, heartbeat_interval: 500ms}}\n{file.read_text()}")
    command = [sys.executable, "-c", NODE, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as node:
        assert node.stdout is not None
        key = node.stdout.readline().strip()
        page.goto(f"/pipelines/clicks/partition?key={quote(key)}")
        expect(page.locator("h1 + .state")).to_contain_text("ASSIGNED")
        expect(page.locator("#region-progress")).to_contain_text("doomed")
        node.kill()
    page.locator("#tenures summary").click()
    take_over(fleet, key)
    rows = page.locator("#tenures tbody tr")
    expect(rows.first).to_contain_text("heir")
    expect(rows.nth(1)).to_contain_text("doomed")
    expect(rows.nth(1)).to_contain_text("died")
    expect(page.locator("#region-timeline svg")).to_contain_text("token 1, died")
    assert page.locator("#tenures").evaluate("(details) => details.open")
    page.locator("#timeline-at").focus()
    page.keyboard.press("End")
    expect(page.locator("#timeline-text")).to_contain_text("heir")
    bar = page.locator("#region-timeline svg rect").first.bounding_box()
    assert bar is not None
    page.mouse.move(bar["x"] + bar["width"] / 2, bar["y"] + bar["height"] / 2)
    page.mouse.down()
    page.mouse.up()
    expect(page.locator("#timeline-text")).to_contain_text("doomed")


def take_over(fleet: ServedFleet, key: str) -> None:
    """Be a node that takes what is free until it has that partition."""
    settings, world = fleet.dashboard.settings, host_world(lambda _event: None)
    session = new_session(settings, fleet.store, world, pipelines=["clicks"], name="heir")
    session.join()
    leases = coordinator_of(StoredPipeline(settings, fleet.store, "clicks"), world, session)
    until = time.monotonic() + PATIENCE
    while fleet.row(key).owner != session.id:
        assert time.monotonic() < until
        leases.sweep()
        leases.claim(100)
