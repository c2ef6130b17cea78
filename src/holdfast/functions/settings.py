"""Settings of a function: its handler, its workers, acks, errors and batches."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AliasChoices,
    AwareDatetime,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from holdfast.config import Count, Duration, Options, PositiveCount, Secret
from holdfast.config.plugins import PLAIN_ERROR
from holdfast.config.units import VALUE_ERROR
from holdfast.functions.nuclio_trigger import (
    ANNOTATIONS,
    StreamAddress,
    ack_mode,
    in_own_words,
    seek_word,
    stream_address,
)

_HANDLER = r"(?:[\w.-]+|[^:]*\.py):[A-Za-z_]\w*|[^:]*\.py"


_IGNORED = "Deprecated by Nuclio: accepted and ignored."


def _check_handler(text: str) -> str:
    if not re.fullmatch(_HANDLER, text):
        raise PydanticCustomError(VALUE_ERROR, "must be module:name, file.py or file.py:name")
    return text


HandlerName = Annotated[str, AfterValidator(_check_handler), WithJsonSchema({"type": "string", "pattern": _HANDLER})]
"""A function of the user's: `module:name`, or a file, in which it is called `handler` unless a name is given."""


class SeekTime(Options):
    """A time at which to begin."""

    time: AwareDatetime = Field(description="The first record at or after this time, such as 2026-01-01T00:00:00Z.")


class BatchSettings(Options):
    """How many records a batch handler is given at once."""

    size: PositiveCount = Field(description="A batch holds at most this many records.")
    timeout: Duration = Field(
        "1s",
        validate_default=True,
        description="A batch that is not full is handled once its first record has waited this long.",
    )


class ErrorSettings(Options):
    """What happens when a handler fails, that is, raises, exits, returns a status of 500 or more, or takes too long."""

    max_retries: Count | None = Field(
        3, description="How often a record is tried again; null: until it succeeds or is older than max_record_age."
    )
    backoff: Duration = Field(
        "100ms", validate_default=True, description="Pause before the first retry; it doubles with each one."
    )
    max_backoff: Duration = Field("30s", validate_default=True, description="The longest pause between two tries.")
    max_record_age: Annotated[Duration, Field(gt=0)] | None = Field(
        None,
        description="A record that has failed is not tried again when it is older than this; no limit unless given.",
    )
    after_retries: Literal["dead_letter", "stop"] = Field(
        "dead_letter",
        description="When no retries are left: the record becomes a dead letter and the shard continues, or the "
        "shard stops at this record.",
    )
    bisect: bool = Field(
        False,
        description="For batch handlers: a batch that fails is cut in halves until the records that fail are alone.",
    )


def _with_other_names(schema: dict[str, Any]) -> None:
    """Add Nuclio's names to the schema, for editors."""
    properties = schema["properties"]
    for names in FunctionConfig.names().values():
        properties |= dict.fromkeys(names[1:], properties[names[0]])
    properties["pollingIntervalMs"] = {"type": "integer", "minimum": 0, "description": "Nuclio's polling_interval."}
    properties["annotations"] = {
        "type": "object",
        "properties": {name: {"type": "string"} for name in ANNOTATIONS},
        "additionalProperties": False,
        "description": "Annotations of a function of Nuclio that stand for settings.",
    }


