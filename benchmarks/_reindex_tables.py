"""Reading of tables: boundaries of ten million keys, rows of PostgreSQL, and how evenly the work of a run is shared.

Boundaries are compared with the usual way, `ntile` over all keys; rows with a server-side cursor of psycopg whose rows
become the same record batches, and with Spark's JDBC source; the sharing with partitions that are never split, in the
model of the simulator.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import psycopg
import pyarrow as pa

from benchmarks._reindex_site import Site
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
MOST_SECONDS = 10.0
ROWS = 200_000
REPETITIONS = 5
SEEDS = 1000
MOST_MAKESPAN = 1.2
MANY = "SELECT min(id) FROM (SELECT id, ntile(1000) OVER (ORDER BY id) AS tile FROM many) AS tiled GROUP BY tile"


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


def boundaries() -> list[Comparison]:
    with running(PostgresqlServer) as server:
        tables = ServerTables(Postgresql(server))
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
    title = f"boundaries of {KEYS:,} keys"
    return [
        compare("reindex", f"{title}, against ntile", ours, usual, "s", "<= 1.0"),
        compare("reindex", f"{title}, against its bar", ours, MOST_SECONDS, "s", "<= 1.0"),
    ]


def reading(where: Site) -> list[Comparison]:
    where.fill("rows_", ROWS)
    tables = where.tables
    source = _source(tables, "rows_")
    (partition,) = source.copy_partitions(["rows_"], Sizing(rows=2 * ROWS))
    lease = new_lease("bench", partition, "w", now=0.0)
    batch = Batch("b", lease, Name("rows", "0"), Cut(None, END, last=True))
    read = source.read(None, [batch])

    def ours() -> None:
        assert sum(portion.num_rows for portion in read.rows(0)) == ROWS

    def cursor_rows() -> None:
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

    def spark_rows() -> None:
        found = where.jdbc("rows_", ROWS).mapInArrow(_counted(), "n BIGINT").groupBy().sum("n").collect()
        assert found[0][0] == ROWS

    ways = {"ours": ours, "a server-side cursor": cursor_rows, **({"Spark JDBC": spark_rows} if where.has_jars else {})}
    rates, by_cpu = _rates(where, ways)
    return [
        *(
            compare("reindex", f"reading alone, against {name}", rates["ours"], rates[name], "rows/s", bar)
            for name, bar in (("a server-side cursor", 0.9), ("Spark JDBC", 1.0))
            if name in rates
        ),
        *(
            compare("reindex", f"reading alone, against {name}, by CPU", by_cpu["ours"], by_cpu[name], "rows/s", 0.9)
            for name in by_cpu
            if name != "ours"
        ),
    ]


def _rates(where: Site, ways: Mapping[str, Callable[[], None]]) -> tuple[dict[str, float], dict[str, float]]:
    """Rows per second of each way, by the clock and by the CPU of all processes; the ways take turns."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for work in ways.values():  # once off the record
        work()
    for _ in range(REPETITIONS):
        for name, work in ways.items():
            with_spark = "Spark" in name
            before, seconds = where.cpu(with_spark=with_spark), _timed(work)()
            found[name].append((seconds, where.cpu(with_spark=with_spark).since(before).total))
    rates, by_cpu = (
        {name: ROWS / statistics.median(each[at] for each in figures) for name, figures in found.items()}
        for at in (0, 1)
    )
    return rates, by_cpu


def _counted() -> Callable[[Iterator[Any]], Iterator[Any]]:
    # Inside, so that it is sent to the tasks by value: they do not have this module.
    def counted(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            yield pa.RecordBatch.from_pydict({"n": [batch.num_rows]})

    return counted


def makespan() -> list[Comparison]:
    split, fixed = (
        percentile([ratio(seed, splitting=splitting) for seed in range(SEEDS)], 0.95) for splitting in (True, False)
    )
    title = "time of a run / ideal, p95"
    return [
        compare("reindex", f"{title}, against partitions that are never split", split, fixed, "times", "<= 0.95"),
        compare("reindex", f"{title}, against its bar", split, MOST_MAKESPAN, "times", "<= 1.0"),
    ]
