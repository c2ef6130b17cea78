"""Settings of the sink `files`: files, names, and when output folders are final."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from holdfast.buckets.root import Root, S3Options, check_together, root_identity
from holdfast.config import ByteSize, Duration, Options, PositiveCount
from holdfast.config.kafka_client import LetterTopicOptions
from holdfast.config.plugins import PLAIN_ERROR
from holdfast.config.units import VALUE_ERROR
from holdfast.flow.names import DEFAULT_LAYOUT, OURS, Layout, check_layout
from holdfast.formats.choice import FormatUse, TopicFormat
from holdfast.sinks.files.periods import USUAL, check_template

_FUNCTION = r"[A-Za-z_][\w.]*:[A-Za-z_]\w*"


def _zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise PydanticCustomError(
            VALUE_ERROR, "is not a time zone; write UTC or a name such as Europe/Berlin"
        ) from None
    return name


def _template(text: str) -> str:
    try:
        check_template(text)
    except ValueError as wrong:
        raise PydanticCustomError(VALUE_ERROR, str(wrong)) from None
    return text


def _function(text: str) -> str:
    if not re.fullmatch(_FUNCTION, text):
        raise PydanticCustomError(VALUE_ERROR, "must be module:name, as in my_package.my_module:done")
    return text


def _late_folder(text: str) -> str:
    if not re.fullmatch(r"_[A-Za-z0-9][A-Za-z0-9_-]*", text) or text == OURS:
        reason = "must be a single name that begins with '_', so that it cannot be a topic; _holdfast is taken"
        raise PydanticCustomError(VALUE_ERROR, reason)
    return text


class HiveTable(Options):
    """The table of which a final output folder becomes a partition."""

    table: str = Field(
        min_length=1,
        description="Name of the table, such as `logs.{topic}`; in the topic, each character other than a letter or "
        "digit becomes `_`.",
    )
    columns: tuple[str, ...] = Field(
        (),
        description="Partition columns, for output folders in plain style; in Hive style the folder names contain "
        "them.",
    )
    location: str | None = Field(
        None, description="The root as Hive addresses it, such as `s3a://lake/daily`; `root` unless given."
    )


class Hook(Options):
    """A command or a function that is called when an output folder is final. It may be called twice."""

    command: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        description="Program and arguments, run without a shell; {topic}, {place}, {location} and {statement} in "
        "arguments are filled in. Its standard input is the statement, or without `hive` a JSON object.",
    )
    python: Annotated[str, AfterValidator(_function)] | None = Field(
        None,
        description="Your function as module:name. It is called with the statement, or, without `hive`, with a dict.",
    )
    hive: HiveTable | None = Field(
        None, description="Make an `ALTER TABLE … ADD IF NOT EXISTS PARTITION` statement for this table."
    )
    on_late: bool = Field(
        True, description="Whether the hook is called again when late records were added to the output folder."
    )
    timeout: Annotated[Duration, Field(gt=0)] = Field(
        "5m",
        validate_default=True,
        description="How long a command may run. A function is not interrupted, but should end within this time.",
    )

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if (self.command is None) == (self.python is None):
            raise ValueError("needs exactly one of command, python")
        return self


class FinalizeConfig(Options):
    """When output folders are final, which hooks are called, and what happens to records that come later."""

    lateness: Duration = Field(
        "1h",
        validate_default=True,
        description="How far all partitions must be past the end of an output folder before it is final.",
    )
    idle_after: Annotated[Duration, Field(gt=0)] = Field(
        "1h",
        validate_default=True,
        description="A partition that has had nothing to read for this long does not keep output folders open.",
    )
    interval: Annotated[Duration, Field(gt=0)] = Field(
        "1m", validate_default=True, description="How often holdfast checks which output folders are final."
    )
    success: bool = Field(True, description="Whether an object `_SUCCESS` is created in a final output folder.")
    hooks: tuple[Hook, ...] = Field((), description="Commands and functions to call, in this order.")
    template: Annotated[str, AfterValidator(_template)] | None = Field(
        None,
        description="How names of output folders contain the time, such as `y=%Y/m=%m`; by default as `parse` writes "
        "times.",
    )
    zone: Annotated[str, AfterValidator(_zone)] = Field(
        "UTC", description="Time zone of the times in these names, as in `parse`."
    )
    late: Literal["same", "dead_letter", "place"] = Field(
        "same",
        description="Where records go whose output folder is final already: to that folder nevertheless (same), to "
        "the "
        "dead letters (dead_letter), or below `late_place` (place).",
    )
    late_place: Annotated[str, AfterValidator(_late_folder)] = Field(
        "_late",
        description="With `late: place`, the folder below the root for late records, by topic and output folder.",
    )

    def templates(self) -> tuple[str, ...]:
        """Templates of the times in the names of output folders."""
        return USUAL if self.template is None else (self.template,)

    @model_validator(mode="before")
    @classmethod
    def _max_ahead_is_the_sink_s(cls, given: Any) -> Any:
        if isinstance(given, dict) and "max_ahead" in given:
            raise PydanticCustomError(PLAIN_ERROR, "max_ahead is a setting of the sink: write it beside finalize")
        return given


def _checked_layout(text: str) -> str:
    try:
        return check_layout(text)
    except (ValueError, IndexError, KeyError) as error:
        raise PydanticCustomError(VALUE_ERROR, str(error)) from None


class FileLetterOptions(Options):
    """Where dead letters go besides the files below the root."""

    kafka: LetterTopicOptions | None = Field(None, description="A Kafka topic that gets a copy of each dead letter.")


class FilesConfig(Options):
    """Where files go, their format and their names."""

    root: Root = Field(
        description="Folder for the files, or `s3://bucket/prefix`. It belongs to this sink of this pipeline alone."
    )
    s3: S3Options | None = Field(None, description="How to reach S3, for a root there.")
    format: FormatUse = Field(
        {"parquet": None},
        validate_default=True,
        description="Format of the files: the name of a format, and below it the format's settings if needed.",
    )
    topics: tuple[TopicFormat, ...] = Field(
        (), description="Topics whose files have another format; the first match counts."
    )
    layout: Annotated[str, AfterValidator(_checked_layout)] = Field(
        DEFAULT_LAYOUT,
        description=(
            "Names of files below the root: a template of {topic}, {place} (the output folder), {generation}, "
            "{partition}, {offset} and {ext}. The default is also the preset `secor`: Secor names its files this way."
        ),
    )
    max_files: PositiveCount = Field(
        1000,
        description="Files of one commit, without those of dead letters. A batch that would become more files is cut "
        "short between two records. A batch that cannot be cut, such as one of objects, is limited only by the size of "
        "a row in the store.",
    )
    max_open_files: PositiveCount = Field(
        64, description="Files that one task has open at a time. Beyond that, the least recently used file is closed."
    )
    max_file_bytes: Annotated[ByteSize, Field(gt=0)] | None = Field(
        None, description="Size at which a file is closed and another one begun; no limit unless given."
    )
    max_ahead: Duration | None = Field(
        "1d",
        validate_default=True,
        description="How far in the future, by the store's clock, an output folder may begin whose name contains a "
        "time, as `parse` or `template` of `finalize` writes it. Records of folders that begin later become dead "
        "letters, because such a time is a mistake of a producer; null: no limit.",
    )
    finalize: FinalizeConfig | None = Field(
        None, description="Declare output folders final when all partitions have passed them; not done unless given."
    )
    dead_letters: FileLetterOptions = Field(
        default_factory=FileLetterOptions, description="Where dead letters go besides the files below the root."
    )

    def owned_roots(self) -> dict[tuple[str, ...], str]:
        return {("root",): root_identity(self.root, self.s3)}

    @model_validator(mode="after")
    def _final_folders_are_in_the_layout(self) -> Self:
        if self.finalize is not None:
            Layout(self.layout).folder("topic", "place")
        return self

    @model_validator(mode="after")
    def _s3_is_for_roots_on_s3(self) -> Self:
        check_together(self.root, self.s3)
        return self
