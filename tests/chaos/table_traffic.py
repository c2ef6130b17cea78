"""Four tables that change all the time, searches that go on all the time, and an oracle that compares the two.

The oracle shares no code with the product: it reads the tables with SQL and the indexes with a scroll.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from random import Random
from typing import Any
from uuid import UUID

from opensearchpy import OpenSearch, OpenSearchException

from tests.servers.databases import Database, Postgresql
from tests.servers.traffic import Traffic

ENTITIES = ("accounts", "devices", "items", "events")
STABLE = 50
"""Rows of each table that are never changed."""
COMMIT_AFTER = 0.03
HELD = 1.5
"""Seconds for which the last transaction of the writer stays open."""


class Tables:
    """The tables: skewed keys, UUIDs, a composite key without a time of change, and a time series."""

    def __init__(self, database: Database, rows: int) -> None:
        self.database = database
        self.rows = rows // len(ENTITIES)
        is_postgresql = isinstance(database, Postgresql)
        self._time = "TIMESTAMPTZ" if is_postgresql else "DATETIME(6)"
        self._uuid = "UUID" if is_postgresql else "CHAR(36)"
        self._text = "" if is_postgresql else " CHARACTER SET utf8mb4"
        self._moment = "to_timestamp(%s / 1000.0)" if is_postgresql else "FROM_UNIXTIME(%s / 1000.0)"

    def create(self) -> None:
        name = f"name VARCHAR(200){self._text}"
        self.database.run(
            *(f"DROP TABLE IF EXISTS {entity}" for entity in ENTITIES),
            f"CREATE TABLE accounts (id BIGINT PRIMARY KEY, {name}, changed BIGINT NOT NULL)",
            f"CREATE TABLE devices (id {self._uuid} PRIMARY KEY, {name}, changed {self._time} NOT NULL, gone BOOLEAN)",
            f"CREATE TABLE items (account BIGINT, line INT, {name}, PRIMARY KEY (account, line))",
            f"CREATE TABLE events (id BIGINT PRIMARY KEY, at {self._time} NOT NULL, {name})",
            "CREATE INDEX accounts_changed ON accounts (changed, id)",
            "CREATE INDEX devices_changed ON devices (changed, id)",
            "CREATE INDEX events_at ON events (at, id)",
        )
        connection = self._connect()
        for first in range(0, self.rows, 2000):
            numbers = range(first, min(first + 2000, self.rows))
            cursor = connection.cursor()
            for entity in ENTITIES:
                cursor.executemany(self.insert(entity), [self.row(entity, n, f"first {n}", 1000 + n) for n in numbers])
            connection.commit()
        connection.close()

    def insert(self, entity: str) -> str:
        """The statement that adds a row, with the values of `row`."""
        values = {
            "accounts": "%s, %s, %s",
            "devices": f"%s, %s, {self._moment}, false",
            "items": "%s, %s, %s",
            "events": f"%s, {self._moment}, %s",
        }
        return f"INSERT INTO {entity} VALUES ({values[entity]})"

    def row(self, entity: str, number: int, name: str, now: int) -> tuple[Any, ...]:
        match entity:
            case "accounts" | "devices":
                return *self.key(entity, number), name, now
            case "items":
                return *self.key(entity, number), name
        return *self.key(entity, number), now, name

    def key(self, entity: str, number: int) -> tuple[Any, ...]:
        """The key of the row of that number."""
        match entity:
            case "accounts":  # one half is dense, the other one is spread over a wide range
                return (number if number % 2 else 10**9 + number * number * 1000,)
            case "devices":
                return (str(UUID(int=Random(number).getrandbits(128))),)
            case "items":  # one account has a fifth of all items
                return (0 if number % 5 == 0 else number // 7, number)
        return (number,)

    def document_id(self, entity: str, number: int) -> str:
        return ":".join(map(str, self.key(entity, number)))

    def update(self, entity: str, number: int, name: str, now: int) -> tuple[str, tuple[Any, ...]]:
        key = self.key(entity, number)
        match entity:
            case "accounts":
                return "UPDATE accounts SET name = %s, changed = %s WHERE id = %s", (name, now, *key)
            case "devices":
                text = f"UPDATE devices SET name = %s, changed = {self._moment}, gone = false WHERE id = %s"
                return text, (name, now, *key)
        return "UPDATE items SET name = %s WHERE account = %s AND line = %s", (name, *key)

    def delete(self, entity: str, number: int, now: int) -> tuple[str, tuple[Any, ...]]:
        key = self.key(entity, number)
        match entity:
            case "accounts":
                return "DELETE FROM accounts WHERE id = %s", key
            case "devices":
                return f"UPDATE devices SET changed = {self._moment}, gone = true WHERE id = %s", (now, *key)
        return "DELETE FROM items WHERE account = %s AND line = %s", key

    def expected(self, entity: str) -> dict[str, str]:
        """The name of each live row by the id of its document."""
        match entity:
            case "items":
                text = "SELECT CONCAT(account, ':', line), name FROM items"
            case "devices":
                text = "SELECT id, name FROM devices WHERE NOT gone"
            case _:
                text = f"SELECT id, name FROM {entity}"
        return {str(id_): name for id_, name in self.database.run(text)}

    def _connect(self) -> Any:
        return self.database.connect()


class Writer(Traffic):
    """Inserts, updates and deletes rows until it is stopped. A transaction is committed later than its time says."""

    def __init__(self, tables: Tables, seed: int) -> None:
        super().__init__()
        self._tables = tables
        self._dice = Random(seed)
        self._holds = threading.Event()
        self._now = 0
        self.changes = 0

    def stop(self) -> None:
        """Return when only one transaction is left, which has changed rows and is committed some time later."""
        self.stopping.set()
        self._holds.wait(60)

    def wait(self) -> None:
        """Wait until the last transaction has ended."""
        self.thread.join()

    def work(self) -> None:
        while not self.stopping.is_set():
            with suppress(Exception):  # the server is away; what became of the transaction is seen in the table
                self._with_a_connection()
        with suppress(Exception), self._connected() as connection:
            self._transaction(connection, held=True)
        self._holds.set()

    def _with_a_connection(self) -> None:
        with self._connected() as connection:
            while not self.stopping.is_set():
                self._transaction(connection)

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        connection = self._tables.database.connect()
        try:
            yield connection
        finally:
            with suppress(Exception):
                connection.close()

    def _transaction(self, connection: Any, *, held: bool = False) -> None:
        self._now = now = max(self._now + 1, int(time.time() * 1000))
        cursor = connection.cursor()
        for _ in range(self._dice.randint(1, 4)):
            self._change(cursor, now)
        if held:
            self._holds.set()
            time.sleep(HELD)
        else:
            self.stopping.wait(self._dice.random() * COMMIT_AFTER)
        connection.commit()
        self.changes += 1

    def _change(self, cursor: Any, now: int) -> None:
        tables, dice = self._tables, self._dice
        entity, number, name = dice.choice(ENTITIES), dice.randrange(STABLE, tables.rows * 11 // 10), f"changed {now}"
        if entity == "events":
            cursor.execute(tables.insert(entity), tables.row(entity, now * 1000 + dice.randrange(1000), name, now))
            return
        if dice.random() < 0.3:
            cursor.execute(*tables.delete(entity, number, now))
            return
        cursor.execute(*tables.update(entity, number, name, now))
        if not cursor.rowcount:
            cursor.execute(tables.insert(entity), tables.row(entity, number, name, now))


class Reader(Traffic):
    """Searches for the rows that are never changed, through the aliases, all the time."""

    def __init__(self, tables: Tables, endpoint: str) -> None:
        super().__init__()
        self._client = OpenSearch(hosts=[endpoint], timeout=30, max_retries=0)
        self._wanted = {entity: [tables.document_id(entity, number) for number in range(STABLE)] for entity in ENTITIES}
        self.searches = 0
        self.outages = 0
        """Searches that failed as a whole, which they may while the server restarts."""
        self.gaps: list[str] = []

    def work(self) -> None:
        while not self.stopping.wait(0.01):
            for entity, ids in self._wanted.items():
                try:
                    found = self._found(entity, ids)
                except OpenSearchException as error:
                    self._failed(entity, error)
                    continue
                self.searches += 1
                if found < len(ids):
                    self.gaps.append(f"{entity}: {found} of {len(ids)} found")
        self._client.close()

    def _found(self, entity: str, ids: Sequence[str]) -> int:
        query = {"size": len(ids), "_source": False, "query": {"ids": {"values": ids}}}
        response = self._client.search(body=query, index=entity, params={"allow_partial_search_results": "false"})
        return len(response["hits"]["hits"])

    def _failed(self, entity: str, error: Any) -> None:
        if error.status_code in {"N/A", "TIMEOUT", 503}:
            self.outages += 1
        else:
            self.gaps.append(f"{entity}: {error!r}")


def differences(tables: Tables, endpoint: str) -> list[str]:
    """What differs between tables and indexes, now that nothing changes any more."""
    client = OpenSearch(hosts=[endpoint], timeout=60)
    wrong: list[str] = []
    for entity in ENTITIES:
        rows, documents = tables.expected(entity), dict(_documents(client, entity))
        wrong += [f"{entity} {id_}: no document" for id_ in rows.keys() - documents.keys()]
        wrong += [f"{entity} {id_}: no row" for id_ in documents.keys() - rows.keys()]
        common = rows.keys() & documents.keys()
        wrong += [
            f"{entity} {id_}: {documents[id_]!r}, not {rows[id_]!r}" for id_ in common if documents[id_] != rows[id_]
        ]
    client.close()
    return wrong


def _documents(client: Any, index: str) -> Iterator[tuple[str, str]]:
    client.indices.refresh(index=index)
    page = client.search(body={"size": 5000, "sort": ["_doc"], "_source": ["name"]}, index=index, scroll="5m")
    while hits := page["hits"]["hits"]:
        yield from ((hit["_id"], hit["_source"]["name"]) for hit in hits)
        page = client.scroll(body={"scroll_id": page["_scroll_id"], "scroll": "5m"})
