"""Pages in a real Chromium: nothing is refused by the policy, data stay text, and refreshes disturb nobody."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect

from holdfast.leases.lease import Status
from holdfast.leases.query import Query
from holdfast.leases.store import Swap
from tests.web.browser import PATIENCE, ServedFleet
from tests.web.fleet import HOSTILE

HOSTILE_PARTITION = f"/pipelines/clicks/partition?key={quote(f'clicks|{HOSTILE}')}"
ADDRESSES = (
    "/",
    "/pipelines/clicks",
    "/pipelines/clicks?status=FAILED",
    HOSTILE_PARTITION,
    "/nodes",
    "/runs",
    "/runs/clicks?run=rewind-2026-11-17",
    "/letters",
    "/letters?pipeline=clicks",
    f"/letters/redrive?pipeline=clicks&sink=files&key={quote(HOSTILE)}",
    f"/pipelines/clicks/rewind?key={quote(f'clicks|{HOSTILE}')}&to={quote(HOSTILE)}",
    f"/pipelines/clicks/backfill?backup=clicks&between={quote(HOSTILE)}",
    "/generations",
    "/audit",
    "/alerts",
    "/functions",
    "/configuration",
    "/proof",
)
REFRESH = "async (region) => { const m = await import('/static/morph.js'); await m.refresh(region); }"


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_page_needs_nothing_that_the_policy_refuses_and_its_data_stay_text(address: str, page: Page) -> None:
    raised: list[str] = []
    page.on("dialog", lambda dialog: raised.append(dialog.message))
    page.on("pageerror", lambda error: raised.append(str(error)))
    page.goto(address)
    for region in page.eval_on_selector_all("[data-region]", "all => all.map((one) => one.dataset.region)"):
        page.evaluate(REFRESH, region)
    assert page.evaluate("refused") == []
    assert page.locator("img").count() == 0
    assert raised == []


def test_an_error_page_shows_what_was_wanted_as_text(page: Page) -> None:
    page.goto(f"/pipelines/{quote(HOSTILE)}")
    expect(page.locator("main")).to_contain_text(HOSTILE)
    assert page.locator("img").count() == 0
    assert page.evaluate("refused") == []


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_page_fits_into_360_pixels(address: str, page: Page) -> None:
    page.set_viewport_size({"width": 360, "height": 640})
    page.goto(address)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_refreshes_keep_focus_caret_selection_scroll_and_open_details(page: Page) -> None:
    page.goto("/pipelines/clicks")
    field = page.locator("[data-filter]")
    field.fill("clicks|17")
    field.evaluate("(input) => { input.focus(); input.setSelectionRange(2, 5); }")
    page.evaluate("scrollTo(0, 400)")
    for _ in range(20):
        page.evaluate(REFRESH, "partitions")
    assert field.input_value() == "clicks|17"
    selected = "(input) => [document.activeElement === input, input.selectionStart, input.selectionEnd]"
    assert field.evaluate(selected) == [True, 2, 5]
    assert page.evaluate("scrollY") == 400
    page.evaluate("getSelection().selectAllChildren(document.querySelector('#region-partitions tbody th'))")
    chosen = page.evaluate("String(getSelection())")
    page.evaluate(REFRESH, "partitions")
    assert chosen.startswith("clicks|")
    assert page.evaluate("String(getSelection())") == chosen
    page.goto(HOSTILE_PARTITION)
    page.locator("#fields summary").click()
    page.evaluate(REFRESH, "fields")
    assert page.locator("#fields").evaluate("(details) => details.open")


def test_a_refresh_shows_what_has_changed_and_a_failed_one_leaves_the_data(page: Page, fleet: ServedFleet) -> None:
    page.goto("/pipelines/orders")
    store, identifier = fleet.dashboard.store, fleet.dashboard.identifier("orders")
    row = store.find(Query(identifier))[0]
    failed = replace(row.ownership, status=Status.FAILED, owner=None, version=row.version + 1, due_at=None)
    store.swap([Swap(row.version, replace(row, ownership=failed))])
    counted = page.locator('#region-counts [title*="FAILED"]')
    expect(counted).to_contain_text("1", timeout=PATIENCE * 1000)
    page.route("**/*region=*", lambda route: route.fulfill(status=503, body="away"))
    page.evaluate(REFRESH, "counts")
    expect(counted).to_contain_text("1")


def test_the_map_is_used_by_keyboard(page: Page) -> None:
    page.goto("/pipelines/clicks")
    output = page.locator(".map output")
    expect(output).to_contain_text("1 of 1,213")
    page.locator(".map canvas").focus()
    page.keyboard.press("ArrowRight")
    expect(output).to_contain_text("2 of 1,213")
    page.keyboard.press("End")
    page.keyboard.press("n")
    expect(output).to_contain_text("✕ FAILED")
    page.keyboard.press("Enter")
    page.wait_for_url("**/partition?key=*")
    expect(page.locator("h1 + .state")).to_contain_text("FAILED")


def test_times_are_shown_in_utc_or_local_and_the_theme_is_kept(browser: Browser, fleet: ServedFleet) -> None:
    context = browser.new_context(base_url=fleet.url, timezone_id="Asia/Tokyo", color_scheme="light")
    page = context.new_page()
    page.goto("/runs")
    shown = page.locator("time").first
    utc = shown.inner_text()
    page.keyboard.press("u")
    assert shown.inner_text() != utc
    page.keyboard.press("d")
    page.reload()
    assert page.locator("html").get_attribute("data-theme") == "dark"
    assert page.locator("#zone").inner_text() == "local"
    context.close()


def test_an_action_asks_for_a_reason_and_is_in_the_audit_log(page: Page) -> None:
    page.goto(HOSTILE_PARTITION)
    page.locator('[data-action="Reopen"]').click()
    page.locator("#confirm-go").click()
    expect(page.locator("#confirm")).to_be_visible()
    page.locator("#confirm-reason").fill("the parser is mended now")
    page.locator("#confirm-go").click()
    expect(page.locator("h1 + .state")).to_contain_text("UNASSIGNED")
    expect(page.locator("#toast")).to_contain_text("1 partition reopened")
    page.goto("/audit")
    expect(page.locator("#region-entries tbody tr").first).to_contain_text("the parser is mended now")
