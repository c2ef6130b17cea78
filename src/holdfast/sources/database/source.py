"""The source `database` on the node: tables that are read by runs while they change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from holdfast.errors import BatchError, Refused
from holdfast.flow.batch import Batch, Cut, Done, Limits, Name, Plan
from holdfast.flow.source import FixedColumns, Rebuilds, Source, SplitsPartitions, WeighsPartitions
from holdfast.flow.splitting import rest_of
from holdfast.flow.tables import Entity, LiveTables, Sizing, TableRow
from holdfast.leases.lease import Json, Lease, Partition
from holdfast.leases.split import Split
from holdfast.registry import did_you_mean, needing
from holdfast.sources.database.calculator import (
    estimated_rows,
    in_claim_order,
    middle_of,
    partition_rows,
    partitions,
    parts,
    split_at,
)
from holdfast.sources.database.config import DatabaseConfig
from holdfast.sources.database.dialect import Column, Condition, Connection, Dialect, Kind, Row
from holdfast.sources.database.keys import document_id, key_of
from holdfast.sources.database.table import EntityTable, KeyRange, resolved

if TYPE_CHECKING:
    from holdfast.sources.database.reading import DatabaseRows, TableRebuilder

IDS_OF_A_STATEMENT = 500
CATCH_UP_ROWS = 10_000
TOMBSTONES_OF_A_PAGE = 500
GUESSED_BYTES = 1024
LIGHT_UNITS = 400_000
"""Work units that a node reads in some seconds: below them, a Spark job for each few partitions would cost too much."""


def dialect_of(config: DatabaseConfig) -> Dialect:
    """The dialect of the URL. Raises `UsageError` if its driver is not installed."""
    if config.scheme in {"postgresql", "postgres"}:
        with needing("the database source", "psycopg", "postgresql"):
            from holdfast.sources.database.postgresql import Postgresql
        return Postgresql(config)
    if config.scheme in {"mysql", "mariadb"}:
        with needing("the database source", "PyMySQL", "mysql"):
            from holdfast.sources.database.mysql import Mysql
        return Mysql(config)
    from holdfast.sources.database.sqlite import Sqlite

    return Sqlite(config)


class DatabaseSource(Source, FixedColumns, LiveTables, SplitsPartitions, WeighsPartitions, Rebuilds):
    """Tables and queries of one database. Partitions are made by runs; a live pipeline has none."""

    rediscover_after = 3600.0
    """Nothing is found, but the pipeline has not ended: its node waits for runs."""

    def __init__(self, config: DatabaseConfig) -> None:
        self._config = config
        self._dialect = dialect_of(config)
        self.task_modules = ("holdfast.sources.database.reading", type(self._dialect).__module__)
        self._tables: dict[str, EntityTable] = {}
        self._tombstones: dict[str, EntityTable] = {}

    def open(self) -> None:
        """Check that every entity's table and columns exist."""
        self._resolve(self._config.entities)
        for name in self._config.entities:
            self._resolve_tombstones(name)

    def discover(self, state: dict[str, Any]) -> Iterable[Partition]:  # noqa: ARG002 - runs make the partitions
        return ()

    def name(self, lease: Lease) -> Name:
        entity = str(lease.spec["entity"])
        return Name(entity, lease.key.removeprefix(f"{entity}/").replace("/", "-"))

    # --- batches -----------------------------------------------------------------------------------------------

    def plan(self, leases: Sequence[Lease], limits: Limits) -> list[Plan]:
        return [self._next(lease, limits) for lease in leases]

    def _next(self, lease: Lease, limits: Limits) -> Plan:
        from holdfast.sources.database.reading import END, is_position

        position = lease.progress.position
        if position == END:
            return Done()
        if not is_position(position):
            return BatchError(f"the position {position!r} is not one of a table")
        if lease.spec.get("entity") not in self._config.entities:
            return BatchError(f"the entity {lease.spec.get('entity')!r} is not in the settings any more")
        left = (lease.order.estimated_count or 0) - (position or {}).get("row", 0)
        size = max(1, left) * GUESSED_BYTES
        return Cut(position, END, last=True, size=size, max_records=limits.max_records)

    def is_light(self, leases: Sequence[Lease]) -> bool:
        return sum(map(rest_of, leases)) < LIGHT_UNITS

    def split(self, lease: Lease) -> Split | None:
        from holdfast.sources.database.reading import is_position, range_of

        entity, position = lease.spec["entity"], lease.progress.position
        if not is_position(position):
            return None
        table = self._resolve([entity])[entity]
        with self._dialect.connected() as connection:
            found = middle_of(table, connection, range_of(lease.spec, position))
        if found is None:
            return None
        middle, before, after = found
        return split_at(lease, middle, (position or {}).get("row", 0) + before, after)

    def columns(self) -> Any:
        from pyspark.sql.pandas.types import from_arrow_schema

        from holdfast.sources.database.reading import DATA_SCHEMA

        return from_arrow_schema(DATA_SCHEMA)

    def read(
        self,
        spark: Any,
        batches: Sequence[Batch],
        columns: frozenset[str] | None = None,  # noqa: ARG002 - there are few
    ) -> DatabaseRows:
        from pyspark.sql.pandas.types import from_arrow_schema

        from holdfast.sources.database.reading import SCHEMA, DatabaseRows, packed

        tables = self._resolve({batch.lease.spec["entity"] for batch in batches})
        tasks = 1 if spark is None else spark.sparkContext.defaultParallelism  # None: the caller reads
        return DatabaseRows(packed(batches, tables, self._config.batch_time, tasks), from_arrow_schema(SCHEMA))

    def rebuilder(self) -> TableRebuilder:
        from holdfast.sources.database.reading import TableRebuilder

        return TableRebuilder()

    # --- live tables -------------------------------------------------------------------------------------------

    def entities(self) -> Mapping[str, Entity]:
        return {name: config.entity(name) for name, config in self._config.entities.items()}

    def watermark(self) -> Json:
        with self._dialect.connected() as connection:
            mark = self._dialect.watermark(connection)
        if mark["time"] is not None:
            mark["time"] -= self._config.clock_skew
        return mark

    def settled(self, mark: Json) -> bool:
        with self._dialect.connected() as connection:
            return self._dialect.settled(connection, mark)

    def copy_partitions(self, entities: Sequence[str], sizing: Sizing) -> Iterator[Partition]:
        tables = self._resolve(entities)
        made: list[Partition] = []
        with self._dialect.connected() as connection, _refusing():
            totals = {name: estimated_rows(table, connection) for name, table in tables.items()}
            complexity = {name: self._config.entities[name].complexity for name in tables}
            rows = partition_rows(totals, complexity, sizing)
            for name, table in tables.items():
                made += partitions(table, list(parts(table, connection, rows[name])), 0)
        return iter(in_claim_order(made))

    def catch_up_partitions(self, entities: Sequence[str], since: Json, number: int) -> Iterator[Partition]:
        made: list[Partition] = []
        with self._dialect.connected() as connection, _refusing():
            for table in self._resolve(entities).values():
                mark = since if table.finds_changes(since) else None
                found = list(parts(table, connection, CATCH_UP_ROWS, mark))
                is_empty = mark is not None and not sum(part.rows for part in found)
                made += [] if is_empty else partitions(table, found, number, mark)
        return iter(in_claim_order(made))

    def removed(self, entity: str, since: Json) -> Iterator[Sequence[str]] | None:
        table = self._resolve_tombstones(entity)
        if table is None or since is None or not table.finds_changes(since):
            return None
        return self._noted(table, since)

    def _noted(self, table: EntityTable, since: Json) -> Iterator[Sequence[str]]:
        wanted, width = KeyRange(since=since), len(table.order(since))
        with self._dialect.connected() as connection, _refusing():
            if any(connection.rows(*statement) for statement in table.without_order(since)):
                names = ", ".join(column.name for column in table.order(since))
                raise Refused(f"entity {table.name}: tombstones have NULL in {names}, so that deletes would be missed")
            while rows := connection.rows(*table.noted(wanted, TOMBSTONES_OF_A_PAGE)):
                yield [document_id(row[width:]) for row in rows]
                wanted = replace(wanted, after=rows[-1][:width])

    def counts(self, entities: Sequence[str], since: Json = None) -> Mapping[str, int]:
        tables = self._resolve(entities)
        with self._dialect.connected() as connection, connection.snapshot():
            return {name: _counted(table, connection, since) for name, table in tables.items()}

    def present(self, entity: str, document_ids: Sequence[str]) -> Mapping[str, int | None]:
        return {id_: version for id_, (version,) in self._by_ids(entity, document_ids)}

    def find(self, entity: str, document_ids: Sequence[str]) -> Mapping[str, TableRow]:
        found = self._by_ids(entity, document_ids, documents=True)
        return {id_: TableRow(id_, version, document or "") for id_, (version, document) in found}

    def _by_ids(self, entity: str, ids: Sequence[str], *, documents: bool = False) -> Iterator[tuple[str, Row]]:
        table = self._resolve([entity])[entity]
        with self._dialect.connected() as connection:
            for at in range(0, len(ids), IDS_OF_A_STATEMENT):
                wanted = ids[at : at + IDS_OF_A_STATEMENT]
                condition = _condition_of(table, wanted)
                if condition is not None:
                    rows = connection.rows(*table.by_ids(condition, documents=documents))
                    yield from _exact_ids(wanted, rows, len(table.id_columns))

    def pages(self, entity: str) -> Iterator[Sequence[TableRow]]:
        from holdfast.sources.database.reading import pages

        table = self._resolve([entity])[entity]
        with self._dialect.connected() as connection:
            for page in pages(table, connection, KeyRange(), live_only=True):
                if len(page):
                    rows = zip(page.ids, page.versions, page.documents, strict=True)
                    yield [TableRow(id_, version, document or "") for id_, version, document in rows]

    # --- tables ------------------------------------------------------------------------------------------------

    def _resolve(self, entities: Iterable[str]) -> dict[str, EntityTable]:
        """The tables of these entities, as they were when they were first used."""
        wanted = list(dict.fromkeys(entities))
        for name in wanted:
            if name not in self._config.entities:
                hint = did_you_mean(name, self._config.entities)
                raise Refused(f"there is no entity {name!r}{hint}")
        if missing := [name for name in wanted if name not in self._tables]:
            with self._dialect.connected() as connection:
                self._tables |= {name: self._resolved(connection, name) for name in missing}
        return {name: self._tables[name] for name in wanted}

    def _resolve_tombstones(self, name: str) -> EntityTable | None:
        """The tombstones of an entity; None if it has none."""
        entity = self._resolve([name])[name]
        config = entity.config.noted()
        if config is None:
            return None
        if name not in self._tombstones:
            with self._dialect.connected() as connection:
                found = resolved(self._dialect, connection, f"{name}.tombstones", config, is_unique=False)
            if found.time is None or found.time.kind is Kind.OTHER:
                return found  # SQLite shows the kind of a column by its first value
            self._tombstones[name] = found
        return self._tombstones[name]

    def _resolved(self, connection: Connection, name: str) -> EntityTable:
        return resolved(self._dialect, connection, name, self._config.entities[name])


