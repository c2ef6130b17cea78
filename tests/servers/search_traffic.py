"""An application in front of a search index: one thread changes rows and documents, another one searches."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from random import Random

from tests.servers.opensearch import OpenSearchServer
from tests.servers.traffic import Traffic

ROWS = 400
STABLE = [str(number) for number in range(100)]
"""Ids of rows that are never changed."""


def create_users(path: Path, rows: int = ROWS) -> None:
    """Create the table that the traffic is about."""
    with sqlite3.connect(path) as database:
        database.execute("pragma journal_mode = wal")
        database.execute("create table users (id integer primary key, name text, changed integer)")
        database.execute("create index users_by_change on users (changed, id)")
        users = [(number, f"user {number}", 1000 + number) for number in range(rows)]
        database.executemany("insert into users values (?, ?, ?)", users)


class Writer(Traffic):
    """An application that changes rows all the time, and writes each change to the index, too."""

    def __init__(self, path: Path, server: OpenSearchServer) -> None:
        super().__init__()
        self._path = path
        self._client = server.client()
        self._dice = Random(7)
        self.changes = 0

    def work(self) -> None:
        database = sqlite3.connect(self._path, timeout=30)
        while not self.stopping.is_set():
            key = self._dice.randrange(100, ROWS + 50)
            now = int(time.time() * 1000)
            with database:
                gone = self._dice.random() < 0.3
                if gone:
                    database.execute("delete from users where id = ?", (key,))
                else:
                    database.execute("insert or replace into users values (?, ?, ?)", (key, f"n{now}", now))
                # The transaction is committed later than its time says.
                self.stopping.wait(self._dice.random() * 0.03)
            versioned = {"version": now, "version_type": "external_gte", "ignore": [404, 409]}
            if gone:
                self._client.delete("people", str(key), params=versioned)
            else:
                self._client.index("people", {"id": key, "name": f"n{now}", "changed": now}, str(key), params=versioned)
            self.changes += 1
        database.close()


class Reader(Traffic):
    """Searches for the rows that never change, all the time."""

    def __init__(self, server: OpenSearchServer) -> None:
        super().__init__()
        self._client = server.client()
        self.searches = 0
        self.misses: list[str] = []

    def work(self) -> None:
        query = {"size": len(STABLE), "_source": False, "query": {"ids": {"values": STABLE}}}
        while not self.stopping.is_set():
            try:
                found = self._client.search(query, "people")["hits"]["hits"]
            except Exception as error:  # noqa: BLE001 - any error is a miss
                self.misses.append(repr(error))
                continue
            self.searches += 1
            if len(found) < len(STABLE):
                self.misses.append(f"{len(found)} of {len(STABLE)} found")
