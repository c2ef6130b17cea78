"""The configuration file as frozen models. The settings of a plugin are in the plugin's own model."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    PrivateAttr,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)
from pydantic_core import PydanticCustomError

from holdfast.config.alerts import AlertSettings
from holdfast.config.options import Options
from holdfast.config.plugins import Name, NamedSink, PluginUse, Uses
from holdfast.config.secrets import Resolved, Secret
from holdfast.config.settings_file import SettingProblem, SettingsFile, error_without_file
from holdfast.config.sinks import (
    Condition,
    RouteName,
    functions_fit,
    give_names,
    letters_are_not_read,
    names_differ,
    roots_are_not_read,
    roots_differ,
    routes_exist,
    tables_fit,
)
from holdfast.config.units import VALUE_ERROR, ByteSize, Count, Duration, Port, PositiveCount, format_duration
from holdfast.errors import ConfigError


def _check_identity(text: str) -> str:
    if not re.fullmatch(r"[^$\s\x00-\x1f\x7f][^\x00-\x1f\x7f]{0,127}", text):
        raise PydanticCustomError(VALUE_ERROR, "must have 1 to 128 visible characters and not begin with '$'")
    return text


Identity = Annotated[str, AfterValidator(_check_identity)]


class Coordination(Options):
    """How nodes share work."""

    partition_prefix: Identity | None = Field(
        None,
        description="Prefix of every pipeline's name in the store, so that several clusters can share the store.",
    )
    ownership_timeout: Annotated[Duration, Field(gt=0)] = Field(
        "10m",
        validate_default=True,
        description="How long a lease of the API for source authors stays valid after state was last saved.",
    )
    store: Annotated[PluginUse, Uses("stores")] = Field(
        {"in_memory": None},
        validate_default=True,
        description="The store of leases: its name, and below it its settings.",
    )


class NodeSettings(Options):
    """This process as a member of the cluster."""

    name: Identity = Field(
        default_factory=lambda: socket.gethostname() or "localhost",
        description="Stable name of this node; the host name unless given.",
    )
    session_timeout: Annotated[Duration, Field(ge=1)] = Field(
        "30s",
        validate_default=True,
        description="A node that has not renewed its session for this long counts as dead, and other nodes take over "
        "its leases; 1s or more.",
    )
    heartbeat_interval: Annotated[Duration, Field(gt=0)] = Field(
        default_factory=lambda settings: settings["session_timeout"] / 3,
        description="Time between two heartbeats: at most half of session_timeout; a third of it unless given.",
    )
    step_limit: Annotated[Duration, Field(gt=0)] = Field(
        "1m",
        validate_default=True,
        description="A node counts as hanging and sends no heartbeat while a step (such as commit, publish or plan) "
        "takes longer than this. A Spark job is not a step.",
    )
    metrics_port: Port | None = Field(
        None, description="Port for Prometheus metrics; they are not served unless given."
    )
    metrics_address: str = Field(
        "127.0.0.1", min_length=1, description="Address on which metrics are served; only this host unless given."
    )
    log: Literal["text", "json"] = Field("text", description="Log lines for people (text) or for machines (json).")

    @field_validator("heartbeat_interval")
    @classmethod
    def _at_most_half_of_session(cls, interval: float, info: ValidationInfo) -> float:
        session = info.data.get("session_timeout")
        if session is not None and interval > session / 2:
            limit = format_duration(session / 2)
            raise PydanticCustomError(VALUE_ERROR, f"is too long; at most half of session_timeout, {limit}, is safe")
        return interval


def _conf_value(value: Any) -> str | Secret:
    if isinstance(value, Resolved):
        return Secret(str.__str__(value))
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    if isinstance(value, Secret):
        return value
    raise PydanticCustomError(VALUE_ERROR, "is not a value for Spark; write text, a number, true or false")


ConfValue = Annotated[
    str | Secret,
    PlainValidator(_conf_value),
    WithJsonSchema({"type": ["string", "number", "boolean"]}),
]


class SparkSettings(Options):
    """The Spark session of this node."""

    master: str | None = Field(
        None,
        min_length=1,
        description="Spark's master URL, such as spark://host:7077 or yarn. Unless given, local with a core for each "
        "worker of a function, and two cores for the pipelines without functions.",
    )
    conf: dict[str, ConfValue] = Field(
        default_factory=dict, description="Spark settings; a value that comes from a reference is kept secret."
    )
    py_files: tuple[str, ...] = Field(
        (),
        description="Your modules that executors need: paths of .py files, package folders or .zip files. "
        "The node itself must be able to import them too.",
    )

    worker_memory: Annotated[ByteSize, Field(ge=256 << 20)] | None = Field(
        None,
        description="Memory that each Python worker may take; a batch that needs more fails with a MemoryError. "
        "Default: the memory of the machine or container, less the JVM's heap, for each core; at least 2GiB. "
        "On a cluster `spark.executor.pyspark.memory` decides instead.",
    )

    def plain_conf(self) -> dict[str, str]:
        """Return Spark's settings with every secret revealed, to build the session from."""
        return {key: value.reveal() if isinstance(value, Secret) else value for key, value in self.conf.items()}


