"""Leases in PostgreSQL, for fleets of any size. Settings and plugin; `store` has the store itself.

Tested on version 15; nothing is used that 12 does not have. Connect to the primary itself, or through a pooler in
session mode: statements are prepared once per connection.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from holdfast.config.plugins import PLAIN_ERROR
from holdfast.config.secrets import Secret
from holdfast.config.units import Duration, Port
from holdfast.errors import UsageError
from holdfast.registry import Plugin

if TYPE_CHECKING:
    from holdfast.stores.postgresql.store import PostgresqlStore

TABLE_PREFIX = r"^([A-Za-z_][A-Za-z0-9_]{0,31})?$"


Timeout = Annotated[Duration, Field(gt=0)]


class PostgresqlTls(BaseModel):
    """How the connection is encrypted, in the words of libpq."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mode: Literal["disable", "allow", "prefer", "require", "verify-ca", "verify-full"] = Field(
        default="prefer", description="Only verify-ca and verify-full keep out a server that pretends to be yours."
    )
    ca: Path | None = Field(default=None, description="Certificates of the authorities that are trusted.")
    cert: Path | None = Field(default=None, description="This node's own certificate.")
    key: Path | None = Field(default=None, description="The key of that certificate.")


class PostgresqlConfig(BaseModel):
    """Where the server is, who we are there, and how patient we are with it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: Secret | None = Field(
        default=None,
        description="postgresql://user:password@host:port/database, in place of the next five settings.",
    )
    host: str = Field(default="localhost", description="Name or address; several, separated by commas, are tried.")
    port: Port = Field(default=5432, description="TCP port of the server.")
    database: str = Field(default="holdfast", description="Name of the database. Its encoding must be UTF8.")
    user: str = Field(default="holdfast", description="Role to log in as.")
    password: Secret | None = Field(default=None, description="Password of that role.")
    tls: PostgresqlTls = Field(default=PostgresqlTls(), description="How the connection is encrypted.")
    table_prefix: str = Field(
        default="holdfast_", pattern=TABLE_PREFIX, description="What the names of our tables begin with."
    )
    skip_table_creation: bool = Field(
        default=False, description="Never create or migrate tables; refuse to start if they are not as needed."
    )
    connect_timeout: Timeout = Field("5s", validate_default=True, description="How long to wait for a connection.")
    statement_timeout: Timeout = Field(
        "10s",
        validate_default=True,
        description="How long the server may take for one statement, waiting for locks included.",
    )

    @model_validator(mode="after")
    def _one_way_to_name_the_server(self) -> Self:
        parts = self.model_fields_set & {"host", "port", "database", "user", "password"}
        if self.url is not None and parts:
            raise PydanticCustomError(PLAIN_ERROR, f"url already says what {', '.join(sorted(parts))} would say")
        return self


def build(config: PostgresqlConfig) -> PostgresqlStore:
    """The store that the settings describe, not yet opened."""
    try:
        from holdfast.stores.postgresql.store import PostgresqlStore
    except ImportError as error:
        raise UsageError(f"the postgresql store needs psycopg; install holdfast[postgresql] ({error})") from error
    return PostgresqlStore(config)


PLUGIN = Plugin(
    name="postgresql",
    config=PostgresqlConfig,
    build=build,
    summary="Leases in PostgreSQL, for fleets on many hosts.",
)
