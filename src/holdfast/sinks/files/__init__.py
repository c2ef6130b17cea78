"""The sink `files`: files under one root, for readers who only list it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.registry import Plugin, Registry
from holdfast.sinks.files.config import FilesConfig

if TYPE_CHECKING:
    from holdfast.deadletters.letter_topic import LetterTopic
    from holdfast.sinks.files.sink import FilesSink


def build(name: str, config: FilesConfig, formats: Registry) -> FilesSink:
    """The sink of that name; its format is looked up in the registry."""
    from holdfast.buckets.root import bucket_of
    from holdfast.flow.names import Layout
    from holdfast.formats.choice import chosen_formats
    from holdfast.sinks.files.finalizing import FilesFinalizing
    from holdfast.sinks.files.sink import FilesSink
    from holdfast.sinks.files.staging import FilesStager

    bucket, layout = bucket_of(config.root, config.s3), Layout(config.layout)
    stager = FilesStager(
        bucket,
        chosen_formats(config.format, config.topics, formats),
        max_open_files=config.max_open_files,
        max_file_bytes=config.max_file_bytes,
        layout=layout,
        max_files=config.max_files,
    )
    finalize = config.finalize
    finalizing = None if finalize is None else FilesFinalizing(name, bucket, config.root, layout, finalize)
    topic = topic_of(name, config)
    return FilesSink(name, bucket, stager, finalizing, topic, max_ahead=config.max_ahead)


def topic_of(name: str, config: FilesConfig) -> LetterTopic | None:
    """The topic to which this sink sends copies of its dead letters; None if it sends none."""
    if config.dead_letters.kafka is None:
        return None
    from holdfast.buckets.root import root_identity
    from holdfast.deadletters.letter_topic import letter_topic

    return letter_topic(config.dead_letters.kafka, (root_identity(config.root, config.s3), name))


PLUGIN = Plugin("files", FilesConfig, build, "Files under one root, each published once, for readers who only list it.")
