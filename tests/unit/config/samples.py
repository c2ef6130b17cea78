"""Plugins and short ways to load text, for the tests of this folder."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from holdfast.config import Duration, Options, PluginUse, Secret, Settings, Uses, load_text
from holdfast.errors import ConfigError
from holdfast.registry import Kind, Plugin, Registry


class InMemory(Options):
    pass


class Sqlite(Options):
    path: str = Field(description="The database file.")


class DynamoDb(Options):
    """The options of the documentation that the product follows."""

    table_name: str = Field(description="Name of the table.")
    region: str = Field(description="Region of the table.")
    sts_role_arn: str | None = Field(None, description="Role to assume.")
    sts_external_id: str | None = Field(None, description="External id to assume the role with.")
    skip_table_creation: bool = Field(False, description="The table exists already.")
    provisioned_write_capacity_units: int = Field(10, description="Write capacity.")
    provisioned_read_capacity_units: int = Field(10, description="Read capacity.")
    ttl: Duration | None = Field(None, description="How long items live.")


class Endpoint(Options):
    host: str = Field(description="Name of the host.")
    port: int = Field(443, ge=1, le=65535, description="Port of the host.")


def _quotes_what_it_gets(value: str) -> str:
    if "bad" in value:
        raise ValueError(f"cannot use {value[1:]}")
    return value


def _breaks(value: str) -> str:
    return {"fine": value}[value]


class Objects(Options):
    path: str = Field(description="Where the objects are.")
    password: Secret | None = Field(None, description="Password of the account.")
    access_key: str | None = Field(None, max_length=3, description="A secret whose author forgot that it is one.")
    user: str | None = Field(None, description="Name of the account.")
    endpoint: Endpoint | None = Field(None, description="Where the service is.")
    label: Annotated[str, AfterValidator(_quotes_what_it_gets)] = Field("x", description="A label.")
    fragile: Annotated[str, AfterValidator(_breaks)] = Field("fine", description="Breaks the plugin.")

    @model_validator(mode="after")
    def _not_both(self) -> Objects:
        if self.user == self.path:
            raise ValueError(f"user {self.user} is the path, too")
        return self


class Filter(Options):
    where: str = Field(description="Condition in SQL.")


class Jsonl(Options):
    compression: str | None = Field(None, description="Codec.")


class Files(Options):
    path: str = Field(description="Where files go.")
    format: Annotated[PluginUse, Uses("formats")] = Field(
        {"jsonl": None}, validate_default=True, description="Format of the files."
    )


def plugin(name: str, config: type[Any]) -> Plugin:
    return Plugin(name=name, config=config, build=lambda settings: settings, summary=f"The sample {name}.")


PLUGINS: dict[Kind, list[Plugin]] = {
    "stores": [plugin("in_memory", InMemory), plugin("sqlite", Sqlite)],
    "sources": [plugin("objects", Objects)],
    "processors": [plugin("filter", Filter)],
    "sinks": [plugin("files", Files)],
    "formats": [plugin("jsonl", Jsonl)],
}
REGISTRY = Registry(PLUGINS)

PIPELINE = """\
pipelines:
  clicks:
    source: {objects: {path: in}}
    sinks: [{files: {path: out}}]
"""


def settings(text: str, environ: Mapping[str, str] | None = None) -> Settings:
    return load_text(textwrap.dedent(text), "holdfast.yaml", REGISTRY, environ or {})


def failure(text: str, environ: Mapping[str, str] | None = None) -> ConfigError:
    try:
        loaded = settings(text, environ)
    except ConfigError as error:
        return error
    raise AssertionError(f"was accepted: {loaded}")


def problems(text: str, environ: Mapping[str, str] | None = None) -> list[str]:
    """All problems as `line:column message`."""
    found = failure(text, environ).problems
    return [f"{mark.line}:{mark.column} {message}" if mark else message for mark, message in found]
