"""Leases in MariaDB 10.6 or later, or MySQL 8. Settings and plugin; `store` has the store itself.

Tested on MariaDB. For MySQL 8 only SQL that both share is used; nobody has run it there. All nodes must talk to one
server: a Galera cluster keeps row locks on the node that was asked, so send all of them to the same one.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from holdfast.config.plugins import PLAIN_ERROR
from holdfast.config.secrets import Secret
from holdfast.config.units import Duration, Port
from holdfast.errors import UsageError
from holdfast.registry import Plugin

if TYPE_CHECKING:
    from holdfast.stores.mysql.store import MysqlStore

TABLE_PREFIX = r"^([A-Za-z_][A-Za-z0-9_]{0,31})?$"


Timeout = Annotated[Duration, Field(gt=0)]


class MysqlTls(BaseModel):
    """How the connection is encrypted. It is, as soon as `ca` is given."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ca: Path | None = Field(default=None, description="Certificates of the authorities that are trusted.")
    cert: Path | None = Field(default=None, description="This node's own certificate.")
    key: Path | None = Field(default=None, description="The key of that certificate.")
    check_host: bool = Field(default=True, description="The server's certificate must name the host.")

    @model_validator(mode="after")
    def _nothing_without_trust(self) -> Self:
        if self.ca is None and self.model_fields_set:
            raise PydanticCustomError(PLAIN_ERROR, "tls needs ca: without it any server could pretend to be yours")
        return self


class MysqlConfig(BaseModel):
    """Where the server is, who we are there, and how patient we are with it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: Secret | None = Field(
        default=None, description="mysql://user:password@host:port/database, in place of the next five settings."
    )
    host: str = Field(default="localhost", description="Name or address of the server.")
    port: Port = Field(default=3306, description="TCP port of the server.")
    database: str = Field(default="holdfast", description="Name of the database.")
    user: str = Field(default="holdfast", description="User to log in as.")
    password: Secret | None = Field(default=None, description="Password of that user.")
    tls: MysqlTls = Field(default=MysqlTls(), description="How the connection is encrypted.")
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
        description="How long to wait for an answer, and in all for rows that others have locked.",
    )

    @model_validator(mode="after")
    def _one_way_to_name_the_server(self) -> Self:
        parts = self.model_fields_set & {"host", "port", "database", "user", "password"}
        if self.url is not None and parts:
            raise PydanticCustomError(PLAIN_ERROR, f"url already says what {', '.join(sorted(parts))} would say")
        return self


def build(config: MysqlConfig) -> MysqlStore:
    """The store that the settings describe, not yet opened."""
    try:
        from holdfast.stores.mysql.store import MysqlStore
    except ImportError as error:
        raise UsageError(f"the mysql store needs PyMySQL; install holdfast[mysql] ({error})") from error
    return MysqlStore(config)


PLUGIN = Plugin(
    name="mysql",
    config=MysqlConfig,
    build=build,
    summary="Leases in MariaDB or MySQL, for fleets on many hosts.",
)
