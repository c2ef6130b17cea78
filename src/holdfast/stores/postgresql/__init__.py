"""Leases in PostgreSQL, for fleets of any size. Settings and plugin; `store` has the store itself.

Tested on version 15; nothing is used that 12 does not have. Connect to the primary itself, or through a pooler in
session mode: statements are prepared once per connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from holdfast.config.secrets import SecretUrl
from holdfast.config.units import LocalPath, Port
from holdfast.registry import Plugin, needing
from holdfast.stores._sql_settings import SqlServerOptions, Timeout

if TYPE_CHECKING:
    from holdfast.stores.postgresql.store import PostgresqlStore


class PostgresqlTls(BaseModel):
    """How the connection is encrypted, in the terms of libpq."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mode: Literal["disable", "allow", "prefer", "require", "verify-ca", "verify-full"] | None = Field(
        default=None,
        description="Unless given here or in the URL, verify-full for a server on another host and prefer on this one. "
        "Only verify-ca and verify-full protect against a server that impersonates yours; disable turns TLS off.",
    )
    ca: LocalPath | None = Field(
        default=None, description="Certificates of the authorities that are trusted; the system's unless given."
    )
    cert: LocalPath | None = Field(default=None, description="This node's own certificate.")
    key: LocalPath | None = Field(default=None, description="The key of the certificate.")


class PostgresqlConfig(SqlServerOptions):
    """Address of the server, how to log in, and how long to wait."""

    SCHEMES: ClassVar[tuple[str, ...]] = ("postgresql://", "postgres://")
    url: SecretUrl | None = Field(
        default=None,
        description="postgresql://user:password@host:port/database, instead of the next five settings.",
    )
    host: str = Field(default="localhost", description="Name or address; several, separated by commas, are tried.")
    port: Port = Field(default=5432, description="TCP port of the server.")
    database: str = Field(default="holdfast", description="Name of the database. Its encoding must be UTF8.")
    tls: PostgresqlTls = Field(default=PostgresqlTls(), description="How the connection is encrypted.")
    statement_timeout: Timeout = Field(
        "10s",
        validate_default=True,
        description="How long the server may take for one statement, waiting for locks included.",
    )


def build(config: PostgresqlConfig) -> PostgresqlStore:
    """The store that the settings describe, not yet opened."""
    with needing("the postgresql store", "psycopg", "postgresql"):
        from holdfast.stores.postgresql.store import PostgresqlStore
    return PostgresqlStore(config)


PLUGIN = Plugin(
    name="postgresql",
    config=PostgresqlConfig,
    build=build,
    summary="Leases in PostgreSQL, for fleets on many hosts.",
)
