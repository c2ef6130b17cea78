"""Settings that all stores on an SQL server have."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field
from pydantic_core import PydanticCustomError

from holdfast.config.plugins import PLAIN_ERROR
from holdfast.config.secrets import Secret
from holdfast.config.units import Duration

Timeout = Annotated[Duration, Field(gt=0)]

TablePrefix = Annotated[
    str,
    Field(pattern=r"^([A-Za-z_][A-Za-z0-9_]{0,31})?$", description="What the names of our tables begin with."),
]

SkipTableCreation = Annotated[
    bool, Field(description="Never create or migrate tables; refuse to start if they are not as needed.")
]


def check_url(settings: BaseModel, url: Secret | None) -> None:
    """Raise unless there is one way to name the server: the whole of it in `url`, or its parts."""
    parts = settings.model_fields_set & {"host", "port", "database", "user", "password"}
    if url is not None and parts:
        raise PydanticCustomError(PLAIN_ERROR, f"url already says what {', '.join(sorted(parts))} would say")
