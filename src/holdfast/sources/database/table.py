"""The table or query of an entity, with the kinds of its columns, and the statements that read it. Picklable."""
# ruff: noqa: S608 - names are quoted, and values are parameters; the query is the user's

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.errors import BatchError, Refused
from holdfast.leases.lease import Json
from holdfast.registry import did_you_mean
from holdfast.sources.database.config import EntityConfig
from holdfast.sources.database.dialect import Column, Condition, Connection, Dialect, Kind, Row
from holdfast.sources.database.keys import document_id

Statement = tuple[str, list[Any]]
ROWS = "_rows"
"""The name of the table or query in statements: a column alone might be taken for a column of the result."""


@dataclass(frozen=True)
class KeyRange:
    """A part of the rows in order. A boundary may have values for only the first columns of the order."""

    start: Sequence[Any] | None = None
    """The first values; None: from the beginning."""
    after: Sequence[Any] | None = None
    """The range begins after the row with these values; `start` is then ignored."""
    end: Sequence[Any] | None = None
    """The values after the last row; None: to the end."""
    last: Sequence[Any] | None = None
    """The values of the last row; counts more than `end`."""
    since: Json = None
    """Only rows changed since this mark."""


@dataclass(frozen=True)
class Page:
    """Rows that one statement returned, column by column."""

    last: Sequence[Any]
    """Values of the columns of the order in the last row."""
    ids: Sequence[str]
    versions: Sequence[int | None]
    deleted: Sequence[Any]
    documents: Sequence[str | None]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def size(self) -> int:
        """Number of characters in the documents."""
        return sum(map(len, filter(None, self.documents)))


