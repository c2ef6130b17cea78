"""Reindexing under chaos: three nodes copy four tables that change all the time, while servers and nodes fail.

python -m tests.chaos.reindex [--minutes 5] [--rows 300000] [--databases postgresql,mariadb] [--seed N]

Whoever drives a run is killed at steps of the promotion, which its requests to OpenSearch show: each node has a line of
its own to the server. The writer stops at the moment at which the first alias is swapped, with a transaction open, so
that whatever it has changed must be found by the run itself.
"""

# ruff: noqa: T201 - a command line prints

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import NamedTuple

from holdfast.assemble import StoredPipeline, load_settings, open_store
from holdfast.errors import HoldfastError
from holdfast.flow.run import ENDED, Run, RunStatus
from holdfast.runs import reindex_start
from holdfast.runs.reindex_configuration import ReindexConfiguration
from tests.chaos.table_traffic import ENTITIES, Reader, Tables, Writer, differences
from tests.e2e.fleet import Node, eventually
from tests.servers.databases import Database, Mariadb, Postgresql
from tests.servers.http_proxy import Fault, HttpProxy
from tests.servers.live_tables import ServerTables
from tests.servers.opensearch import OpenSearchServer, RoomyServer
from tests.servers.processes import PASSWORD, MariadbServer, PostgresqlServer, running

NODES = ("n1", "n2", "n3")
WITHIN = 900.0
SLOW = 0.2
"""Part of the rows that a run may read per second while servers fail, so that they fail before it ends."""
CONFIG = """
allow_plaintext_secrets: true
source_coordination:
  store:
    {store}: {{host: 127.0.0.1, port: {port}, database: {database}, user: {user}, password: "{password}"}}
node: {{session_timeout: 8s, heartbeat_interval: 2s}}
spark:
  master: local[2]
  conf: {{spark.driver.memory: 700m, spark.ui.enabled: false}}
pipelines:
  catalog:
    source:
      database:
        url: "{url}"
        clock_skew: 1s
        batch_time: 2s
        entities:
          accounts: {{table: accounts, key: id, updated_at: changed, priority: 1}}
          devices: {{table: devices, key: id, updated_at: changed, deleted: gone}}
          items: {{table: items, key: [account, line]}}
          events: {{table: events, key: id, append_only: at}}
    sinks:
      - opensearch: {{hosts: ["http://127.0.0.1:{search}"], mode: staged}}
    # What is done to nodes and servers is not a fault of a batch: none may be FAILED by it.
    retries: {{max_retries: 3, backoff: 500ms, max_backoff: 2s, max_takeovers: 100}}
"""


class CrashPoint(NamedTuple):
    """A request of the driver after the copy, at which its node is killed: before or after the server has got it."""

    request: str
    number: int = 1
    delivered: bool = False


POINTS = (
    CrashPoint("_settings"),
    CrashPoint("/_refresh", delivered=True),
    CrashPoint("/_count", 2),
    CrashPoint("POST /_aliases"),
    CrashPoint("POST /_aliases", delivered=True),
    CrashPoint("POST /_aliases", 3),
    CrashPoint("DELETE /", delivered=True),
    CrashPoint("_search?scroll"),
    CrashPoint("_search/scroll", delivered=True),
    CrashPoint("_settings", 5, delivered=True),
    CrashPoint("DELETE /", 5),
)


class Line(HttpProxy):
    """The line of one node to OpenSearch."""

    def __init__(self, site: Site, name: str) -> None:
        super().__init__(site.search.port, decide=lambda request: site.decide(name, request))


