"""The source `objects`: files of a folder, or objects of buckets on S3. A partition is one object, or a prefix."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.registry import Plugin
from holdfast.sources.objects.config import ObjectsConfig

if TYPE_CHECKING:
    from holdfast.sources.objects.source import ObjectsSource


def build(config: ObjectsConfig) -> ObjectsSource:
    """The source with these settings. Reads nothing yet."""
    from holdfast.sources.objects.source import objects_source

    return objects_source(config)


PLUGIN = Plugin("objects", ObjectsConfig, build, "Files of a folder or objects of buckets on S3, in many formats.")