class BatchLimits(Options):
    """Limits of one batch."""

    max_bytes: Annotated[ByteSize, Field(gt=0)] = Field(
        "256MB", validate_default=True, description="A batch ends when it holds this many bytes."
    )
    max_records: PositiveCount | None = Field(
        None, description="A batch ends when it holds this many records; no limit unless given."
    )
    timeout: Annotated[Duration, Field(gt=0)] = Field(
        "1h",
        validate_default=True,
        description=(
            "A batch that runs longer is cancelled and counts as a failed attempt. A batch that is sent while "
            "another Spark job of the pipeline runs has twice the time."
        ),
    )


class RoundLimits(Options):
    """Limits of one round, which is one Spark job."""

    max_batches: PositiveCount = Field(
        100,
        description=(
            "Largest number of batches in one Spark job. For short-lived partitions, such as objects, a node holds "
            "this many at a time, in two jobs, and up to twenty times as many while they are tiny."
        ),
    )


class RetryLimits(Options):
    """What happens to a partition that fails."""

    max_retries: Count = Field(3, description="Failed attempts at one position before the partition is FAILED.")
    backoff: Duration = Field(
        "5s",
        validate_default=True,
        description="Wait before the first retry; doubled before each further retry.",
    )
    max_backoff: Duration = Field(
        "5m", validate_default=True, description="Longest wait between two retries, at least backoff."
    )
    max_takeovers: Count = Field(
        10,
        description="Number of nodes that may die while they process a batch at one position before the partition "
        "is FAILED.",
    )

    @field_validator("max_backoff")
    @classmethod
    def _at_least_backoff(cls, longest: float, info: ValidationInfo) -> float:
        first = info.data.get("backoff", 0.0)
        if longest < first:
            raise PydanticCustomError(VALUE_ERROR, f"is less than backoff, which is {format_duration(first)}")
        return longest


class LetterTolerance(Options):
    """How many records of a partition may become dead letters before it is halted."""

    EXAMPLE: ClassVar[str] = "{share: 0.1}"
    share: Annotated[float, Field(ge=0, le=1)] = Field(
        0.1,
        description="A partition halts instead of committing a batch if more than this fraction of the records in "
        "its letter window would then be dead letters; 0: at the first dead letter, 1: never.",
    )
    records: PositiveCount = Field(
        1000,
        description="A letter window ends with the commit that brings it to this many records. Until then, as many "
        "dead letters are allowed as in a full window.",
    )


class DeadLetterSettings(Options):
    """What becomes of records that cannot be processed."""

    tolerance: LetterTolerance = Field(
        default_factory=LetterTolerance, description="How many dead letters a partition may have before it is halted."
    )


class RunSettings(Options):
    """Runs of the pipeline, such as a reindex or a backfill: their locks, and how many partitions they may have."""

    lock_timeout: Annotated[Duration, Field(ge=1)] = Field(
        "5m",
        validate_default=True,
        description="A lock of a run that was not renewed for this long may be taken over. A lock whose node is "
        "dead is free as soon as that is noticed, after session_timeout.",
    )
    lock_refresh: Annotated[Duration, Field(gt=0)] = Field(
        default_factory=lambda settings: settings["lock_timeout"] / 5,
        description="How often the node that drives a run renews its locks: at most half of lock_timeout; a fifth of "
        "it unless given.",
    )
    max_partitions_per_group: PositiveCount = Field(
        10_000,
        description="Maximum number of partitions of one group, such as an entity; beyond it, partitions become "
        "larger instead.",
    )
    max_partitions: PositiveCount = Field(50_000, description="Maximum number of partitions of a run.")

    @field_validator("lock_refresh")
    @classmethod
    def _at_most_half_of_timeout(cls, refresh: float, info: ValidationInfo) -> float:
        timeout = info.data.get("lock_timeout")
        if timeout is not None and refresh > timeout / 2:
            limit = format_duration(timeout / 2)
            raise PydanticCustomError(VALUE_ERROR, f"is too long; at most half of lock_timeout, {limit}, is safe")
        return refresh


