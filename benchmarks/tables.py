"""Reading of tables: boundaries of ten million keys, rows of PostgreSQL, and how evenly the work of a run is shared.

Boundaries are compared with the usual way, `ntile` over all keys; rows with a server-side cursor of psycopg whose rows
become the same record batches; the sharing with partitions that are never split, in the model of the simulator.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import psycopg
import pyarrow as pa

from benchmarks.harness import Comparison, compare, interleaved
from holdfast.flow.batch import Batch, Cut, Name
from holdfast.flow.tables import Sizing
from holdfast.leases.lease import new_lease
from holdfast.sources.database import PLUGIN
from holdfast.sources.database.reading import END
from holdfast.sources.database.source import DatabaseSource
from tests.servers.databases import Postgresql
from tests.servers.live_tables import ServerTables
from tests.servers.processes import PostgresqlServer, running
from tests.simulation.makespan import percentile, ratio

KEYS = 10_000_000
ROWS = 200_000
REPETITIONS = 3
SEEDS = 1000
MANY = "SELECT min(id) FROM (SELECT id, ntile(1000) OVER (ORDER BY id) AS tile FROM many) AS tiled GROUP BY tile"
BODY = "jsonb_build_object('id', n, 'text', repeat(md5(n::text), 30))::json"


def run() -> list[Comparison]:
    with running(PostgresqlServer) as server:
        tables = ServerTables(Postgresql(server))
        return [_boundaries(tables), _reading(tables), _makespan()]


def _source(tables: ServerTables, table: str) -> DatabaseSource:
    entity = {"table": table, "key": "id", "json": "doc"}
    settings = {"url": tables.url, "entities": {table: entity}, "batch_time": "1h"}
    return DatabaseSource(PLUGIN.config.model_validate(settings))


def _timed(work: Callable[[], object]) -> Callable[[], float]:
    def seconds() -> float:
        begun = time.perf_counter()
        work()
        return time.perf_counter() - begun

    return seconds


def _boundaries(tables: ServerTables) -> Comparison:
    tables.run(
        "CREATE TABLE many (id BIGINT, doc TEXT)",
        f"INSERT INTO many SELECT n::bigint * n, '{{}}' FROM generate_series(1, {KEYS}) AS n",
        "ALTER TABLE many ADD PRIMARY KEY (id)",
    )
    with tables.session() as cursor:
        cursor.connection.autocommit = True
        cursor.execute("VACUUM ANALYZE many")
    source = _source(tables, "many")

    def peer() -> None:
        with tables.session() as cursor:
            cursor.execute(MANY)
            cursor.fetchall()

    ours, usual = interleaved(
        [_timed(lambda: list(source.copy_partitions(["many"], Sizing(rows=10_000)))), _timed(peer)], 1
    )
    return compare("tables", f"boundaries of {KEYS:,} keys, against ntile", ours, usual, "s", "<= 1.0")


def _reading(tables: ServerTables) -> Comparison:
    tables.run(
        "CREATE TABLE rows_ (id BIGINT PRIMARY KEY, doc JSON)",
        f"INSERT INTO rows_ SELECT n, {BODY} FROM generate_series(1, {ROWS}) AS n",
        "ANALYZE rows_",
    )
    source = _source(tables, "rows_")
    (partition,) = source.copy_partitions(["rows_"], Sizing(rows=2 * ROWS))
    lease = new_lease("bench", partition, "w", now=0.0)
    batch = Batch("b", lease, Name("rows", "0"), Cut(None, END, last=True))
    read = source.read(None, [batch])

    def ours() -> None:
        assert sum(portion.num_rows for portion in read.rows(0)) == ROWS

    def peer() -> None:
        with psycopg.connect(tables.url) as connection, connection.cursor(name="all_rows") as cursor:
            cursor.itersize = 5000
            cursor.execute("SELECT id, id::text, doc::text FROM rows_")
            count = 0
            while found := cursor.fetchmany(5000):
                items, ids, documents = zip(*found, strict=True)
                rows = len(items)
                same = [["rows_"] * rows, ids, [None] * rows, [False] * rows, documents]
                arrays = [pa.array(items), *map(pa.array, same)]
                count += pa.RecordBatch.from_arrays(arrays, [f"c{n}" for n in range(len(arrays))]).num_rows
            assert count == ROWS

    figures = interleaved([_timed(ours), _timed(peer)], REPETITIONS)
    rates = [ROWS / seconds / 1000 for seconds in figures]
    return compare("tables", "rows of 1 KB, against a server-side cursor", rates[0], rates[1], "thousand rows/s", 0.9)


def _makespan() -> Comparison:
    split, fixed = (
        percentile([ratio(seed, splitting=splitting) for seed in range(SEEDS)], 0.95) for splitting in (True, False)
    )
    case = "time of a run / ideal, p95, against partitions that are never split"
    return compare("tables", case, split, fixed, "times", "<= 0.95")
