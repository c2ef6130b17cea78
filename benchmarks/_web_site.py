"""The fleet whose dashboard is measured: 100,000 partitions, 100 nodes, and the process that serves it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from holdfast.config.models import Settings
from holdfast.configured_store import fleet, load_settings, open_store
from holdfast.leases.lease import Counts, History, Key, Lease, Ownership, Partition, Progress, Status, new_lease
from holdfast.leases.store import Store, Swap
from tests.servers.databases import Postgresql
from tests.servers.processes import PASSWORD, PostgresqlServer, running

PARTITIONS, NODES, MAPPED = 100_000, 100, 10_000
"""Of the pipeline `events`, of the fleet, and of the pipeline `clicks`, whose map changes all the time."""
FOREVER = 10 * 365 * 86400.0
FILE = """
source_coordination: {{store: {{{store}}}}}
pipelines:
  events:
    source: {{kafka: {{bootstrap_servers: "localhost:1", topics: [events]}}}}
    sinks: [{{files: {{root: {root}/events, format: jsonl}}}}]
  clicks:
    source: {{kafka: {{bootstrap_servers: "localhost:1", topics: [clicks]}}}}
    sinks: [{{files: {{root: {root}/clicks, format: jsonl}}}}]
"""


@dataclass(frozen=True)
class Site:
    """A store that is full, and the configuration file of its fleet."""

    name: str
    file: Path
    store: Store

    def rows(self, numbers: Iterator[int] | range) -> list[Lease]:
        """The rows of the pipeline `clicks` with these numbers."""
        keys = [Key("clicks", "", f"clicks|{number}") for number in numbers]
        return [row for row in self.store.get(keys) if row is not None]

    def change(self, numbers: range) -> None:
        """Give partitions of `clicks` another state: those that are held are completed, all others are held."""
        rows = self.rows(numbers)
        self.store.swap([Swap(row.version, _other(row)) for row in rows])


@dataclass(frozen=True)
class Served:
    """A process that serves the dashboard of a site."""

    url: str
    token: str
    pid: int

    @property
    def memory(self) -> float:
        """Megabytes that are resident."""
        text = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", text)
        if found is None:
            raise ValueError(f"process {self.pid} has ended")
        return int(found[1]) / 1024


def sites(closing: ExitStack, folder: Path) -> Iterator[Site]:
    """Each kind of store, one after the other."""
    password = folder / "password"
    password.write_text(PASSWORD)
    server = Postgresql(closing.enter_context(running(PostgresqlServer)))
    address = f"host: 127.0.0.1, port: {server.server.port}, database: {server.name}, user: {server.server.user}"
    described = {
        "sqlite": f"sqlite: {{path: {folder / 'leases.db'}}}",
        "postgresql": f"postgresql: {{{address}, password: '${{file:{password}}}'}}",
    }
    for name, text in described.items():
        file = folder / f"{name}.yaml"
        file.write_text(FILE.format(store=text, root=folder))
        settings = load_settings(file)
        store = open_store(settings)
        closing.callback(store.close)
        _fill(store, settings)
        yield Site(name, file, store)


@contextmanager
def served(site: Site) -> Iterator[Served]:
    """Serve the dashboard as `holdfast web` does."""
    words = [sys.executable, "-m", "holdfast", "web", str(site.file), "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "400"}) as process:
        try:
            address = _announced(process)
            parts = urlsplit(address)
            yield Served(f"{parts.scheme}://{parts.netloc}", parse_qs(parts.query)["token"][0], process.pid)
        finally:
            process.terminate()


def _announced(process: subprocess.Popen[str]) -> str:
    for line in process.stdout or ():
        if (found := re.search(r"http://\S+", line)) is not None:
            return found[0]
    raise ValueError("the dashboard did not start")


def _fill(store: Store, settings: Settings) -> None:
    now = store.now()
    store.add([_node(settings, number, now) for number in range(NODES)])
    for pipeline, size in (("events", PARTITIONS), ("clicks", MAPPED)):
        for at in range(0, size, 1000):
            store.add([_row(pipeline, number, now) for number in range(at, at + 1000)])


def _node(settings: Settings, number: int, now: float) -> Lease:
    session = f"host-{number:03}:session"
    measured = {
        name: {"lag_records": 10, "lag_seconds": 1.5, "records_per_second": 40.0} for name in settings.pipelines
    }
    state = {
        "name": f"host-{number:03}",
        "session": session,
        "pipelines": list(settings.pipelines),
        "slots": 8,
        "generations": [0],
        "last_heartbeat": now,
        "measured": measured,
    }
    owned = Ownership(Status.ASSIGNED, session, 1, 1, due_at=now + FOREVER)
    return Lease(fleet(settings), session, ownership=owned, progress=Progress(state=state))


def _row(pipeline: str, number: int, now: float) -> Lease:
    row = new_lease(pipeline, Partition(f"{pipeline}|{number}", pipeline, {"topic": pipeline}), "made", now=now)
    row = replace(row, order=replace(row.order, index=number))
    progress = Progress({"offset": 5000}, counts=Counts(5000, 4990, 0, 10))
    node = f"host-{number % NODES:03}:session"
    done = History(created_at=now, updated_at=now, done_by=node)
    if number % 1000 == 1:
        failed = Ownership(Status.FAILED, None, 1, 3, "written", None)
        return replace(row, ownership=failed, history=replace(done, last_error="it cannot be read"))
    if number % 3 == 0:
        held = Ownership(Status.ASSIGNED, node, 1, 3, "written", None)
        return replace(row, ownership=held, progress=progress)
    completed = Ownership(Status.COMPLETED, None, 1, 3, "written", None)
    return replace(row, ownership=completed, progress=progress, history=done) if number % 3 == 1 else row


def _other(row: Lease) -> Lease:
    status = Status.COMPLETED if row.status is Status.ASSIGNED else Status.ASSIGNED
    owner = None if status is Status.COMPLETED else "host-000:session"
    owned = replace(row.ownership, status=status, owner=owner, version=row.version + 1, due_at=None)
    return replace(row, ownership=owned)
