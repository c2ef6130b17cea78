"""Settings of the source `archive`."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from holdfast.buckets.root import Root, S3Options, check_together
from holdfast.config import Count, Options
from holdfast.config.plugins import PLAIN_ERROR
from holdfast.formats.choice import FormatUse, TopicFormat


class ArchiveConfig(Options):
    """Files that a pipeline from Kafka has written, with the same settings as its sink."""

    root: Root = Field(description="Root of the files: a folder, or `s3://bucket/prefix`.")
    s3: S3Options | None = Field(None, description="How to reach S3, for a root there.")
    format: FormatUse = Field(
        {"raw": None},
        validate_default=True,
        description="Format of the files: a format's name, and if wanted below it the format's settings.",
    )
    topics: tuple[TopicFormat, ...] = Field(
        (), description="Topics whose files have another format; the first that matches counts."
    )
    only: tuple[str, ...] = Field((), description="Topics to read; all that are there unless given.")
    start: Count = Field(0, description="First offset to read of every topic partition.")
    end: Count | None = Field(None, description="Offset before which reading ends; all that is there unless given.")

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        check_together(self.root, self.s3)
        if self.end is not None and self.end < self.start:
            raise PydanticCustomError(PLAIN_ERROR, "end is before start")
        return self
