"""A dashboard on loopback, with a real server, for tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from holdfast.configured_store import load_settings, open_store
from holdfast.leases.lease import Lease
from holdfast.leases.store import Store
from holdfast.web.access import Access
from holdfast.web.app import create_app
from holdfast.web.dashboard import Dashboard
from holdfast.web.server import listen

PATIENCE = 60.0
FILE = """\
source_coordination:
  partition_prefix: prod
  store:
    sqlite: {{path: {folder}/leases.db}}
pipelines:
  orders:
    source:
      tests.unit.cli.fakes:SOURCE:
    sinks:
      - tests.unit.cli.fakes:SINK:
"""


def fleet_file(folder: Path, text: str = FILE) -> Path:
    """Write the file of a fleet with a pipeline `orders`, and create its store."""
    file = folder / "pipeline.yaml"
    file.write_text(text.format(folder=folder))
    open_store(load_settings(file)).close()
    return file


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


class Served:
    """A dashboard that is served, and clients of it."""

    def __init__(self, dashboard: Dashboard, port: int, scheme: str = "http") -> None:
        self.dashboard = dashboard
        self.store: Store = dashboard.store
        self.port = port
        self.url = f"{scheme}://127.0.0.1:{port}"
        self.reported: list[str] = []

    def client(self, token: str | None = None, **settings: Any) -> httpx.Client:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=PATIENCE, **settings)

    def add(self, *keys: str, pipeline: str = "orders") -> None:
        self.store.add([Lease(self.dashboard.identifier(pipeline), key, spec={"key": key}) for key in keys])


@contextmanager
def served(
    folder: Path,
    access: Access | None = None,
    store: Callable[[Store], Store] = lambda store: store,
    file_text: str = FILE,
    allow_edit: bool = False,
    **settings: Any,
) -> Iterator[Served]:
    """Serve the dashboard of a fleet with a pipeline `orders`; `settings` are those of the application."""
    file = fleet_file(folder, file_text)
    loaded = load_settings(file)
    access = access or Access()
    dashboard = Dashboard(file, loaded, store(open_store(loaded)), access.read_only, allow_edit)
    listening = listen("127.0.0.1", 0, allow_remote=False)
    found = Served(dashboard, listening.getsockname()[1])
    app = create_app(dashboard, access, report=found.reported.append, **settings)
    server = uvicorn.Server(uvicorn.Config(app, ws="websockets-sansio", log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield found
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        listening.close()
        dashboard.store.close()