@dataclass(frozen=True)
class EntityTable:
    """The rows of one entity, and how they are read."""

    name: str
    config: EntityConfig
    dialect: Dialect
    relation: str
    key: tuple[Column, ...]
    id_columns: tuple[Column, ...]
    time: Column | None
    """The time of the last change, or of the row if rows never change."""
    deleted: Column | None
    document: str
    has_valid_json: bool
    nullable: frozenset[str]
    """Columns that may be NULL; those of a query are not known."""

    # --- orders ------------------------------------------------------------------------------------------------

    def order(self, since: Json) -> tuple[Column, ...]:
        """The columns by which rows are read: by time where that finds the changes since a mark, else by key."""
        by_time = self.config.append_only is not None or (since is not None and self._changed_by_time(since))
        return (self.time, *self.key) if by_time and self.time is not None else self.key

    def finds_changes(self, mark: Json) -> bool:
        """Whether rows changed since the mark are found without reading all of them."""
        return self.changed(mark) is not None

    def changed(self, mark: Json) -> Condition | None:
        """The condition for rows changed since the mark; None if only reading all rows finds them."""
        by_time = self._changed_by_time(mark)
        if by_time is not None or self.config.table is None:
            return by_time
        return self.dialect.changed_rows(mark)

    def _changed_by_time(self, mark: Json) -> Condition | None:
        if self.time is None or mark.get("time") is None:
            return None
        return self.dialect.changed_since(self.time, self.config.updated_at_unit, mark["time"])

    # --- statements --------------------------------------------------------------------------------------------

    def page(self, wanted: KeyRange, limit: int, *, live_only: bool = False) -> Statement:
        """The next rows of the range; `live_only`: without deleted ones."""
        more = [Condition(f"NOT ({self._is_deleted})")] if live_only and self.deleted is not None else []
        selected = [
            *map(self.dialect.key_value, self.order(wanted.since)),
            *map(self.dialect.as_text, self.id_columns),
            self._version,
            self._is_deleted,
            self._document,
        ]
        return self._select(", ".join(selected), wanted, limit, more=more)

    def read(self, rows: Sequence[Row], since: Json) -> Page:
        """The rows that a statement of `page` returned. Raises `BatchError` if two have the same key."""
        if not rows:
            return Page((), (), (), (), ())
        order, columns = len(self.order(since)), list(zip(*rows, strict=True))
        keys, parts = columns[:order], columns[order:-3]
        if len(set(keys[0] if order == 1 else zip(*keys, strict=True))) < len(rows):
            raise BatchError(f"two rows have the same {', '.join(self.config.key_columns)}; a key must be unique")
        if any(None in part for part in parts):
            raise BatchError(f"a row has no id: {', '.join(column.name for column in self.id_columns)} is NULL")
        ids = parts[0] if len(parts) == 1 else list(map(document_id, zip(*parts, strict=True)))
        return Page(rows[-1][:order], ids, *columns[-3:])

    def boundary(self, wanted: KeyRange, rows: int, *, depth: int | None = None) -> Statement:
        """The statement for the row that is `rows` after the first one of the range: `depth` values of its order."""
        order = self.order(wanted.since)[:depth]
        return self._select(", ".join(map(self.dialect.key_value, order)), wanted, 1, offset=rows, depth=depth)

    def count(self, wanted: KeyRange, limit: int | None = None, *, live_only: bool = False) -> Statement:
        """The number of rows in the range, at most `limit`."""
        more = [Condition(f"NOT ({self._is_deleted})")] if live_only and self.deleted is not None else []
        if limit is None:
            return self._select("count(*)", wanted, None, more=more, ordered=False)
        text, values = self._select("1", wanted, limit, more=more)
        return f"SELECT count(*) FROM ({text}) AS _counted", values

    def without_order(self, since: Json) -> list[Statement]:
        """Statements that return a row that has no place in the order, because one of its columns is NULL."""
        nullable = [column.quoted for column in self.order(since) if column.name in self.nullable]
        return [(f"SELECT 1 FROM {self.relation} WHERE {name} IS NULL LIMIT 1", []) for name in nullable]

    def by_ids(self, condition: Condition, *, documents: bool = False) -> Statement:
        """Ids and versions of live rows, and their documents if they are wanted."""
        selected = [*map(self.dialect.as_text, self.id_columns), self._version, *[self.document] * documents]
        live = "" if self.deleted is None else f" AND NOT ({self._is_deleted})"
        text = f"SELECT {', '.join(selected)} FROM {self.relation} WHERE ({condition.text}){live}"
        return text, list(condition.values)

    def noted(self, wanted: KeyRange, limit: int) -> Statement:
        """The order and the ids of the next tombstones of the range."""
        selected = [*map(self.dialect.key_value, self.order(wanted.since)), *map(self.dialect.as_text, self.id_columns)]
        return self._select(", ".join(selected), wanted, limit)

    def _select(
        self,
        selected: str,
        wanted: KeyRange,
        limit: int | None,
        *,
        offset: int = 0,
        depth: int | None = None,
        more: Sequence[Condition] = (),
        ordered: bool = True,
    ) -> Statement:
        conditions = [*self._within(wanted), *more]
        text = f"SELECT {selected} FROM {self.relation}"
        if conditions:
            text += " WHERE " + " AND ".join(f"({condition.text})" for condition in conditions)
        if ordered:
            text += f" ORDER BY {', '.join(column.quoted for column in self.order(wanted.since)[:depth])}"
        if limit is not None:
            text += f" LIMIT {limit}"
        if offset:
            text += f" OFFSET {offset}"
        return text, [value for condition in conditions for value in condition.values]

    def _within(self, wanted: KeyRange) -> list[Condition]:
        order, compared = self.order(wanted.since), self.dialect.compared
        lower, upper = (">", wanted.after), ("<=", wanted.last)
        bounds = [
            lower if wanted.after is not None else (">=", wanted.start),
            upper if wanted.last is not None else ("<", wanted.end),
        ]
        conditions = [
            compared(order[: len(values)], operator, values) for operator, values in bounds if values is not None
        ]
        changed = None if wanted.since is None else self.changed(wanted.since)
        return conditions if changed is None else [*conditions, changed]

    # --- expressions -------------------------------------------------------------------------------------------

    @property
    def _version(self) -> str:
        return "NULL" if self.time is None else self.dialect.version(self.time, self.config.updated_at_unit)

    @property
    def _is_deleted(self) -> str:
        return "1 = 0" if self.deleted is None else self.dialect.is_deleted(self.deleted)

    @property
    def _document(self) -> str:
        if self.deleted is None:
            return self.document
        return f"CASE WHEN {self._is_deleted} THEN NULL ELSE {self.document} END"