class PipelineSettings(Options):
    """A source, processors, and one or more sinks."""

    source: Annotated[PluginUse, Uses("sources")] = Field(
        description="Where records come from: the source's name, and below it the source's settings."
    )
    processors: tuple[Annotated[PluginUse, Uses("processors")], ...] = Field(
        (), description="Steps that records go through, in order: each a processor's name with its settings."
    )
    routes: dict[RouteName, Condition] = Field(
        default_factory=dict,
        json_schema_extra={"additionalProperties": False},
        description="Conditions in Spark SQL by name, over the rows that the last processor returns. A sink with "
        "`routes` gets the rows for which one of them is true; `_default` stands for the rows that match none.",
    )
    sinks: Annotated[
        tuple[Annotated[NamedSink, Uses("sinks", named=True)], ...],
        BeforeValidator(give_names),
        AfterValidator(names_differ),
    ] = Field(
        min_length=1,
        description="Where records go: each a sink's name with its settings, optionally with a `name` and `routes`.",
    )
    batch: BatchLimits = Field(default_factory=BatchLimits, description="Limits of one batch.")
    round: RoundLimits = Field(default_factory=RoundLimits, description="Limits of one Spark job.")
    retries: RetryLimits = Field(default_factory=RetryLimits, description="What happens when a batch fails.")
    dead_letters: DeadLetterSettings = Field(
        default_factory=DeadLetterSettings, description="What becomes of records that cannot be processed."
    )
    runs: RunSettings = Field(
        default_factory=RunSettings, description="Locks of the pipeline's runs, and the number of their partitions."
    )
    generation: PositiveCount = Field(
        1, description="Version of the parsing; raise it when the same records would produce different output."
    )
    generation_switch: Literal["automatic", "manual"] = Field(
        "automatic",
        description="Whether a node with a later generation makes it the current one when it starts, or waits for "
        "`holdfast generation switch`.",
    )
    replicas: PositiveCount | None = Field(
        None,
        description="Number of nodes to share the partitions among; further nodes are spare until one of them ends. "
        "Unless given, all nodes share them. For sources whose partitions live long, such as those of a topic.",
    )
    closed_last: bool = Field(
        False, description="Take new partitions before closed ones whose time to reopen has come."
    )

    @field_validator("sinks")
    @classmethod
    def _routes_and_topics_fit(cls, sinks: tuple[NamedSink, ...], info: ValidationInfo) -> tuple[NamedSink, ...]:
        if "routes" in info.data:
            routes_exist(sinks, info.data["routes"])
        if "source" in info.data:
            letters_are_not_read(sinks, info.data["source"].config)
            roots_are_not_read(sinks, info.data["source"].config)
            processed = bool(info.data.get("processors")) or any(sink.routes is not None for sink in sinks)
            functions_fit(sinks, info.data["source"], processed=processed)
            tables_fit(sinks, info.data["source"])
        return sinks


class Settings(Options):
    """The whole file."""

    coordination: Coordination = Field(
        default_factory=dict,
        validate_default=True,
        validation_alias="source_coordination",
        description="How nodes share work.",
    )
    node: NodeSettings = Field(default_factory=NodeSettings, description="This process as a member of the cluster.")
    spark: SparkSettings = Field(default_factory=SparkSettings, description="The Spark session of this node.")
    alerts: AlertSettings = Field(
        default_factory=AlertSettings, description="What raises an alert, and where it goes besides log and metrics."
    )
    pipelines: Annotated[dict[Name, PipelineSettings], AfterValidator(roots_differ)] = Field(
        default_factory=dict,
        json_schema_extra={"additionalProperties": False},
        description="Pipelines by name; a name has letters, digits, '_' and '-'.",
    )
    allow_plaintext_secrets: bool = Field(
        False, description="Allow secrets in this file instead of references to them."
    )

    _file: SettingsFile | None = PrivateAttr(None)

    def read_from(self, file: SettingsFile) -> Settings:
        """Return these settings with the file that they were read from."""
        copy = self.model_copy()
        copy._file = file  # noqa: SLF001 - a copy of this object
        return copy

    def error(self, problems: Sequence[SettingProblem]) -> ConfigError:
        """Return what is wrong with settings as one error, with line and column if they come from a file."""
        return error_without_file(problems) if self._file is None else self._file.error(problems)

    @property
    def folder(self) -> Path | None:
        """The folder of the file, in which modules that it names are found, too; None for settings from code."""
        return None if self._file is None else Path(self._file.name).resolve().parent

    @property
    def file_digest(self) -> str | None:
        """A digest that identifies the text of the file; None for settings from code."""
        return None if self._file is None else self._file.digest

    def path_of(self, pipeline: str, part: tuple[str | int, ...]) -> tuple[str | int, ...]:
        """Return the path of a part of a pipeline, such as `("sinks", 0)`, with the name of its plugin.

        An empty part is the whole pipeline.
        """
        chosen, plugin = self.pipelines[pipeline], tuple[str, ...]()
        if part[:1] == ("source",):
            plugin = (chosen.source.name,)
        elif part[:1] == ("processors",):
            plugin = (chosen.processors[int(part[1])].name,)
        elif part[:1] == ("sinks",):
            plugin = (chosen.sinks[int(part[1])].use.name,)
        return ("pipelines", pipeline, *part, *plugin)

    def identifier(self, pipeline: str) -> str:
        """Return the pipeline's name in the store: `prefix|pipeline`, or the bare name without a prefix."""
        prefix = self.coordination.partition_prefix
        return f"{prefix}|{pipeline}" if prefix else pipeline