@contextmanager
def _refusing() -> Iterator[None]:
    """Turn the error of a statement that the database refuses into `Refused`: tables and settings do not match."""
    try:
        yield
    except BatchError as error:
        raise Refused(str(error)) from error


def _counted(table: EntityTable, connection: Connection, since: Json) -> int:
    ((rows,),) = connection.rows(*table.count(KeyRange(), live_only=True))
    if since is None or not table.finds_changes(since):
        return int(rows)
    ((changed,),) = connection.rows(*table.count(KeyRange(since=since), live_only=True))
    return int(rows) - int(changed)


# --- rows by the ids of their documents ------------------------------------------------------------------------------


def _condition_of(table: EntityTable, ids: Sequence[str]) -> Condition | None:
    """The condition for the rows of these documents; None if none of the ids can belong to a row."""
    columns = table.id_columns
    keys = [key for key in (_values(table.dialect, columns, id_) for id_ in ids) if key is not None]
    if not keys:
        return None
    names = [_compared(table, column) for column in columns]
    mark = table.dialect.parameter
    if len(columns) == 1:
        return Condition(f"{names[0]} IN ({', '.join([mark] * len(keys))})", [key[0] for key in keys])
    each = " AND ".join(f"{name} = {mark}" for name in names)
    return Condition(" OR ".join([f"({each})"] * len(keys)), [value for key in keys for value in key])


def _exact_ids(ids: Sequence[str], rows: Sequence[Row], parts: int) -> Iterator[tuple[str, Row]]:
    """The rows by their ids, which have that many parts. A collation may have found rows whose ids are only similar."""
    wanted = set(ids)
    for row in rows:
        if (id_ := document_id(row[:parts])) in wanted:
            yield id_, row[parts:]


def _values(dialect: Dialect, columns: Sequence[Column], id_: str) -> list[Any] | None:
    texts = key_of(id_, len(columns))
    if texts is None:
        return None
    values = [_value(column, text) for column, text in zip(columns, texts, strict=True)]
    return values if all(value is not None and dialect.can_be_bound(value) for value in values) else None


def _value(column: Column, text: str) -> Any:
    """The column's value that has this text; None if there is none."""
    with suppress(ValueError):
        if column.kind is Kind.INTEGER:
            return int(text)
        if column.kind is Kind.BINARY:
            return bytes.fromhex(text)
        return str(UUID(text)) if column.kind is Kind.UUID else text
    return None


def _compared(table: EntityTable, column: Column) -> str:
    by_value = (Kind.INTEGER, Kind.BINARY, Kind.UUID, Kind.TEXT)
    return column.quoted if column.kind in by_value else table.dialect.as_text(column)