# --- resolving ------------------------------------------------------------------------------------------------------


def resolved(
    dialect: Dialect, connection: Connection, name: str, config: EntityConfig, *, is_unique: bool = True
) -> EntityTable:
    """The entity with the columns that its table has now. Raises `Refused` if the settings do not match it.

    `is_unique`: the key must be unique in the table.
    """
    relation = _relation(dialect, config)
    try:
        limit = 1 if dialect.parameter == "?" else 0
        described = connection.describe(f"SELECT * FROM {relation} LIMIT {limit}")
    except BatchError as error:
        raise Refused(f"entity {name}: {error}") from error
    columns = {column.name: column._replace(quoted=f"{ROWS}.{dialect.quoted(column.name)}") for column in described}
    key = tuple(_named(name, columns, column, "key") for column in config.key_columns)
    id_ = () if config.document_id is None else (_named(name, columns, config.document_id, "document_id"),)
    time, deleted = config.updated_at or config.append_only, config.deleted
    document, is_valid = _document(dialect, name, config, columns)
    nullable: set[str] = set()
    if config.table is not None:
        if is_unique:
            _check_key(dialect, connection, name, config)
        nullable = dialect.nullable(connection, table_name(config))
    return EntityTable(
        name,
        config,
        dialect,
        relation,
        key,
        id_ or key,
        None if time is None else _named(name, columns, time, "updated_at" if config.updated_at else "append_only"),
        None if deleted is None else _named(name, columns, deleted, "deleted"),
        document,
        is_valid,
        frozenset(nullable),
    )


def table_name(config: EntityConfig) -> list[str]:
    """The parts of the table's name: schema and table."""
    return (config.table or "").split(".")


def _relation(dialect: Dialect, config: EntityConfig) -> str:
    if config.query is None:
        return f"{'.'.join(dialect.quoted(part) for part in table_name(config))} AS {ROWS}"
    return f"({dialect.literal_text(config.query.strip().rstrip(';'))}) AS {ROWS}"


def _named(entity: str, columns: dict[str, Column], name: str, setting: str) -> Column:
    if name not in columns:
        hint = did_you_mean(name, columns)
        raise Refused(f"entity {entity}: {setting} names the column {name!r}, which is not among its columns{hint}")
    return columns[name]


def _document(dialect: Dialect, entity: str, config: EntityConfig, columns: dict[str, Column]) -> tuple[str, bool]:
    """The expression of the document, and whether the database guarantees that it is JSON."""
    if config.json_column is not None:
        column = _named(entity, columns, config.json_column, "json")
        if column.kind not in (Kind.JSON, Kind.TEXT, Kind.OTHER):
            raise Refused(f"entity {entity}: json names the column {column.name!r}, which holds {column.kind.value}")
        return dialect.json_text(column), dialect.has_valid_json(column)
    fields = config.fields if config.fields is not None else tuple(columns)
    named = fields if isinstance(fields, dict) else {column: column for column in fields}
    return dialect.document({field: _named(entity, columns, column, "fields") for field, column in named.items()}), True


def _check_key(dialect: Dialect, connection: Connection, entity: str, config: EntityConfig) -> None:
    """Raise `Refused` unless the key is unique: rows with the same key would be skipped between two pages."""
    wanted, unique = frozenset(config.key_columns), dialect.unique_keys(connection, table_name(config))
    if not any(columns <= wanted for columns in unique):
        found = "; ".join(", ".join(sorted(columns)) for columns in unique) or "nothing"
        raise Refused(
            f"entity {entity}: the key {', '.join(config.key_columns)} is not unique in {config.table}, so that rows "
            f"would be missed. Unique there: {found}"
        )
