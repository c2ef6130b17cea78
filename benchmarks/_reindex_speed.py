"""Rows of PostgreSQL as documents in OpenSearch: a whole node against what people write by themselves.

Every way writes the same texts under the same ids into an index with one shard and dynamic mappings, without refresh
and replicas. External versions and a write alias, which only ours uses, are extra work of its own. Ours is timed from
the request of a run until the last row is copied: with the new index, boundaries, leases and commits. The index of the
peers is made before. The whole run, with catch-up, comparison, swap and reconciliation, is shown beside. CPU is that of
the client, the database and the search server; machines with other users are compared by it.

Java compiles what it runs often, and the search server does so for half a million documents: in a first run of 50,000
that took 95 µs of each document, more than indexing itself. So each way runs once at full size off the record, and in
each repetition another way begins.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import psycopg

from benchmarks._archive_site import timed
from benchmarks._reindex_node import Cpu
from benchmarks._reindex_site import Site, new_index, reindexed
from benchmarks.harness import Comparison, compare
from benchmarks.scan import PREPARED, post_bodies

ROWS = 200_000
REPETITIONS = 3
TABLE, PEER = "docs", "peer"
CORES = 2


class Peer(NamedTuple):
    """Another way, and how many times as fast ours must be."""

    title: str
    bar: float
    needs_jars: bool = False


PEERS = {
    "prepared": Peer("bodies made beforehand", 0.75),
    "cursor": Peer("server-side cursor and parallel_bulk", 1.3),
    "raw": Peer("server-side cursor and parallel_bulk of raw text", 1.0),
    "jdbc": Peer("Spark JDBC and parallel_bulk per partition", 1.5, needs_jars=True),
    "connector": Peer("opensearch-spark", 1.0, needs_jars=True),
}


class Measured(NamedTuple):
    """One run of a way."""

    seconds: float
    cpu: Cpu
    whole: float
    """Seconds with what comes after the copy."""


def speed(where: Site, names: Sequence[str]) -> list[Comparison]:
    """Ours against these peers; all take turns."""
    where.fill(TABLE, ROWS)
    chosen = [name for name in names if where.has_jars or not PEERS[name].needs_jars]
    found: dict[str, list[Measured]] = {name: [] for name in ("ours", *chosen)}
    for name in found:  # off the record
        _measured(where, name, TABLE, ROWS)
    ways = list(found)
    for number in range(REPETITIONS):
        for name in (*ways[number % len(ways) :], *ways[: number % len(ways)]):
            found[name].append(_measured(where, name, TABLE, ROWS))
            _tell(name, found[name][-1])
    return [comparison for name in chosen for comparison in _compared(name, found["ours"], found[name])]


def _tell(name: str, figures: Measured) -> None:
    cpu, micros = figures.cpu, 1e6 / ROWS
    print(
        f"reindex: {name}: {ROWS / figures.seconds:,.0f} documents/s ({ROWS / figures.whole:,.0f} with all); CPU per "
        f"document {cpu.client * micros:.1f} + {cpu.database * micros:.1f} + {cpu.search * micros:.1f} µs",
        file=sys.stderr,
    )


def _compared(name: str, ours: Sequence[Measured], theirs: Sequence[Measured]) -> list[Comparison]:
    peer = PEERS[name]
    rates = [ROWS / statistics.median(each.seconds for each in way) for way in (ours, theirs)]
    by_cpu = [CORES * ROWS / statistics.median(each.cpu.total for each in way) for way in (ours, theirs)]
    return [
        compare("reindex", peer.title, rates[0], rates[1], "documents/s", peer.bar),
        compare("reindex", f"{peer.title}, by CPU", by_cpu[0], by_cpu[1], "documents/s of two cores", peer.bar),
    ]


def _measured(where: Site, name: str, table: str, rows: int) -> Measured:
    client = where.search.client()
    client.indices.delete(index=f"{PEER},staged_*", ignore_unavailable=True)
    if name == "ours":
        index, (seconds, whole, used) = table, reindexed(where, table, rows)
    else:
        new_index(client, PEER)
        index, work, with_spark = PEER, _WAYS[name](where, table, rows), PEERS[name].needs_jars
        before = where.cpu(with_spark=with_spark)
        seconds = whole = timed(work)
        used = where.cpu(with_spark=with_spark).since(before)
    if (found := where.search.count(index)) != rows:
        raise RuntimeError(f"{name}: {found} of {rows} documents are there")
    client.close()
    return Measured(seconds, used, whole)


# --- peers ----------------------------------------------------------------------------------------------------------


def _rows(where: Site, table: str) -> Iterator[tuple[int, str]]:
    with psycopg.connect(where.tables.url) as connection, connection.cursor(name="all_rows") as cursor:
        cursor.itersize = 5000
        cursor.execute(f"SELECT id, doc::text FROM {table}")
        yield from cursor


def _prepared(where: Site, table: str, _rows_: int) -> Callable[[], None]:
    lines = (f'{{"index":{{"_id":"{key}"}}}}\n{text}\n' for key, text in _rows(where, table))
    bodies = []
    while body := "".join(islice(lines, PREPARED)).encode():
        bodies.append(body)
    return lambda: post_bodies(where.search, PEER, bodies)


def _cursor(where: Site, table: str, _rows_: int) -> Callable[[], None]:
    actions = ({"_index": PEER, "_id": key, "_source": json.loads(text)} for key, text in _rows(where, table))
    return lambda: _bulk(where.search.client(), actions)


def _raw(where: Site, table: str, _rows_: int) -> Callable[[], None]:
    actions = ((f'{{"index":{{"_index":"{PEER}","_id":"{key}"}}}}', text) for key, text in _rows(where, table))
    return lambda: _bulk(where.search.client(), actions, expand_action_callback=lambda action: action)


def _bulk(client: Any, actions: Iterator[Any], **options: Any) -> None:
    from opensearchpy.helpers import parallel_bulk

    for ok, result in parallel_bulk(client, actions, **options):
        if not ok:
            raise RuntimeError(f"a document was refused: {result}")
    client.close()


def _jdbc(where: Site, table: str, rows: int) -> Callable[[], None]:
    endpoint, index = where.search.endpoint, PEER
    table_rows = where.jdbc(table, rows)

    # Inside, so that it is sent to the tasks by value: they do not have this module.
    def index_partition(found: Iterator[Any]) -> None:
        import json

        from opensearchpy import OpenSearch
        from opensearchpy.helpers import parallel_bulk

        client = OpenSearch(hosts=[endpoint], timeout=60)
        actions = ({"_index": index, "_id": row.id, "_source": json.loads(row.doc)} for row in found)
        for ok, result in parallel_bulk(client, actions):
            if not ok:
                raise RuntimeError(f"a document was refused: {result}")

    return lambda: table_rows.foreachPartition(index_partition)


def _connector(where: Site, table: str, rows: int) -> Callable[[], None]:
    """By its API for RDDs, with JSON text: the one for DataFrames does not run on Spark 4."""
    jvm: Any = where.spark.sparkContext._jvm  # noqa: SLF001 - it has no Python API
    documents: Any = where.jdbc(table, rows).select("doc")._jdf  # noqa: SLF001
    texts = getattr(documents, "as")(jvm.org.apache.spark.sql.Encoders.STRING())
    settings = {
        "opensearch.nodes": "127.0.0.1",
        "opensearch.port": str(where.search.port),
        "opensearch.nodes.wan.only": "true",
        "opensearch.mapping.id": "id",
        "opensearch.batch.write.refresh": "false",
    }
    made = jvm.java.util.HashMap()
    for name, value in settings.items():
        made.put(name, value)
    api = jvm.org.opensearch.spark.rdd.api.java.JavaOpenSearchSpark
    return lambda: api.saveJsonToOpenSearch(texts.toJavaRDD(), PEER, made)


_WAYS: dict[str, Callable[[Site, str, int], Callable[[], None]]] = {
    "prepared": _prepared,
    "cursor": _cursor,
    "raw": _raw,
    "jdbc": _jdbc,
    "connector": _connector,
}
