"""Settings that all stores on an SQL server have."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from holdfast.config.plugins import PLAIN_ERROR, problem_at
from holdfast.config.secrets import Secret, SecretUrl
from holdfast.config.units import Duration

Timeout = Annotated[Duration, Field(gt=0)]

_PARTS_OF_URL = {"host", "port", "database", "user", "password"}


class SqlServerOptions(BaseModel):
    """Login to an SQL server, prefix of the tables, and timeouts. The server is given by `url` or by its parts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    SCHEMES: ClassVar[tuple[str, ...]]
    url: SecretUrl | None = None
    host: str = Field(default="localhost", description="Name or address of the server.")
    port: int
    database: str = Field(default="holdfast", description="Name of the database.")
    user: str = Field(default="holdfast", description="User to log in as.")
    password: Secret | None = Field(default=None, description="Password of that user.")
    table_prefix: str = Field(
        default="holdfast_",
        pattern=r"^([A-Za-z_][A-Za-z0-9_]{0,31})?$",
        description="Prefix of the names of holdfast's tables.",
    )
    skip_table_creation: bool = Field(
        default=False, description="Never create or migrate tables; refuse to start if they are not as needed."
    )
    connect_timeout: Timeout = Field("5s", validate_default=True, description="How long to wait for a connection.")
    statement_timeout: Timeout = Field("10s", validate_default=True)

    @model_validator(mode="after")
    def _server_is_named_once(self) -> Self:
        address = "" if self.url is None else self.url.reveal()
        if ":" in address and not address.startswith(self.SCHEMES) and "=" not in address.partition(":")[0]:
            # The URL is not repeated: it may hold the password.
            raise problem_at(("url",), PLAIN_ERROR, f"url must begin with {self.SCHEMES[0]}")
        parts = self.model_fields_set & _PARTS_OF_URL
        if self.url is not None and parts:
            raise PydanticCustomError(PLAIN_ERROR, f"url already says what {', '.join(sorted(parts))} would say")
        return self