class FunctionConfig(Options):
    """A function. Fields of Nuclio's stream trigger are understood under their own names, too."""

    model_config = ConfigDict(json_schema_extra=_with_other_names)

    handler: HandlerName = Field(description="The handler: module:name, file.py or file.py:name.")
    init: HandlerName | None = Field(
        None, description="Called once per worker with the context; init_context of the handler's module unless given."
    )
    environment: dict[str, str | Secret] = Field(
        default_factory=dict, description="Environment variables of the workers."
    )
    workers: PositiveCount = Field(
        1, validation_alias=AliasChoices("workers", "maxWorkers", "numWorkers"), description="Workers per node."
    )
    worker_allocation: Literal["pool", "static"] = Field(
        "pool",
        validation_alias=AliasChoices("worker_allocation", "workerAllocationMode"),
        description="Whether any free worker takes a shard's next records (pool), or always the same one (static).",
    )
    read_batch_size: PositiveCount = Field(
        64,
        validation_alias=AliasChoices("read_batch_size", "readBatchSize"),
        description="How many records are read from the stream at once.",
    )
    polling_interval: Duration = Field(
        "0s", validate_default=True, description="Pause between two reads; 0s: read as soon as records are there."
    )
    seek_to: Annotated[Literal["earliest", "latest"] | SeekTime, BeforeValidator(seek_word)] = Field(
        "latest",
        validation_alias=AliasChoices("seek_to", "seekTo"),
        description="Where to begin in a shard that has no position yet: earliest, latest or {time: …}.",
    )
    ack: Annotated[Literal["disable", "enable", "explicit_only"], BeforeValidator(ack_mode)] = Field(
        "disable",
        validation_alias=AliasChoices("ack", "explicitAckMode"),
        description="Explicit acks: disable (a record is acknowledged when its handler returns), enable (the same, "
        "unless the handler returns a response that says otherwise), explicit_only.",
    )
    max_unacked: PositiveCount = Field(
        4096, description="A shard pauses while this many records wait behind its first unacknowledged one."
    )
    commit_interval: Annotated[Duration, Field(gt=0)] = Field(
        "1s",
        validate_default=True,
        validation_alias=AliasChoices("commit_interval", "sequenceNumberCommitInterval"),
        description="How often positions are committed.",
    )
    session_timeout: Annotated[Duration, Field(ge=1)] = Field(
        "10s",
        validate_default=True,
        validation_alias=AliasChoices("session_timeout", "sessionTimeout"),
        description="Shards of a node that has not renewed its session for this long go to other nodes.",
    )
    heartbeat_interval: Annotated[Duration, Field(gt=0)] = Field(
        "3s",
        validate_default=True,
        validation_alias=AliasChoices("heartbeat_interval", "heartbeatInterval"),
        description="Time between two heartbeats; at most half of session_timeout.",
    )
    on_error: ErrorSettings = Field(default_factory=ErrorSettings, description="What happens when a handler fails.")
    batch: BatchSettings | None = Field(None, description="For handlers that take a list of events.")
    timeout: Annotated[Duration, Field(gt=0)] | None = Field(
        None, description="How long one call of the handler may take; its worker is then ended. No limit unless given."
    )
    concurrency: PositiveCount = Field(
        1, description="How many calls of an async handler run at once in a worker; never two of one shard."
    )
    url: Annotated[StreamAddress, BeforeValidator(stream_address), WithJsonSchema({"type": "string"})] | None = Field(
        None,
        description="Nuclio's http://host:port/container/stream path@consumer group. The source must read this stream, "
        "as container.path or path; a source `kafka` that names no group uses this one.",
    )
    password: Secret | None = Field(
        None, description="Nuclio's access key for the stream. Not used: the source has the credentials of its stream."
    )
    worker_availability_timeout: Any = Field(
        None, validation_alias="workerAvailabilityTimeoutMilliseconds", description=_IGNORED
    )
    partitions: Any = Field(None, description=_IGNORED)
    username: Any = Field(None, description=_IGNORED)
    worker_allocator: Any = Field(None, validation_alias="workerAllocatorName", description=_IGNORED)

    @classmethod
    def names(cls) -> dict[str, list[str]]:
        """By field, all names that it may have in a file, if there are several."""
        aliases = {name: field.validation_alias for name, field in cls.model_fields.items()}
        return {
            name: [str(choice) for choice in alias.choices]
            for name, alias in aliases.items()
            if isinstance(alias, AliasChoices)
        }

    def warnings(self) -> list[str]:
        """What was given and has no effect, in words."""
        fields = ("worker_availability_timeout", "partitions", "username", "worker_allocator")
        given = [name for name in fields if getattr(self, name) is not None]
        names = [str(type(self).model_fields[name].validation_alias or name) for name in given]
        ignored = [f"{name} is ignored: Nuclio has deprecated it" for name in names]
        unused = "password is not used: the source has the credentials of its stream"
        return ignored if self.password is None else [*ignored, unused]

    @model_validator(mode="before")
    @classmethod
    def _trigger(cls, given: Any) -> Any:
        settings = in_own_words(given)
        for names in cls.names().values():
            twice = [name for name in names if isinstance(settings, dict) and name in settings]
            if len(twice) > 1:
                raise PydanticCustomError(PLAIN_ERROR, f"{' and '.join(twice)} are names of one setting; give one")
        return settings

    @model_validator(mode="after")
    def _consistent(self) -> FunctionConfig:
        if self.ack != "disable" and self.worker_allocation != "static":
            raise PydanticCustomError(
                PLAIN_ERROR, f"ack: {self.ack} needs worker_allocation: static; a pool would ack on any worker"
            )
        if self.heartbeat_interval > self.session_timeout / 2:
            raise PydanticCustomError(PLAIN_ERROR, "heartbeat_interval may be at most half of session_timeout")
        if self.on_error.bisect and self.batch is None:
            raise PydanticCustomError(PLAIN_ERROR, "on_error.bisect is for batch handlers; give batch, too")
        return self
