"""The race: an application changes rows during a whole reindex, and commits some of them late; what is lost?

The application writes every change to the index under the alias, too, with the time of the row as its version, as long
as it runs. The peer is the way of OpenMetadata: copy all rows into a new index, swap the alias, delete the old index.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, NamedTuple

import psycopg
from opensearchpy.helpers import bulk, scan

from benchmarks._reindex_site import Site, new_index, reindexed
from benchmarks.harness import Comparison, compare

ROWS = 40_000
TABLE = "race"
WRITERS = 4
LATE = 2.0
"""Most seconds from the change of a row to its commit."""
PAGE = 1000
UPSERT = f"""INSERT INTO {TABLE}
    VALUES (%(key)s, json_build_object('id', %(key)s::bigint, 'change', %(note)s::text), now())
    ON CONFLICT (id) DO UPDATE SET doc = excluded.doc, changed = excluded.changed"""
VERSION = "(extract(epoch FROM now()) * 1000)::bigint"


class Wrong(NamedTuple):
    """How the index differs from the table."""

    missing: int
    extra: int
    stale: int


def race(where: Site) -> list[Comparison]:
    where.fill(TABLE, ROWS)
    client = where.search.client()
    new_index(client, f"{TABLE}_old", {"aliases": {TABLE: {}}})
    bulk(client, ({"_index": TABLE, "_id": key, "_source": doc} for key, doc in _rows(where).items()), refresh=True)
    naive = _raced(where, lambda: _swapped_naively(where, client), "a copy and a swap")
    ours = _raced(where, lambda: reindexed(where, TABLE, ROWS), "holdfast")
    if not sum(naive):
        raise RuntimeError("the naive way has lost nothing, so that this was no race")
    title = f"the race: missing, extra and stale documents ({'/'.join(map(str, ours))}), a copy and a swap"
    return [compare("reindex", f"{title} ({'/'.join(map(str, naive))})", sum(ours), sum(naive), "documents", "<= 0")]


def _raced(where: Site, work: Callable[[], object], name: str) -> Wrong:
    with _changing(where) as changes:
        time.sleep(LATE)
        began = time.monotonic()
        work()
        seconds = time.monotonic() - began
    found = _compared(where)
    print(f"reindex: race: {name}: {sum(changes):,} changes, {seconds:.1f} s, {found}", file=sys.stderr)
    return found


def _swapped_naively(where: Site, client: Any) -> None:
    (former,) = client.indices.get_alias(name=TABLE)
    new = f"{TABLE}_{time.time_ns()}"
    new_index(client, new)
    last = -1
    with psycopg.connect(where.tables.url, autocommit=True) as connection:
        while page := connection.execute(
            f"SELECT id, doc FROM {TABLE} WHERE id > %s ORDER BY id LIMIT {PAGE}",
            (last,),
        ).fetchall():
            bulk(client, ({"_index": new, "_id": key, "_source": doc} for key, doc in page))
            last = page[-1][0]
    client.indices.refresh(index=new)
    actions = [{"add": {"index": new, "alias": TABLE}}, {"remove_index": {"index": former}}]
    client.indices.update_aliases(body={"actions": actions})


def _rows(where: Site) -> dict[str, Any]:
    with psycopg.connect(where.tables.url) as connection:
        return {str(key): doc for key, doc in connection.execute(f"SELECT id, doc FROM {TABLE}")}


def _compared(where: Site) -> Wrong:
    client = where.search.client()
    client.indices.refresh(index=TABLE)
    rows, found = _rows(where), {hit["_id"]: hit["_source"] for hit in scan(client, index=TABLE, size=5000)}
    client.close()
    stale = sum(found[key] != doc for key, doc in rows.items() if key in found)
    return Wrong(len(rows.keys() - found.keys()), len(found.keys() - rows.keys()), stale)


@contextmanager
def _changing(where: Site) -> Iterator[list[int]]:
    """Applications that change rows until the block ends; yields how many changes each has made."""
    stopped, changes = threading.Event(), [0] * WRITERS

    def change_rows(number: int) -> None:
        dice, client = Random(number), where.search.client()
        with psycopg.connect(where.tables.url) as connection:
            while not stopped.is_set():
                _change_one(connection, client, dice, number, stopped)
                changes[number] += 1
        client.close()

    threads = [threading.Thread(target=change_rows, args=(number,)) for number in range(WRITERS)]
    for thread in threads:
        thread.start()
    try:
        yield changes
    finally:
        stopped.set()
        for thread in threads:
            thread.join()


def _change_one(
    connection: psycopg.Connection[Any], client: Any, dice: Random, number: int, stopped: threading.Event
) -> None:
    # Each application has rows of its own, so that none waits for another one.
    key = dice.randrange(ROWS // WRITERS + 500) * WRITERS + number
    remove, note = dice.random() < 0.3, f"{time.time_ns()}"
    with connection.transaction():
        ((version,),) = connection.execute(f"SELECT {VERSION}").fetchall()
        if remove:
            connection.execute(f"DELETE FROM {TABLE} WHERE id = %s", (key,))
        else:
            connection.execute(UPSERT, {"key": key, "note": note})
        stopped.wait(dice.random() * (LATE if dice.random() < 0.1 else 0.02))
    versioned = {"version": version, "version_type": "external_gte", "ignore": [404, 409]}
    if remove:
        client.delete(TABLE, str(key), params=versioned)
    else:
        client.index(TABLE, {"id": key, "change": note}, str(key), params=versioned)
