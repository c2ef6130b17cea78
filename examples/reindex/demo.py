"""Three nodes reindex a table while an application changes and searches it; one is killed, and the result is compared.

Run by `make demo JOB=reindex`, from the project's root. Everything it makes is below build/reindex. OpenSearch comes by
Maven, into ~/.cache/holdfast, and runs as long as the demonstration does.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import sqlite3
import subprocess
import threading
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from opensearchpy import OpenSearch, helpers
from opensearchpy.exceptions import OpenSearchException
from rich.console import Console
from rich.live import Live
from rich.table import Table

from examples.fleet import NODES, Fleet, Screen, node_names
from holdfast import assemble
from holdfast.flow.run import ENDED, Run, RunStatus
from holdfast.runs import reindex_start
from holdfast.runs.reindex_configuration import ReindexConfiguration
from holdfast.spark.java import find_java

ROOT = Path("build/reindex")
CONFIG = Path("examples/reindex/pipeline.yaml")
DATABASE = ROOT / "app.db"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast"
JARS = CACHE / "opensearch-2.19.1.0"
PIPELINE, INDEX = "catalog", "products"
ROWS = 150_000
STABLE = range(1, 101)
"""Keys of products that are never removed: every search must find them."""
PER_SECOND = 5_000
"""Documents; faster, and there would be nothing to see."""

console = Console()


class SearchServer:
    """OpenSearch on loopback."""

    LOGGING = (
        "appender.out.type = Console\nappender.out.name = out\nappender.out.layout.type = PatternLayout\n"
        "rootLogger.level = warn\nrootLogger.appenderRef.out.ref = out\n"
    )

    def __init__(self) -> None:
        subprocess.run(["sh", "scripts/fetch_jars.sh", "opensearch-server", str(JARS)], check=True)
        folder = (ROOT / "opensearch").absolute()
        (folder / "conf").mkdir(parents=True)
        (folder / "conf/log4j2.properties").write_text(self.LOGGING)
        port = free_port()
        settings = {
            "discovery.type": "single-node",
            "http.host": "127.0.0.1",
            "transport.host": "127.0.0.1",
            "transport.port": port + 1000,
            "cluster.routing.allocation.disk.threshold_enabled": "false",
        }
        lines = [f"{name}: {value}\n" for name, value in settings.items()]
        (folder / "conf/opensearch.yml").write_text("".join(lines))
        java = (str(find_java().program), "-Xms512m", "-Xmx512m", "-XX:+UseSerialGC", "-cp", f"{JARS}/*")
        runner = ("org.codelibs.opensearch.runner.OpenSearchRunner", "-numOfNode", "1", "-useLogger")
        folders = ("-basePath", str(folder / "run"), "-confPath", str(folder / "conf"))
        with (ROOT / "opensearch.log").open("wb") as log:
            command = (*java, *runner, *folders, "-clusterName", "demo", "-baseHttpPort", str(port - 1))
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        self.url = f"http://127.0.0.1:{port}"

    def client(self) -> OpenSearch:
        return OpenSearch(hosts=[self.url], timeout=30)

    def ready(self) -> bool:
        if self._process.poll() is not None:
            raise RuntimeError(f"OpenSearch has ended; see {ROOT}/opensearch.log")
        try:
            return bool(self.client().cluster.health()["status"] != "red")
        except OpenSearchException:
            return False

    def end(self) -> None:
        self._process.terminate()
        self._process.wait()


def free_port() -> int:
    """A port that the server takes: it has those from 9201 to 9299."""
    for port in random.sample(range(9201, 9299), 98):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
    raise RuntimeError("no port from 9201 to 9298 is free")


def product(key: int, changed: int) -> tuple[int, str, float, str, int]:
    """A row of about a kilobyte."""
    return key, f"product {key}", key % 1000 + 0.5, f"sold since {changed} " * 40, changed


def create_database() -> None:
    with closing(sqlite3.connect(DATABASE)) as database, database:
        database.execute("PRAGMA journal_mode = wal")
        database.execute("CREATE TABLE products (id INTEGER PRIMARY KEY, name, price, text, changed INTEGER)")
        database.execute("CREATE INDEX products_by_change ON products (changed, id)")
        rows = (product(key, 1000 + key) for key in range(1, ROWS + 1))
        database.executemany("INSERT INTO products VALUES (?, ?, ?, ?, ?)", rows)


def document(row: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip(("name", "price", "text", "changed"), row[1:], strict=True))


class Application(threading.Thread):
    """Changes rows all the time, commits some of them late, and writes each change to the index as well."""

    def __init__(self, client: OpenSearch) -> None:
        super().__init__(daemon=True)
        self.changes = {"inserted or updated": 0, "deleted": 0}
        self._client = client
        self._dice = random.Random(7)
        self._stopped = threading.Event()

    def run(self) -> None:
        with closing(sqlite3.connect(DATABASE, timeout=60)) as database:
            while not self._stopped.wait(0.01):
                key, now = self._dice.randrange(STABLE[-1] + 1, ROWS + 5000), int(time.time() * 1000)
                row = None if self._dice.random() < 0.3 else product(key, now)
                with database:
                    if row is None:
                        database.execute("DELETE FROM products WHERE id = ?", (key,))
                    else:
                        database.execute("INSERT OR REPLACE INTO products VALUES (?, ?, ?, ?, ?)", row)
                    self._stopped.wait(self._dice.random() * 0.05)
                self._index(row, key, now)
                self.changes["deleted" if row is None else "inserted or updated"] += 1

    def _index(self, row: tuple[Any, ...] | None, key: int, now: int) -> None:
        # A newer document is left as it is (409), and one that is not there need not be deleted (404).
        versioned = {"version": now, "version_type": "external_gte", "ignore": [404, 409]}
        if row is None:
            self._client.delete(INDEX, str(key), params=versioned)
        else:
            self._client.index(INDEX, document(row), str(key), params=versioned)

    def stop(self) -> None:
        self._stopped.set()
        self.join()


class Customer(threading.Thread):
    """Searches all the time for the products that are never removed."""

    def __init__(self, client: OpenSearch) -> None:
        super().__init__(daemon=True)
        self.searches = 0
        self.misses: list[str] = []
        self._client = client
        self._stopped = threading.Event()

    def run(self) -> None:
        query = {"size": len(STABLE), "_source": False, "query": {"ids": {"values": [str(key) for key in STABLE]}}}
        while not self._stopped.wait(0.02):
            try:
                found = self._client.search(query, INDEX)
                if len(found["hits"]["hits"]) < len(STABLE):
                    self.misses.append(f"too few were found: {found['_shards']}")
            except OpenSearchException as error:
                self.misses.append(repr(error))
            self.searches += 1

    def stop(self) -> None:
        self._stopped.set()
        self.join()


class RunScreen(Screen):
    """Shows the run by node."""

    def __init__(self, fleet: Fleet, pipeline: assemble.StoredPipeline, live: Live) -> None:
        super().__init__(fleet, live)
        self._pipeline = pipeline
        self.run: Run | None = None

    def nodes(self) -> dict[str, str]:
        """Names of the nodes by session."""
        return node_names(self._pipeline.settings, self._pipeline.store)

    def start_run(self) -> None:
        runs = self._pipeline.runs()
        self.run = reindex_start.start(self._pipeline, ReindexConfiguration(partition_size=2500), by="demo")
        runs.throttle(self.run.id, PER_SECOND)

    def current(self) -> Run:
        assert self.run is not None
        self.run = self._pipeline.runs().show(self.run.id)
        return self.run

    def picture(self, title: str) -> Table:
        names = self.nodes()
        heading = title
        if self.run is not None:
            counts = self.run.counts
            heading = f"{title}: {self.run.status}, {self.run.phase or 'copy'}, {counts.succeeded:,} documents written"
        table = Table("node", "state", "partitions held", "done", title=heading, title_justify="left", min_width=78)
        found = {} if self.run is None else {names.get(key, key): stats for key, stats in self.run.nodes.items()}
        for name in NODES:
            stats = found.get(name)
            held = stats.held if stats is not None and name != self.fleet.killed else 0
            table.add_row(name, self.fleet.state(name), str(held), str(stats.completed if stats else 0))
        return table


def play(screen: RunScreen, fleet: Fleet) -> str:
    """Start a run, and kill a node in the middle of it. Returns the name of the node."""
    screen.wait("three nodes start", lambda: len(screen.nodes()) == len(NODES))
    screen.start_run()
    screen.wait("three nodes copy", lambda: screen.current().counts.processed > ROWS // 3)
    names = screen.nodes()
    killed = next(names[key] for key, stats in screen.current().nodes.items() if stats.held)
    fleet.kill(killed)
    screen.wait(f"{killed} is killed", lambda: screen.current().status in ENDED)
    return killed


def compare(client: OpenSearch) -> tuple[int, int, int, int]:
    """Rows in the table, and documents that are missing, that have no row, and that differ from their row."""
    client.indices.refresh(index=INDEX)
    found = {hit["_id"]: hit["_source"] for hit in helpers.scan(client, index=INDEX, size=5000)}
    with closing(sqlite3.connect(DATABASE)) as database:
        rows = {str(row[0]): document(row) for row in database.execute("SELECT * FROM products")}
    stale = sum(found[key] != row for key, row in rows.items() if key in found)
    return len(rows), len(rows.keys() - found.keys()), len(found.keys() - rows.keys()), stale


def verdict(run: Run, killed: str, application: Application, customer: Customer, client: OpenSearch) -> int:
    rows, missing, extra, stale = compare(client)
    changes = ", ".join(f"{number:,} {name}" for name, number in application.changes.items())
    console.print(f"\n{killed} was killed in the middle; the run is {run.status}")
    console.print(f"rows:      {rows:,}; during the run {changes}")
    console.print(f"documents: {missing} missing, {extra} without a row, {stale} that differ from their row")
    console.print(f"searches:  {customer.searches:,}; {len(customer.misses)} of them failed or missed a product")
    for miss in customer.misses[:3]:
        console.print(f"           {miss}")
    wrong = missing or extra or stale or customer.misses or run.status is not RunStatus.COMPLETED
    return 1 if wrong else 0


def create_first_index(client: OpenSearch) -> None:
    """The index that is searched before the run; it is out of date."""
    client.indices.create(index=f"{INDEX}_first", body={"aliases": {INDEX: {}}})
    documents = [{"_id": str(key), **document(product(key, 0))} for key in STABLE]
    helpers.bulk(client, documents, index=INDEX, refresh=True)


def main() -> int:
    shutil.rmtree(ROOT, ignore_errors=True)
    ROOT.mkdir(parents=True)
    console.print(f"{ROWS:,} products in SQLite; OpenSearch and three nodes start, each node with its own Spark")
    create_database()
    with ExitStack() as ending:
        search = SearchServer()
        ending.callback(search.end)
        os.environ["DEMO_OPENSEARCH"] = search.url
        while not search.ready():
            time.sleep(0.2)
        client = search.client()
        create_first_index(client)
        settings = assemble.load_settings(CONFIG)
        store = assemble.open_store(settings)
        ending.callback(store.close)
        fleet = Fleet(ROOT, CONFIG)
        ending.callback(fleet.end)
        application, customer = Application(search.client()), Customer(search.client())
        application.start()
        customer.start()
        with Live(console=console, refresh_per_second=4) as live:
            screen = RunScreen(fleet, assemble.StoredPipeline(settings, store, PIPELINE), live)
            killed = play(screen, fleet)
        application.stop()
        customer.stop()
        return verdict(screen.current(), killed, application, customer, client)


if __name__ == "__main__":
    raise SystemExit(main())
