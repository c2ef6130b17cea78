"""The editor of the configuration in a real Chromium: checked while typing, and never saved over another change."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from holdfast.web.dashboard import Dashboard
from tests.web.browser import opened_page, quick, serving
from tests.web.fleet import opened


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "pipeline.yaml"


@pytest.fixture
def page(browser: Browser, tmp_path: Path) -> Iterator[Page]:
    with opened(tmp_path) as (file, settings, store):
        dashboard = Dashboard(file, settings, store, allow_edit=True)
        with serving(dashboard, readings=quick()) as url, opened_page(browser, url) as found:
            yield found


def test_a_wrong_text_is_shown_by_line_while_it_is_typed_and_is_not_saved(page: Page, file: Path) -> None:
    before = file.read_text()
    page.goto("/configuration")
    text = page.locator("#editor-text")
    text.fill(before.replace("workers: 4", "workers: many"))
    line = before.split("\n").index("          workers: 4") + 1
    expect(page.locator("#editor-problems")).to_contain_text(f"line {line}")
    _save(page)
    expect(page.locator("#confirm-error")).to_contain_text("whole number")
    assert file.read_text() == before
    assert page.evaluate("window.refused") == []


def test_the_form_changes_the_text_which_is_saved_and_a_change_of_others_is_kept(page: Page, file: Path) -> None:
    before = file.read_text()
    page.goto("/configuration")
    page.locator('[name="workers"]').fill("9")
    page.locator('[name="workers"]').blur()
    mine = before.replace("workers: 4", "workers: 9")
    expect(page.locator("#editor-text")).to_have_value(mine)
    _save(page)
    expect(page.locator("#confirm")).to_be_hidden()
    assert file.read_text() == mine
    file.write_text(mine + "# theirs\n")
    expect(page.locator("#editor-changed")).to_be_visible()
    expect(page.locator("#editor-text")).to_have_value(mine)
    _save(page)
    expect(page.locator("#confirm-error")).to_contain_text("has changed")
    assert file.read_text() == mine + "# theirs\n"


def test_fields_that_are_changed_at_once_and_what_is_typed_meanwhile_are_kept(page: Page, file: Path) -> None:
    page.goto("/configuration")
    held_back: list[Route] = []

    def hold_back(route: Route) -> None:
        held_back.append(route)

    page.route("**/configuration:trigger", hold_back, times=1)
    for name, value in (("workers", "9"), ("read_batch_size", "77")):
        page.locator(f'[name="{name}"]').fill(value)
        page.locator(f'[name="{name}"]').blur()
    text = page.locator("#editor-text")
    text.evaluate("(area) => { area.value += '# typed\\n'; area.dispatchEvent(new Event('input')); }")
    while not held_back:
        page.wait_for_timeout(50)
    held_back[0].continue_()
    expect(text).to_have_value(re.compile(r"read_batch_size: 77.*workers: 9.*# typed", re.DOTALL))
    assert page.evaluate("window.refused") == []


def _save(page: Page) -> None:
    page.get_by_role("button", name="Save").click()
    page.locator("#confirm-reason").fill("because")
    page.locator("#confirm-go").click()
