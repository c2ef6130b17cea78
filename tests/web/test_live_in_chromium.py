"""Pages that stay open: they follow the store, say when they cannot, and catch up afterwards."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import APIResponse, Browser, Page, Route, expect

from holdfast.errors import StoreUnavailable
from holdfast.flow.run import GroupStats, RunStatus, run_of, runs_of, with_run
from holdfast.leases.lease import Key, Status
from holdfast.leases.store import Store, Swap
from holdfast.web.dashboard import Dashboard
from tests.web.browser import ServedFleet, opened_page, quick, served_fleet, serving
from tests.web.fleet import opened

FAILED_ORDERS = '#region-counts [title*="FAILED"]'


def fail(fleet: ServedFleet, key: str) -> None:
    fleet.change(fleet.row(key, "orders"), status=Status.FAILED, owner=None)


def watched(browser: Browser, fleet: ServedFleet) -> AbstractContextManager[Page]:
    return opened_page(browser, fleet.url)


def test_a_paused_page_asks_for_nothing_and_then_catches_up(browser: Browser, tmp_path: Path) -> None:
    asked: list[str] = []
    with (
        served_fleet(tmp_path, readings=quick()) as fleet,
        watched(browser, fleet) as page,
        watched(browser, fleet) as witness,
    ):
        page.goto("/pipelines/orders")
        witness.goto("/pipelines/orders")
        expect(page.locator("#live-text")).to_contain_text("live")
        expect(page.locator(".map output")).to_contain_text("1 of 32")
        page.keyboard.press("p")
        expect(page.locator("#live-text")).to_have_text("paused")
        page.on("request", lambda request: asked.append(request.url))
        page.on("websocket", lambda socket: asked.append(socket.url))
        fail(fleet, "orders|3")
        expect(witness.locator(FAILED_ORDERS)).to_contain_text("1")
        expect(page.locator(FAILED_ORDERS)).to_contain_text("0")
        assert asked == []
        page.keyboard.press("p")
        expect(page.locator(FAILED_ORDERS)).to_contain_text("1")
        expect(page.locator("#live-text")).to_contain_text("live")


def test_what_changed_before_a_page_listens_is_shown_too(browser: Browser, tmp_path: Path) -> None:
    with served_fleet(tmp_path, readings=quick()) as fleet, watched(browser, fleet) as page:
        held_back: list[Route] = []

        def hold_back(script: Route) -> None:
            held_back.append(script)

        page.route("**/app.js*", hold_back)
        page.goto("/pipelines/orders", wait_until="commit")
        expect(page.locator(FAILED_ORDERS)).to_contain_text("0")
        expect(page.locator("#live-text")).to_have_text("connecting")
        expect(page.locator("[data-action]").first).to_be_disabled()
        fail(fleet, "orders|3")
        while not held_back:
            page.wait_for_timeout(50)
        held_back[0].continue_()
        expect(page.locator(FAILED_ORDERS)).to_contain_text("1")
        expect(page.locator("[data-action]").first).to_be_enabled()


def test_a_change_that_could_not_be_fetched_is_fetched_later_by_one_request_at_a_time(
    browser: Browser, tmp_path: Path
) -> None:
    with served_fleet(tmp_path, readings=quick()) as fleet, watched(browser, fleet) as page:
        page.goto("/pipelines/orders")
        expect(page.locator("#live-text")).to_contain_text("live")
        refused: list[str] = []

        def refuse_twice(request: Route) -> None:
            if len(refused) == 2:
                request.continue_()
            else:
                refused.append(request.request.url)
                request.fulfill(status=503)

        page.route("**/*region=counts*", refuse_twice)
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.url) if "region=counts" in request.url else None)
        fail(fleet, "orders|3")
        fail(fleet, "orders|4")
        fail(fleet, "orders|5")
        expect(page.locator(FAILED_ORDERS)).to_contain_text("3")
        # One for each refusal, one that succeeds, and one for a tick meanwhile.
        assert (len(refused), len(requests) <= 4) == (2, True)


SOCKETS = """
  const Plain = WebSocket;
  window.sockets = [];
  window.WebSocket = class extends Plain { constructor(url) { super(url); sockets.push(this); } };
