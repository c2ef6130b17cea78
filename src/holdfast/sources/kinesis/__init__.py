"""The source `kinesis`: a data stream of Amazon Kinesis, each shard a lease, for functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.registry import Plugin, needing
from holdfast.sources.kinesis.config import KinesisConfig

if TYPE_CHECKING:
    from holdfast.sources.kinesis.source import KinesisSource


def build(config: KinesisConfig) -> KinesisSource:
    """Return the source with these settings; connects to nothing yet."""
    with needing("source kinesis", "boto3", "kinesis"):
        import boto3  # noqa: F401

    from holdfast.sources.kinesis.source import KinesisSource

    return KinesisSource(config)


PLUGIN = Plugin("kinesis", KinesisConfig, build, "A data stream of Amazon Kinesis, read by functions.")
