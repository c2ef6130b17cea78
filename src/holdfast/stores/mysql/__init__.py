"""Leases in MariaDB 10.6 or later, or MySQL 8. Settings and plugin; `store` has the store itself.

Tested on MariaDB. For MySQL 8 only SQL that both share is used; it was not tested there. All nodes must talk to one
server: a Galera cluster keeps row locks on the node that took the request, so send all requests to the same node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from holdfast.config.plugins import PLAIN_ERROR
from holdfast.config.secrets import SecretUrl
from holdfast.config.units import LocalPath, Port
from holdfast.registry import Plugin, needing
from holdfast.stores._sql_settings import SqlServerOptions, Timeout

if TYPE_CHECKING:
    from holdfast.stores.mysql.store import MysqlStore


class MysqlTls(BaseModel):
    """How the connection is encrypted, in the terms of libpq."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mode: Literal["disable", "require", "verify-ca", "verify-full"] | None = Field(
        default=None,
        description="verify-full unless given; on this host, TLS is optional unless a setting of `tls` is given. "
        "require encrypts without verifying the server, disable turns TLS off.",
    )
    ca: LocalPath | None = Field(
        default=None, description="Certificates of the authorities that are trusted; the system's unless given."
    )
    cert: LocalPath | None = Field(default=None, description="This node's own certificate.")
    key: LocalPath | None = Field(default=None, description="The key of the certificate.")
    check_host: bool = Field(
        default=True, description="The server's certificate must name the host; false is the same as verify-ca."
    )

    @model_validator(mode="after")
    def _trust_is_clear(self) -> Self:
        if self.mode is not None and "check_host" in self.model_fields_set:
            raise PydanticCustomError(PLAIN_ERROR, "mode already says what check_host would say")
        if self.ca is None and (self.mode == "verify-ca" or not self.check_host):
            raise PydanticCustomError(
                PLAIN_ERROR, "verify-ca needs ca: without it any server could pretend to be yours"
            )
        return self


class MysqlConfig(SqlServerOptions):
    """Address of the server, how to log in, and how long to wait."""

    SCHEMES: ClassVar[tuple[str, ...]] = ("mysql://", "mariadb://")
    url: SecretUrl | None = Field(
        default=None, description="mysql://user:password@host:port/database, instead of the next five settings."
    )
    port: Port = Field(default=3306, description="TCP port of the server.")
    tls: MysqlTls = Field(default=MysqlTls(), description="How the connection is encrypted.")
    statement_timeout: Timeout = Field(
        "10s",
        validate_default=True,
        description="How long to wait for a response, and in total for rows that others have locked.",
    )


def build(config: MysqlConfig) -> MysqlStore:
    """The store that the settings describe, not yet opened."""
    with needing("the mysql store", "PyMySQL", "mysql"):
        from holdfast.stores.mysql.store import MysqlStore
    return MysqlStore(config)


PLUGIN = Plugin(
    name="mysql",
    config=MysqlConfig,
    build=build,
    summary="Leases in MariaDB or MySQL, for fleets on many hosts.",
)