class Site:
    """Servers, tables and nodes."""

    def __init__(self, folder: Path, database: Database, search: OpenSearchServer, stack: ExitStack, rows: int) -> None:
        self.folder, self.database, self.search = folder, database, search
        self.tables = Tables(database, rows)
        self.tables.create()
        self.nodes: dict[str, Node] = {}
        self.struck: list[str] = []
        self.writer: Writer | None = None
        self.point: CrashPoint | None = None
        self._seen = 0
        self._overloaded = False
        self._promotes = False
        self._lock = threading.Lock()
        self._lines = {name: stack.enter_context(Line(self, name)) for name in NODES}
        for name in NODES:
            self._write_config(f"{name}.yaml", self._lines[name].port)
        self._write_config("control.yaml", search.port)
        settings = load_settings(str(folder / "control.yaml"))
        store = open_store(settings)
        stack.callback(store.close)
        self.pipeline = StoredPipeline(settings, store, "catalog")
        stack.callback(self._end_nodes)

    def _write_config(self, file: str, search: int) -> None:
        server = self.database.server
        store = "postgresql" if isinstance(self.database, Postgresql) else "mysql"
        text = CONFIG.format(
            store=store,
            port=server.port,
            database=self.database.name,
            user=server.user,
            password=PASSWORD,
            url=ServerTables(self.database).url,
            search=search,
        )
        (self.folder / file).write_text(text)

    def start(self, *names: str) -> None:
        for name in names:
            self.nodes[name] = Node(self.folder, self.folder / f"{name}.yaml", name)

    def _end_nodes(self) -> None:
        for node in self.nodes.values():
            node.kill()

    # --- what happens to requests ------------------------------------------------------------------------------

    def decide(self, name: str, request: str) -> Fault | None:
        """What happens to a request of that node, which comes now."""
        if self._overloaded and "_bulk" in request:
            return Fault.OVERLOADED
        with self._lock:
            # The first step of the promotion.
            self._promotes = self._promotes or "/_settings" in request
            if not self._promotes or "POST /_bulk" in request:
                return None
            if "POST /_aliases" in request and self.writer is not None:
                self.writer.stop()
            point = self.point
            if point is None or point.request not in request:
                return None
            self._seen += 1
            if self._seen < point.number:
                return None
            self.point = None
        return self._kill_driver(name, point)

    def _kill_driver(self, name: str, point: CrashPoint) -> Fault | None:
        node = self.nodes[name]
        self.struck.append(f"{name} killed at {point}")
        if point.delivered:
            # The node is gone when the response comes.
            threading.Timer(0.3, node.process.kill).start()
            return Fault.ANSWER_LOST
        node.process.kill()
        return Fault.DROPPED

    # --- runs --------------------------------------------------------------------------------------------------

    def begin(self, **configuration: object) -> str:
        """Start a run, and return its id."""
        self._promotes, self._seen = False, 0
        chosen = ReindexConfiguration.model_validate(configuration)
        return reindex_start.start(self.pipeline, chosen, by="chaos").id

    def run(self, run_id: str) -> Run | None:
        """The run as it is; None while the store is away."""
        try:
            return self.pipeline.runs().show(run_id)
        except HoldfastError:
            return None

    def wait(self, run_id: str, is_so: Callable[[Run], bool], what: str) -> None:
        def found() -> bool:
            run = self.run(run_id)
            return run is not None and is_so(run)

        eventually(found, WITHIN, f"{what}: {self.run(run_id)}\n{self._said()}")

    def _said(self) -> str:
        return "\n".join(f"--- {name}\n{node.said()[-1500:]}" for name, node in self.nodes.items())

    def throttle(self, run_id: str, rate: float | None) -> None:
        self.pipeline.runs().throttle(run_id, rate)

    # --- faults ------------------------------------------------------------------------------------------------

    def kill(self, name: str) -> None:
        self.struck.append(f"{name} killed")
        self.nodes[name].kill()

    def restart_database(self) -> None:
        self.struck.append("database restarted")
        self.database.server.stop()
        self.database.server.start()

    def restart_search(self) -> None:
        self.struck.append("OpenSearch restarted")
        self.search.stop()
        self.search.start()

    def overload(self, seconds: float) -> None:
        self.struck.append("OpenSearch overloaded")
        self._overloaded = True
        time.sleep(seconds)
        self._overloaded = False

    def revive(self) -> None:
        """Start the nodes that are gone."""
        self.start(*[name for name, node in self.nodes.items() if node.process.poll() is not None])


class Verdict(NamedTuple):
    run: Run
    wrong: Sequence[str]
    gaps: Sequence[str]
    searches: int
    changes: int


