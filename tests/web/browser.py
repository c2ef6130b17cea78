"""A dashboard of the fleet of `tests.web.fleet` on loopback, and a Chromium that looks at it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import uvicorn
from playwright.sync_api import Browser, Page, expect, sync_playwright

from holdfast.leases.lease import Key, Lease
from holdfast.leases.store import Outcome, Store, Swap
from holdfast.web.access import Access
from holdfast.web.app import create_app
from holdfast.web.dashboard import Dashboard
from holdfast.web.readings import Readings
from holdfast.web.server import listen
from tests.web.fleet import opened

CHROMIUM = "/usr/bin/chromium"
EVIL = "evil.example"
"""A name that leads to loopback, as that of an attacker who rebinds it does."""
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--host-resolver-rules=MAP {EVIL} 127.0.0.1"]
PATIENCE = 60.0
# Trusted Types and the policy report here what they refuse.
WATCH = "window.refused = []; addEventListener('securitypolicyviolation', (e) => refused.push(e.violatedDirective));"
expect.set_options(timeout=PATIENCE * 1000)


@dataclass(frozen=True)
class ServedFleet:
    """A fleet whose pages are served at `url`."""

    url: str
    dashboard: Dashboard

    @property
    def store(self) -> Store:
        """The store of the fleet."""
        return self.dashboard.store

    def row(self, key: str, pipeline: str = "clicks") -> Lease:
        """Return the row of a partition."""
        (found,) = self.store.get([Key(self.dashboard.identifier(pipeline), "", key)])
        assert found is not None
        return found

    def change(self, row: Lease, **ownership: Any) -> Outcome:
        """Write a row with another ownership, unless it has changed since."""
        owned = replace(row.ownership, version=row.version + 1, **ownership)
        (outcome,) = self.store.swap([Swap(row.version, replace(row, ownership=owned))])
        return outcome


def quick() -> Readings:
    """Readings for pages that see every change at once, and wait for a machine that is busy."""
    return Readings(every=0.1, share=1, patience=PATIENCE)


@contextmanager
def served_fleet(
    folder: Path,
    access: Access | None = None,
    store: Callable[[Store], Any] = lambda store: store,
    **settings: Any,
) -> Iterator[ServedFleet]:
    """Create a fleet in that folder, and serve its dashboard; `settings` are those of the application."""
    access = access or Access()
    with opened(folder) as (file, loaded, kept):
        dashboard = Dashboard(file, loaded, store(kept), access.read_only)
        with serving(dashboard, access, **settings) as url:
            yield ServedFleet(url, dashboard)


@contextmanager
def serving(dashboard: Dashboard, access: Access | None = None, port: int = 0, **settings: Any) -> Iterator[str]:
    """Serve a dashboard, and yield its address. At the end open channels are closed, as when the process stops."""
    listening = listen("127.0.0.1", port, allow_remote=False)
    app = create_app(dashboard, access or Access(), **settings)
    config = uvicorn.Config(app, ws="websockets-sansio", log_level="critical", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        listening.close()


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start a Chromium without a screen."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened_page(browser: Browser, url: str, **settings: Any) -> Iterator[Page]:
    """Open an empty page for addresses of a server, in a context that shares nothing with others."""
    context = browser.new_context(base_url=url, viewport={"width": 1280, "height": 700}, **settings)
    context.set_default_timeout(PATIENCE * 1000)
    context.add_init_script(WATCH)
    try:
        yield context.new_page()
    finally:
        context.close()
