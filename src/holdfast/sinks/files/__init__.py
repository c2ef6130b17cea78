"""The sink `files`: files under one root, for readers who only list it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.registry import Plugin, Registry
from holdfast.sinks.files.config import FilesConfig

if TYPE_CHECKING:
    from holdfast.sinks.files.sink import FilesSink


def build(name: str, config: FilesConfig, formats: Registry) -> FilesSink:
    """The sink of that name; its format is looked up in the registry."""
    from holdfast.buckets.local import LocalBucket
    from holdfast.sinks.files.sink import FilesSink
    from holdfast.sinks.files.staging import FilesStager

    chosen = formats.get("formats", config.format.name).build(config.format.config)
    bucket = LocalBucket(config.root)
    return FilesSink(name, bucket, FilesStager(bucket, chosen, config.max_open_files, config.max_file_bytes))


PLUGIN = Plugin("files", FilesConfig, build, "Files under one root, each published once, for readers who only list it.")
