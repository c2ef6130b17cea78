"""A Chromium, a fleet that is served, and a page of it.

Both live as long as the tests of a file: while playwright is started, no other event loop can run in this thread.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from tests.web.browser import ServedFleet, chromium, opened_page, quick, served_fleet


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedFleet]:
    with served_fleet(tmp_path_factory.mktemp("fleet"), readings=quick()) as served:
        yield served


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture
def page(browser: Browser, fleet: ServedFleet) -> Iterator[Page]:
    with opened_page(browser, fleet.url) as opened:
        yield opened