"""
OPEN_SOCKETS = "sockets.filter((socket) => socket.readyState < WebSocket.CLOSING).length"


@pytest.mark.parametrize("before", ["pause.click(); pause.click()", "sockets[0].close()"])
def test_a_paused_page_has_no_socket_whatever_came_before(browser: Browser, tmp_path: Path, before: str) -> None:
    with served_fleet(tmp_path, readings=quick()) as fleet, watched(browser, fleet) as page:
        page.add_init_script(SOCKETS)
        page.goto("/pipelines/orders")
        expect(page.locator("#live-text")).to_contain_text("live")
        page.evaluate(f"() => {{ const pause = document.getElementById('pause'); {before}; }}")
        page.keyboard.press("p")
        expect(page.locator("#live-text")).to_have_text("paused")
        expect(page.locator("[data-action]").first).to_be_disabled()
        page.wait_for_timeout(1000)  # longer than the pause before a page connects again
        assert page.evaluate(OPEN_SOCKETS) == 0
        page.keyboard.press("p")
        expect(page.locator("#live-text")).to_contain_text("live")
        assert page.evaluate(OPEN_SOCKETS) == 1


def test_a_change_that_comes_while_the_map_is_fetched_is_on_the_map(browser: Browser, tmp_path: Path) -> None:
    with served_fleet(tmp_path, readings=quick()) as fleet, watched(browser, fleet) as page:
        page.goto("/pipelines/orders")
        expect(page.locator(".map output")).to_contain_text("1 of 32")
        held_back: list[tuple[Route, APIResponse]] = []
        page.route("**/orders/map*", lambda route: held_back.append((route, route.fetch())), times=1)
        page.evaluate("document.dispatchEvent(new CustomEvent('holdfast:region', { detail: 'counts' }))")
        while not held_back:
            page.wait_for_timeout(50)
        fail(fleet, "orders|5")
        expect(page.locator(FAILED_ORDERS)).to_contain_text("1")
        ((route, response),) = held_back
        route.fulfill(response=response)
        canvas = page.locator("canvas").first
        canvas.focus()

        def next_failed() -> str:
            page.keyboard.press("Home")
            page.keyboard.press("n")
            return page.locator(".map output").inner_text()

        while "FAILED" not in next_failed():
            page.wait_for_timeout(50)


class AwayStore:
    """A store whose reads fail while it is away."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.away = False

    def __getattr__(self, name: str) -> Any:
        if self.away:
            raise StoreUnavailable("db.example.com does not respond")
        return getattr(self._store, name)


def test_while_the_store_is_away_the_data_stay_with_their_age_and_nobody_acts(browser: Browser, tmp_path: Path) -> None:
    with served_fleet(tmp_path, store=AwayStore, readings=quick()) as fleet, watched(browser, fleet) as page:
        store: Any = fleet.store
        page.goto("/pipelines/orders/partition?key=orders%7C3")
        button = page.locator("[data-action=Release]")
        expect(button).to_be_enabled()
        store.away = True
        state = page.locator("#live-text")
        expect(state).to_have_text(re.compile(r"stale \d+ s: db\.example\.com does not respond"))
        expect(page.locator("body.stale h1")).to_contain_text("orders|3")
        expect(button).to_be_disabled()
        before = int(re.findall(r"\d+", state.inner_text())[0])
        older = "(before) => Number(document.getElementById('live-text').textContent.match(/[0-9]+/)[0]) > before"
        page.wait_for_function(older, arg=before)
        expect(page.locator("#region-row")).to_contain_text("ASSIGNED")
        # Whoever comes now gets a page that says why.
        page.context.new_page().goto("/nodes")
        store.away = False
        expect(state).to_contain_text("live")
        expect(button).to_be_enabled()
        expect(page.locator("body.stale")).to_have_count(0)


def test_a_page_recovers_when_the_server_is_started_anew(browser: Browser, tmp_path: Path) -> None:
    with opened(tmp_path) as (file, settings, store), ExitStack() as first:
        dashboard = Dashboard(file, settings, store)
        fleet = ServedFleet(first.enter_context(serving(dashboard, readings=quick())), dashboard)
        with watched(browser, fleet) as page:
            page.goto("/pipelines/orders")
            expect(page.locator(".map output")).to_contain_text("1 of 32: A ASSIGNED")
            first.close()
            expect(page.locator("#live-text")).to_have_text(re.compile(r"stale \d+ s: server unreachable"))
            expect(page.locator(FAILED_ORDERS)).to_contain_text("0")
            fail(fleet, "orders|0")
            with serving(dashboard, port=urlsplit(fleet.url).port or 0, readings=quick()):
                expect(page.locator(FAILED_ORDERS)).to_contain_text("1")
                expect(page.locator(".map output")).to_contain_text("1 of 32: ✕ FAILED")
                expect(page.locator("#live-text")).to_contain_text("live")


