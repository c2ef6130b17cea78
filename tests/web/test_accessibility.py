"""Pages as axe-core sees them: no violation of WCAG 2.2 A and AA, light and dark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Browser, expect

from tests.web.browser import ServedFleet, opened_page, quick, served_fleet
from tests.web.test_live_in_chromium import AwayStore
from tests.web.test_pages_in_chromium import ADDRESSES

LEVELS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_page_is_accessible_in_both_themes(address: str, browser: Browser, fleet: ServedFleet) -> None:
    # Axe is a script that is put into the page, which the policy refuses everywhere else.
    with opened_page(browser, fleet.url, bypass_csp=True, color_scheme="light", reduced_motion="reduce") as page:
        page.goto(address)
        expect(page.locator("#live-text")).to_contain_text("live")
        for theme in ("light", "dark"):
            if theme == "dark":
                page.keyboard.press("d")
                expect(page.locator("html")).to_have_attribute("data-theme", "dark")
            found = Axe().run(page, options={"runOnly": LEVELS})
            assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_data_that_are_old_can_be_read_as_well(theme: Any, browser: Browser, tmp_path: Path) -> None:
    with (
        served_fleet(tmp_path, store=AwayStore, readings=quick()) as fleet,
        opened_page(browser, fleet.url, bypass_csp=True, color_scheme=theme, reduced_motion="reduce") as page,
    ):
        page.goto("/pipelines/orders/partition?key=orders%7C3")
        expect(page.locator("#live-text")).to_contain_text("live")
        store: Any = fleet.store
        store.away = True
        expect(page.locator("#live-text")).to_contain_text("stale")
        found = Axe().run(page, options={"runOnly": LEVELS})
        assert found.violations_count == 0, found.generate_report()
