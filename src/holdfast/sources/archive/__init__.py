"""The source `archive`: files that holdfast wrote from Kafka, read back as records."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from holdfast.buckets.root import Root, S3Options, check_together
from holdfast.config import Count, Options
from holdfast.config.plugins import PLAIN_ERROR
from holdfast.formats.choice import FormatUse, TopicFormat
from holdfast.registry import Plugin, Registry

if TYPE_CHECKING:
    from holdfast.sources.archive.source import ArchiveSource


class ArchiveConfig(Options):
    """Files that a pipeline from Kafka has written; root, S3 and formats as in its sink."""

    has_shards: ClassVar[bool] = False
    root: Root = Field(description="Root of the files: a folder, or `s3://bucket/prefix`.")
    s3: S3Options | None = Field(None, description="How to reach S3, for a root there.")
    format: FormatUse = Field(
        {"raw": None},
        validate_default=True,
        description="Format of the files: a format's name, optionally with the format's settings below it.",
    )
    topics: tuple[TopicFormat, ...] = Field(
        (), description="Topics whose files have another format; the first match counts."
    )
    only: tuple[str, ...] = Field((), description="Topics to read; all unless given.")
    start: Count = Field(0, description="First offset to read of every topic partition.")
    end: Count | None = Field(
        None, description="Offset before which reading ends; the end of the archive unless given."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_together(self.root, self.s3)
        if self.end is not None and self.end < self.start:
            raise PydanticCustomError(PLAIN_ERROR, "end is before start")
        return self


def build(config: ArchiveConfig) -> ArchiveSource:
    """Return the source with these settings; connects to nothing yet."""
    from holdfast.buckets.root import bucket_of
    from holdfast.formats.choice import chosen_formats
    from holdfast.sources.archive.source import ArchiveSource

    formats = chosen_formats(config.format, config.topics, Registry.installed())
    bucket = bucket_of(config.root, config.s3)
    return ArchiveSource(bucket, formats, topics=config.only, start=config.start, end=config.end)


PLUGIN = Plugin("archive", ArchiveConfig, build, "Files that holdfast wrote from Kafka, read back as records.")
