"""The source `objects`: files of a folder, or objects of buckets on S3. A partition is one object, or a prefix."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.registry import Plugin
from holdfast.sources.objects.config import ObjectsConfig

if TYPE_CHECKING:
    from holdfast.sources.objects.source import ObjectsSource


def build(config: ObjectsConfig) -> ObjectsSource:
    """The source for these settings: of a folder, of buckets or of prefixes. Reads nothing yet."""
    if config.folder is not None:
        from holdfast.sources.objects.folder import FolderSource

        return FolderSource(config, config.folder)
    if config.partition_by == "prefix":
        from holdfast.sources.objects.prefix import PrefixSource

        return PrefixSource(config)
    from holdfast.sources.objects.bucket import BucketSource, CleanedBucketSource

    return CleanedBucketSource(config) if config.deletes or config.tags else BucketSource(config)


PLUGIN = Plugin("objects", ObjectsConfig, build, "Files of a folder or objects of buckets on S3, in many formats.")
