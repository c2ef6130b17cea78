"""Finding one's way: deep links, Back, and a pipeline with very many partitions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from holdfast.configured_store import load_settings, open_store
from holdfast.leases.lease import Lease, Ownership, Status
from holdfast.web.dashboard import Dashboard
from tests.web.browser import opened_page, quick, serving
from tests.web.fleet import node_row, write_file

MANY = 100_000


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A dashboard with 100,000 partitions, of which the node `late` holds the last ones."""
    file = write_file(tmp_path_factory.mktemp("many"))
    settings = load_settings(file)
    store = open_store(settings)
    store.add([node_row(settings, "late", "late-1", store.now())])
    identifier, held = settings.identifier("clicks"), Ownership(Status.ASSIGNED, "late-1", 1, 1, due_at=None)
    rows = (Lease(identifier, f"clicks|{number:06}", "", "clicks") for number in range(MANY - 3))
    store.add([*rows, *(Lease(identifier, f"clicks|{MANY - at:06}", ownership=held) for at in (3, 2, 1))])
    with serving(Dashboard(file, settings, store), readings=quick()) as url:
        yield url
    store.close()


@pytest.fixture
def large(browser: Browser, many: str) -> Iterator[Page]:
    with opened_page(browser, many) as page:
        yield page


def test_a_hundred_thousand_partitions_are_shown_in_pages_and_reached_by_keyboard(large: Page) -> None:
    large.goto("/pipelines/clicks")
    output = large.locator(".map output")
    expect(output).to_contain_text("1 of 100,000: U UNASSIGNED")
    expect(large.locator("#region-partitions")).to_contain_text("100 shown of 100,000")
    assert large.locator("#region-partitions tbody tr").count() == 100
    large.get_by_role("link", name="Next page").click()
    expect(large.locator("#region-partitions tbody tr").first).to_contain_text("clicks|000100")
    large.goto("/pipelines/clicks?after=clicks%7C099950")
    expect(large.locator("#region-partitions tbody tr").last).to_contain_text("clicks|099999")
    assert large.get_by_role("link", name="Next page").count() == 0
    expect(output).to_contain_text("of 100,000")
    large.locator(".map canvas").focus()
    large.keyboard.press("End")
    expect(output).to_contain_text("100,000 of 100,000: A ASSIGNED")
    large.keyboard.press("Enter")
    expect(large.locator("h1")).to_contain_text("clicks|099999")


def test_a_filter_finds_what_is_far_behind(large: Page) -> None:
    large.goto("/pipelines/clicks")
    large.keyboard.press("/")
    large.keyboard.type("clicks|09999")
    large.keyboard.press("Enter")
    expect(large.locator("#region-partitions tbody tr")).to_have_count(10)
    large.goto("/pipelines/clicks?key=clicks%7C05")
    expect(large.locator("#region-partitions tbody tr").first).to_contain_text("clicks|050000")
    large.goto("/pipelines/clicks?node=late")
    expect(large.locator("#region-partitions tbody tr")).to_have_count(3)


def test_links_lead_deep_and_back_leads_where_one_was(page: Page) -> None:
    page.goto("/pipelines/clicks?status=FAILED&key=clicks%7C")
    assert page.locator("[name=status]").input_value() == "FAILED"
    assert page.locator("[data-filter]").input_value() == "clicks|"
    first = page.locator("#region-partitions tbody a").first
    key = first.inner_text()
    first.click()
    expect(page.locator("h1 .key")).to_have_text(key)
    page.locator("nav").get_by_role("link", name="Nodes").click()
    expect(page.locator("h1")).to_have_text("Nodes")
    page.go_back()
    expect(page.locator("h1 .key")).to_have_text(key)
    expect(page.locator("#live-text")).to_contain_text("live")
    page.go_back()
    assert page.locator("[name=status]").input_value() == "FAILED"
    expect(page.locator("#region-partitions tbody a").first).to_have_text(key)
    page.go_forward()
    expect(page.locator("h1 .key")).to_have_text(key)
