"""Settings of the source `objects`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from holdfast.buckets.root import S3Reach
from holdfast.config import ByteSize, PositiveCount
from holdfast.config.plugins import PLAIN_ERROR
from holdfast.sources.objects.scan_config import (
    AfterSuccess,
    BucketSettings,
    Interval,
    Patterns,
    Scan,
    Schedule,
    TagObject,
    Times,
)

CodecName = Literal["jsonl", "newline", "text", "json", "csv", "parquet", "avro", "sequencefile"]
LINE_CODECS = frozenset({"jsonl", "newline", "text"})
BLOCK_CODECS = frozenset({"parquet", "avro", "sequencefile"})
"""Files of blocks, which can be read apart however they are compressed."""
PositiveSize = Annotated[ByteSize, Field(gt=0)]
_ONLY_FOR_BUCKETS = ("s3", "reread", "after_success", "delete_s3_objects_on_read", "partition_by", "prefix_depth")


class ObjectsConfig(Times):
    """Which objects are read, and how."""

    folder: Path | None = Field(None, description="Folder with the files; read with all folders below it.")
    buckets: tuple[BucketSettings, ...] = Field((), description="Buckets on S3, in place of a folder.")
    s3: S3Reach | None = Field(None, description="How to reach S3, for buckets.")
    include: Patterns = Field(
        ("**/*",),
        description="Objects to read, as patterns of the path below the folder or of the key: * within a name, ** "
        "across.",
    )
    exclude: Patterns = Field((), description="Objects to leave out, as patterns of the path or key.")
    scan: Scan = Field(
        "once",
        description="Look for objects once; again and again (follow) until the node is stopped; or at intervals "
        "(`interval`, and if wanted `count`).",
    )
    interval: Interval = Field("30s", validate_default=True, description="Time between two looks when scan is follow.")
    order: Literal["name", "oldest", "newest"] = Field(
        "name",
        description="In which order objects of one scan are taken: as they are listed, or by when they were modified. "
        "By time, nothing is taken before all of it is listed.",
    )
    reread: bool = Field(
        False, description="Read an object of a bucket again when it was overwritten, which its ETag tells."
    )
    after_success: AfterSuccess = Field(
        "keep",
        description="What becomes of an object of a bucket when all sinks have all its records: `keep`, `delete`, or "
        "`tag` with tags. One with dead letters is kept.",
    )
    delete_s3_objects_on_read: bool = Field(False, description="Another name for `after_success: delete`.")
    partition_by: Literal["object", "prefix"] = Field(
        "object",
        description="What a partition is: one object; or all objects below a prefix, which one node at a time reads "
        "and deletes, and which is closed until the next scan.",
    )
    prefix_depth: PositiveCount = Field(
        1, description="How many folders deep a prefix is, below include_prefix, when partition_by is prefix."
    )
    # --- how they are read
    codec: CodecName = Field(
        "jsonl",
        description="What objects are: lines with a JSON object each (jsonl), any lines (newline, or text), one JSON "
        "document with a list of objects (json), csv with a header line, parquet, avro, or sequencefile.",
    )
    schema_: str | None = Field(
        None,
        alias="schema",
        min_length=1,
        description="Columns of the records as in Spark's DDL, such as `id BIGINT, note STRING`; "
        "by name. csv, parquet and avro need it. Without it jsonl and json give the JSON text in the column value, and "
        "sequencefile key and value as bytes; newline has no other column than value.",
    )
    compression: Literal["auto", "none", "gzip", "zstd", "snappy", "bzip2"] = Field(
        "auto",
        description="Compression of whole objects; auto goes by the name's ending and the first bytes. parquet, avro "
        "and sequencefile compress inside and tell by themselves.",
    )
    on_corrupt: Literal["drop", "keep"] = Field(
        "drop",
        description="What becomes of an object that is damaged: it is tried again, then FAILED with the reason. Its "
        "good records are kept from the first retry on, with a dead letter for the damage (keep), or none of the batch "
        "is (drop). Below a prefix as partition it is a dead letter from the first retry on, with its good records "
        "(keep) or without (drop), and the other objects are read.",
    )
    max_line_bytes: PositiveSize = Field(
        "64MiB",
        validate_default=True,
        description="A longer line, CSV record or JSON element is not read but goes to the dead letters.",
    )
    split_bytes: PositiveSize = Field(
        "64MiB", validate_default=True, description="One task reads about so much of a large file, and writes it apart."
    )

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.folder is None) == (not self.buckets):
            raise PydanticCustomError(PLAIN_ERROR, "give either a folder or buckets")
        only_s3 = [name for name in _ONLY_FOR_BUCKETS if name in self.model_fields_set]
        if self.folder is not None and only_s3:
            raise PydanticCustomError(PLAIN_ERROR, f"{only_s3[0]} is for buckets, not for a folder")
        names = [one.bucket for one in self.buckets]
        if len(set(names)) < len(names):
            raise PydanticCustomError(PLAIN_ERROR, "a bucket is named twice; give one entry several prefixes")
        return self

    @model_validator(mode="after")
    def _objects_end_one_way(self) -> Self:
        if self.delete_s3_objects_on_read and "after_success" in self.model_fields_set:
            raise PydanticCustomError(PLAIN_ERROR, "give after_success or delete_s3_objects_on_read, not both")
        if self.partition_by == "prefix" and not self.deletes:
            raise PydanticCustomError(
                PLAIN_ERROR, "partition_by: prefix needs after_success: delete; what is still there counts as not read"
            )
        if self.partition_by == "prefix" and (self.order != "name" or self.reread):
            raise PydanticCustomError(PLAIN_ERROR, "partition_by: prefix has no order and no reread")
        return self

    @model_validator(mode="after")
    def _codec_fits(self) -> Self:
        if self.schema_ is not None and self.codec in {"newline", "text"}:
            raise PydanticCustomError(PLAIN_ERROR, f"the codec {self.codec} has no schema; its column is value")
        if self.schema_ is None and self.codec in {"csv", "parquet", "avro"}:
            raise PydanticCustomError(PLAIN_ERROR, f"the codec {self.codec} needs a schema: columns as in Spark's DDL")
        if self.codec in BLOCK_CODECS and self.compression not in {"auto", "none"}:
            raise PydanticCustomError(PLAIN_ERROR, f"the codec {self.codec} compresses inside; leave compression out")
        if self.partition_by == "prefix" and self.codec in {"avro", "sequencefile"}:
            # Their items count blocks by bytes and rows in them: too large to count objects beside them.
            raise PydanticCustomError(PLAIN_ERROR, f"partition_by: prefix cannot be with the codec {self.codec}")
        return self

    @property
    def deletes(self) -> bool:
        return self.delete_s3_objects_on_read or self.after_success == "delete"

    @property
    def tags(self) -> dict[str, str]:
        """Tags for objects that have been read; none if they get none."""
        return self.after_success.tag if isinstance(self.after_success, TagObject) else {}

    @property
    def rescans_after(self) -> float | None:
        """Seconds from one scan to the next; None if there is one only."""
        if isinstance(self.scan, Schedule):
            return None if self.scan.count == 1 else self.scan.interval
        return self.interval if self.scan == "follow" else None

    @property
    def found_again_within(self) -> float:
        """Seconds for which an object may be found again after it was read; infinite if that never ends."""
        again, scans = self.rescans_after, self.scans
        if again is None or self.deletes:
            return 0.0
        times = [one if one.given else self for one in self.buckets] or [self]
        spans = [one.range if one.range and not one.start_time and not one.end_time else math.inf for one in times]
        return min(max(spans), math.inf if scans is None else again * (scans - 1))

    @property
    def scans(self) -> int | None:
        """How many scans there are; None if they go on."""
        if isinstance(self.scan, Schedule):
            return self.scan.count
        return 1 if self.scan == "once" else None
