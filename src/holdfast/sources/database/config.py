"""Settings of the source `database`."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from holdfast.config import Duration, Options
from holdfast.config.plugins import PLAIN_ERROR, Name, problem_at
from holdfast.config.secrets import SecretUrl
from holdfast.config.units import VALUE_ERROR
from holdfast.flow.tables import Entity
from holdfast.registry import did_you_mean


def _checked_column(name: Any) -> Any:
    if isinstance(name, bool):
        raise PydanticCustomError(VALUE_ERROR, "is not the name of a column")
    return name


Column = Annotated[str, BeforeValidator(_checked_column)]
Columns = Annotated[tuple[str, ...], Field(min_length=1)]


SCHEMES = ("postgresql", "postgres", "mysql", "mariadb", "sqlite")


class DatabaseTls(Options):
    """How the connection to a server is encrypted, in the terms of libpq."""

    EXAMPLE: ClassVar[str] = "{mode: verify-full}"
    mode: Literal["disable", "require", "verify-ca", "verify-full"] | None = Field(
        None,
        description="verify-full for a server on another host unless given; on this host, TLS is optional. require "
        "encrypts without verifying the server, disable turns TLS off.",
    )
    ca: Path | None = Field(
        None, description="Certificates of the authorities that are trusted; the system's unless given."
    )
    cert: Path | None = Field(None, description="This node's own certificate.")
    key: Path | None = Field(None, description="The key of the certificate.")


class Tombstones(Options):
    """Where the keys of deleted rows are noted, with the time at which the row was deleted."""

    table: str | None = Field(None, description="The table, or `schema.table`.")
    query: str | None = Field(None, description="A SELECT instead of a table.")
    deleted_at: str = Field(
        description="The column with the time of the delete: a time, or an integer as `updated_at_unit` of the entity "
        "says, set by the clock that sets `updated_at`. Give it an index."
    )

    @model_validator(mode="after")
    def _is_clear(self) -> Self:
        if (self.table is None) == (self.query is None):
            raise PydanticCustomError(PLAIN_ERROR, "tombstones have either a table or a query")
        return self


class EntityConfig(Options):
    """Rows of a table or of a query, each of which becomes a document."""

    EXAMPLE: ClassVar[str] = "{table: users, key: id}"
    table: str | None = Field(None, description="The table, or `schema.table`. Its key must be unique.")
    query: str | None = Field(
        None,
        description="A SELECT instead of a table, for joins and conditions. It has the columns that the other settings "
        "name, and each key once. The database must be able to find rows by the key without running the whole query.",
    )
    key: str | Columns = Field(
        description="The column, or columns, that identify a row: integers, UUIDs, text, or several of them together. "
        "An index must begin with them. Rows must have no NULL there."
    )
    updated_at: Column | None = Field(
        None,
        description="A column with the time of the last change: a time, or an integer as `updated_at_unit` says. It "
        "is the version of the document, and finds what changed during a run. Without it all rows are read again; on "
        "PostgreSQL, a table is searched by its transaction ids instead.",
    )
    updated_at_unit: Literal["s", "ms", "us"] = Field("ms", description="Unit of an `updated_at` that is an integer.")
    deleted: Column | None = Field(
        None,
        description="A column that marks deleted rows: a boolean or number that is not zero, or a time or text that is "
        "not NULL. Without it deleted rows are found by `tombstones`, or by comparing keys.",
    )
    tombstones: Tombstones | None = Field(
        None,
        description="A table or query with the keys of deleted rows, under the names of `key` (of `document_id` if it "
        "is given). Keys may be there several times, and also after their row was added again. Without it, and without "
        "`deleted`, all keys are compared.",
    )
    append_only: Column | None = Field(
        None,
        description="For rows that are added and never change: the column with the time of the row. Partitions are "
        "ranges of time, and only new rows are read again. An index must begin with this column.",
    )
    document_id: str | None = Field(
        None, description="A unique column with the id of the document; the key's values, joined by `:`, unless given."
    )
    json_column: str | None = Field(
        None, alias="json", description="The column that holds the document as a JSON object, used as it is."
    )
    fields: Columns | dict[str, str] | None = Field(
        None,
        description="Columns that become the fields of the document; or names of fields, each with its column. All "
        "columns unless this or `json` is given.",
    )
    index: str | None = Field(None, description="The index or alias of the documents; the entity's name unless given.")
    mappings: dict[str, Any] | None = Field(None, description="Mappings of the index, as OpenSearch takes them.")
    settings: dict[str, Any] | None = Field(None, description="Settings of the index, as OpenSearch takes them.")
    priority: int = Field(0, description="Entities with a higher priority are read first.")
    complexity: float = Field(
        1.0, gt=0, le=1000, description="Work of one row, compared with a row of an ordinary entity."
    )

    @model_validator(mode="after")
    def _is_clear(self) -> Self:
        if (self.table is None) == (self.query is None):
            raise PydanticCustomError(PLAIN_ERROR, "an entity has either a table or a query")
        if self.json_column is not None and self.fields is not None:
            raise PydanticCustomError(PLAIN_ERROR, "json is the whole document, so that fields cannot be given too")
        if self.append_only is not None and (self.updated_at is not None or self.deleted is not None):
            raise PydanticCustomError(
                PLAIN_ERROR, "rows of an append_only entity never change: updated_at and deleted do not belong to it"
            )
        if self.tombstones is not None and self.deleted is not None:
            raise problem_at(
                ("tombstones",), PLAIN_ERROR, "deleted rows are either marked by `deleted` or noted in `tombstones`"
            )
        return self

    @property
    def key_columns(self) -> tuple[str, ...]:
        return (self.key,) if isinstance(self.key, str) else self.key

    def entity(self, name: str) -> Entity:
        """The entity as runs see it."""
        return Entity(
            name,
            self.index or name,
            self.mappings,
            self.settings,
            self.priority,
            self.complexity,
            has_versions=self.updated_at is not None or self.append_only is not None,
            has_deleted_flag=self.deleted is not None,
            has_tombstones=self.tombstones is not None,
            append_only=self.append_only is not None,
        )

    def noted(self) -> EntityConfig | None:
        """The keys of deleted rows as an entity of their own, whose time of change is that of the delete."""
        if self.tombstones is None:
            return None
        return EntityConfig(
            table=self.tombstones.table,
            query=self.tombstones.query,
            key=self.key if self.document_id is None else self.document_id,
            updated_at=self.tombstones.deleted_at,
            updated_at_unit=self.updated_at_unit,
        )

    def notes(self) -> list[str]:
        """What runs cost because a setting is missing."""
        costs = []
        if self.updated_at is None and self.append_only is None:
            costs.append("without updated_at, all rows are read again after the copy (in a PostgreSQL table: searched)")
        if self.deleted is None and self.tombstones is None:
            costs.append("without deleted or tombstones, all keys are compared to find deleted rows")
        elif self.tombstones is not None:
            costs.append(f"tombstones must be kept until the next run; {self.tombstones.deleted_at} needs an index")
        return costs


CRON_FIELDS = ("minute", "hour", "day of month", "month", "day of week")


def _checked_cron(text: str) -> str:
    from cronsim import CronSim, CronSimError

    if len(text.split()) != len(CRON_FIELDS):
        reason = (
            f"is not a cron expression such as 0 3 * * *: it has {len(CRON_FIELDS)} parts, {', '.join(CRON_FIELDS)}"
        )
        raise PydanticCustomError(VALUE_ERROR, reason)
    try:
        CronSim(text, datetime(2000, 1, 1, tzinfo=UTC))
    except CronSimError as error:
        reason = f"is not a cron expression such as 0 3 * * *: {error}"
        raise PydanticCustomError(VALUE_ERROR, reason) from None
    return text


def _checked_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ValueError, OSError, ZoneInfoNotFoundError):
        raise PydanticCustomError(VALUE_ERROR, "is not a time zone such as Europe/Berlin") from None
    return name


def _checked_zone_or_offset(name: str) -> str:
    return name if re.fullmatch(r"[+-]\d\d:\d\d", name) else _checked_zone(name)


class ScheduleOptions(Options):
    """When reindex runs begin by themselves."""

    cron: Annotated[str, AfterValidator(_checked_cron)] = Field(
        description="Minute, hour, day of month, month and day of week, such as `0 3 * * *` for 3 o'clock every day."
    )
    time_zone: Annotated[str, AfterValidator(_checked_zone)] = Field("UTC", description="Zone of these times.")
    entities: tuple[str, ...] = Field((), description="Entities of these runs; all unless given.")
    changed: bool = Field(
        False,
        description="Copy only what changed since the last COMPLETED run, in place; everything if there is none.",
    )

    def due_at(self, now: float) -> float:
        """The latest time of the schedule that is not after `now`, in seconds since 1970."""
        from cronsim import CronSim

        moment = datetime.fromtimestamp(now + 1, ZoneInfo(self.time_zone))
        return next(CronSim(self.cron, moment, reverse=True)).timestamp()


class DatabaseConfig(Options):
    """Tables of PostgreSQL, MariaDB, MySQL or SQLite. Rows are read by runs, such as `holdfast reindex start`."""

    has_shards: ClassVar[bool] = False
    only_for_reindex: ClassVar[bool] = True
    url: SecretUrl = Field(
        description="postgresql://user:password@host:port/database, mysql://… or mariadb://… in the same form, or "
        "sqlite:///path/of/file. A URL with a password must be, or contain, a reference."
    )
    tls: DatabaseTls = Field(default=DatabaseTls(), description="How the connection is encrypted.")
    entities: dict[Name, EntityConfig] = Field(min_length=1, description="What is read, by a name of your choice.")
    schedule: ScheduleOptions | None = Field(None, description="When reindex runs begin by themselves.")
    time_zone: Annotated[str, AfterValidator(_checked_zone_or_offset)] = Field(
        "UTC", description="Zone of times that are stored without one: a name such as Europe/Berlin, or +01:00."
    )
    clock_skew: Duration = Field(
        "10s",
        validate_default=True,
        description="How far the clocks that set `updated_at` may be behind the clock of the database.",
    )
    batch_time: Annotated[Duration, Field(gt=0)] = Field(
        "4s", validate_default=True, description="How long one batch of a partition is read before it is committed."
    )
    connect_timeout: Annotated[Duration, Field(gt=0)] = Field(
        "5s", validate_default=True, description="How long to wait for a connection."
    )
    statement_timeout: Annotated[Duration, Field(gt=0)] = Field(
        "60s", validate_default=True, description="How long to wait for one page of rows."
    )

    @model_validator(mode="after")
    def _has_a_known_scheme(self) -> Self:
        if self.scheme not in SCHEMES:
            # The URL is not repeated: it may hold the password.
            message = "url must begin with postgresql://, mysql://, mariadb:// or sqlite:///"
            raise problem_at(("url",), PLAIN_ERROR, message)
        if self.scheme == "sqlite" and not self.url.reveal().startswith("sqlite:///"):
            message = "write sqlite:///path, and sqlite:////path for an absolute path"
            raise problem_at(("url",), PLAIN_ERROR, message)
        return self

    @model_validator(mode="after")
    def _schedule_names_entities(self) -> Self:
        for index, name in enumerate(() if self.schedule is None else self.schedule.entities):
            if name not in self.entities:
                hint = did_you_mean(name, self.entities)
                raise problem_at(("schedule", "entities", index), VALUE_ERROR, f"is not one of the entities{hint}")
        return self

    def notes(self) -> list[str]:
        """What runs of the entities cost or need, for `validate`."""
        return [f"entities.{name}: {note}" for name, entity in self.entities.items() for note in entity.notes()]

    @property
    def scheme(self) -> str:
        return self.url.reveal().partition("://")[0].lower()
