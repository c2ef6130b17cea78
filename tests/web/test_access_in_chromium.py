"""Who gets in, from where, and what they may do, as a browser sees it."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from holdfast.leases.lease import Status
from holdfast.web.access import Access
from holdfast.web.tokens import TokenFile
from tests.web.browser import EVIL, ServedFleet, opened_page, quick, served_fleet
from tests.web.proxies import proxied

OPERATOR, VIEWER = "operator-0123456789abcdef", "viewer-0123456789abcdef"
PARTITION = "/pipelines/orders/partition?key=orders%7C3"
FAIL = "/api/v1/pipelines/orders/partitions:fail"
SENT = """async ([url, keys]) => {
  const body = JSON.stringify({ keys, expect: keys.length, reason: "evil" });
  const sent = await fetch(url, { method: "POST", headers: { "Content-Type": "application/json" }, body });
  return sent.status;
}"""


def tokens(folder: Path) -> TokenFile:
    file = folder / "tokens"
    file.write_text(f"operator ana {OPERATOR}\nviewer screen {VIEWER}\n")
    file.chmod(0o600)
    return TokenFile(file)


def log_in(page: Page, token: str) -> None:
    page.locator("[name=token]").fill(token)
    page.get_by_role("button", name="Log in").click()


def test_a_viewer_logs_in_on_the_way_to_a_page_and_out_everywhere(browser: Browser, tmp_path: Path) -> None:
    access = Access(tokens=tokens(tmp_path))
    with served_fleet(tmp_path, access) as fleet, opened_page(browser, fleet.url) as page:
        page.goto(PARTITION)
        log_in(page, "x" * 30)
        expect(page.get_by_role("alert")).to_have_text("this is not a valid token")
        log_in(page, OPERATOR)
        expect(page.locator("h1")).to_contain_text("orders|3")
        expect(page.locator("#live")).to_have_attribute("data-state", "live")
        assert page.evaluate("document.cookie") == ""
        other = page.context.new_page()
        other.goto("/nodes")
        page.get_by_role("button", name="Log out").click()
        expect(page.locator("[name=token]")).to_be_visible()
        page.go_back()
        expect(page.locator("[name=token]")).to_be_visible()
        # What a page still shows leads to the login with its next refresh.
        other.evaluate("async () => (await import('/static/morph.js')).refresh('nodes')")
        expect(other.locator("[name=token]")).to_be_visible()


@pytest.mark.parametrize("read_only", [True, False])
def test_who_may_only_look_has_no_buttons_and_cannot_act(browser: Browser, tmp_path: Path, read_only: bool) -> None:
    access = Access(tokens=tokens(tmp_path), read_only=read_only)
    with served_fleet(tmp_path, access) as fleet, opened_page(browser, fleet.url) as page:
        page.goto(PARTITION)
        log_in(page, OPERATOR if read_only else VIEWER)
        expect(page.locator(".read-only")).to_have_text("read-only")
        for address in (PARTITION, "/pipelines/clicks?status=FAILED", "/nodes", "/runs/clicks?run=rewind-2026-11-17"):
            page.goto(address)
            expect(page.locator("#live")).to_have_attribute("data-state", "live")
            assert page.locator("[data-action]").count() == 0
        csrf = page.locator("body").get_attribute("data-csrf") or ""
        sent = page.request.post(FAIL, data={"keys": ["orders|3"], "reason": "r"}, headers={"X-CSRF-Token": csrf})
        assert sent.status == 403
        assert fleet.row("orders|3", "orders").status is Status.ASSIGNED


class _EvilPage(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<p>evil")

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def evil_url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _EvilPage) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_a_page_of_another_origin_can_neither_act_nor_listen(fleet: ServedFleet, page: Page, evil_url: str) -> None:
    page.goto("/")
    evil_page = page.context.new_page()
    evil_page.goto(evil_url)
    simple = """([url, keys]) => {
      const body = JSON.stringify({ keys, reason: "evil" });
      return fetch(url, { method: "POST", mode: "no-cors", body }).catch(() => "refused");
    }"""
    evil_page.evaluate(simple, [f"{fleet.url}{FAIL}", ["orders|3"]])
    listening = """(url) => new Promise((done) => {
      const socket = new WebSocket(url);
      socket.onopen = () => done("open");
      socket.onclose = () => done("closed");
    })"""
    live = f"{fleet.url.replace('http', 'ws')}/api/v1/live"
    assert evil_page.evaluate(listening, live) == "closed"
    assert page.evaluate(listening, live) == "open"
    assert fleet.row("orders|3", "orders").status is Status.ASSIGNED


def test_another_name_of_this_host_shows_nothing(fleet: ServedFleet, page: Page) -> None:
    rebound = page.goto(fleet.url.replace("127.0.0.1", EVIL))
    assert rebound is not None
    assert rebound.status == 403
    assert "orders" not in page.content()
    assert page.evaluate(SENT, [FAIL, ["orders|3"]]) == 403


@pytest.mark.parametrize("removes", [True, False])
def test_everything_works_below_a_prefix_behind_a_proxy(browser: Browser, tmp_path: Path, removes: bool) -> None:
    access = Access(base_path="/dash/board", tokens=tokens(tmp_path))
    failed: list[str] = []
    with (
        served_fleet(tmp_path, access, readings=quick()) as fleet,
        proxied(fleet.url, "/dash/board", removes=removes) as url,
        opened_page(browser, url) as page,
    ):
        page.on("response", lambda response: failed.append(response.url) if response.status >= 400 else None)
        page.goto(f"{url}/pipelines/clicks")
        log_in(page, OPERATOR)
        expect(page.locator(".map output")).to_contain_text("1 of 1,213")
        page.locator(".map canvas").focus()
        page.keyboard.press("n")
        page.keyboard.press("Enter")
        page.wait_for_url(f"{url}/pipelines/clicks/partition?key=*")
        page.locator("[data-action=Reopen]").click()
        page.locator("#confirm-reason").fill("through the proxy")
        page.locator("#confirm-go").click()
        expect(page.locator("h1 + .state")).to_contain_text("UNASSIGNED")
        page.keyboard.press("g")
        page.keyboard.press("a")
        page.wait_for_url(f"{url}/audit")
        expect(page.locator("#region-entries")).to_contain_text("through the proxy")
        hrefs = page.eval_on_selector_all("a[href]", "all => all.map((link) => link.getAttribute('href'))")
        assert [href for href in hrefs if not href.startswith(("/dash/board/", "#"))] == []
        expect(page.locator("#live-text")).to_have_text(re.compile("live"))
        page.get_by_role("button", name="Log out").click()
        page.wait_for_url(f"{url}/login")
    assert failed == []