def first_run(site: Site) -> None:
    """Copy the tables, so that there is something to search."""
    run_id = site.begin()
    site.wait(run_id, lambda run: run.status in ENDED, "the first run ends")
    run = site.run(run_id)
    assert run is not None
    assert run.status is RunStatus.COMPLETED, run.error


def one_run(site: Site, faults: Sequence[Callable[[], None]], point: CrashPoint | None, seed: int) -> Verdict:
    """A run during which these faults happen, and whose driver is killed at a step of the promotion."""
    reader, writer = Reader(site.tables, site.search.endpoint), Writer(site.tables, seed)
    with reader, writer:
        site.point, site.writer = point, writer
        run_id = site.begin(partitionSize=max(100, site.tables.rows // 20))
        site.throttle(run_id, site.tables.rows * len(ENTITIES) * SLOW)
        site.wait(run_id, lambda run: run.counts.processed > 0 or run.status in ENDED, "rows are copied")
        for fault in faults:
            fault()
        site.wait(run_id, lambda _run: True, "the store is back")
        site.throttle(run_id, None)
        site.wait(run_id, lambda run: run.status in ENDED, "the run ends")
        writer.stop()
        writer.wait()
    run = site.run(run_id)
    assert run is not None
    wrong = differences(site.tables, site.search.endpoint)
    return Verdict(run, wrong, reader.gaps, reader.searches, writer.changes)


def judged(verdict: Verdict) -> list[str]:
    """What is wrong with a run that has ended."""
    found = [*verdict.wrong, *verdict.gaps]
    if verdict.run.status is not RunStatus.COMPLETED:
        found.append(f"the run is {verdict.run.status.value}: {verdict.run.error}")
    return found


@contextmanager
def chaotic_site(kind: str, rows: int) -> Iterator[Site]:
    """A site on servers of its own."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-chaos-"))
    with ExitStack() as stack:
        database = stack.enter_context(database_of(kind))
        yield Site(folder, database, stack.enter_context(running(RoomyServer)), stack, rows)
    shutil.rmtree(folder)


@contextmanager
def database_of(kind: str) -> Iterator[Database]:
    """A database of that kind on a server of its own."""
    if kind == "postgresql":
        with running(PostgresqlServer) as server:
            yield Postgresql(server)
    else:
        with running(MariadbServer) as other:
            yield Mariadb(other)


def chaos(site: Site, seconds: float, seed: int) -> list[str]:
    """Run after run until the time is over, at least one for each point. Returns what was wrong."""
    dice = Random(seed)
    site.start(*NODES)
    first_run(site)
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end or number == 0:
        faults: list[Callable[[], None]] = [
            lambda: site.kill(dice.choice(NODES)),
            site.restart_database,
            site.restart_search,
            lambda: site.overload(dice.uniform(1, 5)),
            site.revive,
        ]
        dice.shuffle(faults)
        point = POINTS[number % len(POINTS)]
        began = time.monotonic()
        verdict = one_run(site, faults, point, seed + number)
        wrong, struck = judged(verdict), ", ".join(site.struck)
        print(
            f"run {number}: {verdict.run.status.value} after {time.monotonic() - began:.0f} s, "
            f"{verdict.run.total} rows, {verdict.changes} transactions, {verdict.searches} searches, "
            f"{len(wrong)} wrong; {struck}",
            flush=True,
        )
        if wrong:
            print(*(f"WRONG: {what}" for what in wrong[:20]), sep="\n", flush=True)
            return wrong
        site.struck.clear()
        site.revive()
        number += 1
    return []


def main(arguments: list[str]) -> int:
    """Exit code: 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.reindex", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5.0, help="how long there are runs on each database")
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--databases", default="postgresql,mariadb")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 31), help="default: a new one")
    options = parser.parse_args(arguments)
    wrong: list[str] = []
    for kind in options.databases.split(","):
        print(f"{kind}, seed {options.seed}, {options.rows} rows", flush=True)
        with chaotic_site(kind, options.rows) as site:
            found = chaos(site, options.minutes * 60, options.seed)
            wrong += [f"{kind}: {what}" for what in found]
            if found:
                shutil.copytree(site.folder, f"{site.folder}-logs")
                print(f"logs in {site.folder}-logs")
    print(f"{len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
