"""The source `archive`: files that holdfast wrote from Kafka, as the records that they were made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.registry import Plugin, Registry
from holdfast.sources.archive.config import ArchiveConfig

if TYPE_CHECKING:
    from holdfast.sources.archive.source import ArchiveSource


def build(config: ArchiveConfig) -> ArchiveSource:
    """The source with these settings; connects to nothing yet."""
    from holdfast.buckets.root import bucket_of
    from holdfast.formats.choice import chosen_formats
    from holdfast.sources.archive.source import ArchiveSource

    formats = chosen_formats(config.format, config.topics, Registry.installed())
    bucket = bucket_of(config.root, config.s3)
    return ArchiveSource(bucket, formats, topics=config.only, start=config.start, end=config.end)


PLUGIN = Plugin("archive", ArchiveConfig, build, "Files that holdfast wrote from Kafka, read back as records.")