def test_eight_tabs_of_a_browser_all_follow(browser: Browser, tmp_path: Path) -> None:
    with served_fleet(tmp_path, readings=quick()) as fleet, watched(browser, fleet) as first:
        tabs: list[Page] = [first, *(first.context.new_page() for _ in range(7))]
        for tab in tabs:
            tab.goto("/pipelines/orders")
        fail(fleet, "orders|3")
        for tab in tabs:
            expect(tab.locator(FAILED_ORDERS)).to_contain_text("1")
            expect(tab.locator("#live-text")).to_contain_text("live")


def test_the_progress_of_a_run_is_shown_and_its_end_is_announced_once(browser: Browser, tmp_path: Path) -> None:
    with served_fleet(tmp_path, readings=quick()) as fleet, watched(browser, fleet) as page:
        page.goto("/runs/clicks?run=rewind-2026-11-17")
        region = page.locator("#region-run")
        expect(region).to_contain_text("running")
        page.evaluate(
            """window.said = [];
            new MutationObserver(() => said.push(document.getElementById("announcer").textContent))
              .observe(document.getElementById("announcer"), { childList: true });"""
        )
        progress(fleet, RunStatus.RUNNING, 7_000_000)
        expect(region).to_contain_text("7,000,000")
        progress(fleet, RunStatus.COMPLETED, 8_200_000)
        expect(region).to_contain_text("100 %")
        expect(region.locator(".state")).to_contain_text("completed")
        expect(page.locator("[data-action=Stop]")).to_have_count(0)
        progress(fleet, RunStatus.COMPLETED, 8_200_000, error="a note")
        expect(region).to_contain_text("a note")
        assert [text for text in page.evaluate("said") if "COMPLETED" in text] == ["COMPLETED"]


def test_focus_caret_scroll_and_selection_survive_twenty_changes_that_are_shown(
    browser: Browser, tmp_path: Path
) -> None:
    with served_fleet(tmp_path, readings=quick()) as fleet, watched(browser, fleet) as page:
        page.goto("/pipelines/orders")
        field = page.locator("[data-filter]")
        field.fill("orders|17")
        field.evaluate("(input) => { input.focus(); input.setSelectionRange(2, 5); }")
        page.evaluate("scrollTo(0, 300)")
        show_changes(fleet, page, 20)
        selected = "(input) => [document.activeElement === input, input.selectionStart, input.selectionEnd]"
        assert field.evaluate(selected) == [True, 2, 5]
        assert (field.input_value(), page.evaluate("scrollY")) == ("orders|17", 300)
        link = page.locator("#region-partitions tbody a").nth(20)
        link.focus()
        page.evaluate("scrollTo(0, 350)")
        page.evaluate(
            "getSelection().selectAllChildren(document.querySelector('#region-partitions tbody tr:nth-child(9)'))"
        )
        chosen = page.evaluate("String(getSelection())")
        show_changes(fleet, page, 20)
        assert link.evaluate("(link) => document.activeElement === link")
        assert (page.evaluate("String(getSelection())"), page.evaluate("scrollY")) == (chosen, 350)


def show_changes(fleet: ServedFleet, page: Page, number: int) -> None:
    """Change a row that many times, each time when the page has shown the change before."""
    cell = page.locator("#region-partitions tbody tr").first.locator("td").nth(2)
    for _ in range(number):
        row = fleet.row("orders|0", "orders")
        fleet.change(row, token=row.token + 1)
        expect(cell).to_have_text(str(row.token + 1))


def progress(fleet: ServedFleet, status: RunStatus, processed: int, error: str | None = None) -> None:
    (row,) = fleet.store.get([Key(runs_of(fleet.dashboard.identifier("clicks")), "", "rewind-2026-11-17")])
    assert row is not None
    run = run_of(row)
    groups = {"clicks": GroupStats(640, 8_200_000, 640, 0, processed, processed, 0)}
    ended = fleet.store.now() if status is RunStatus.COMPLETED else None
    changed = replace(run, status=status, groups=groups, completed_at=ended, error=error)
    owned = replace(row.ownership, version=row.version + 1)
    fleet.store.swap([Swap(row.version, replace(with_run(row, changed), ownership=owned))])
