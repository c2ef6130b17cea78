"""Settings of the source `objects`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from holdfast.buckets.root import S3Reach, root_identity
from holdfast.config import ByteSize, LocalPath, PositiveCount
from holdfast.config.plugins import PLAIN_ERROR
from holdfast.config.units import VALUE_ERROR
from holdfast.s3.access import SCHEME
from holdfast.sources.objects.scan_config import (
    AfterSuccess,
    BucketSettings,
    Interval,
    Patterns,
    Scan,
    Schedule,
    Selection,
    TagObject,
    Times,
    can_match_below,
)

CodecName = Literal["jsonl", "newline", "text", "json", "csv", "parquet", "avro", "sequencefile"]
LINE_CODECS = frozenset({"jsonl", "newline", "text"})
BLOCK_CODECS = frozenset({"parquet", "avro", "sequencefile"})
"""Files of blocks, which can be split whatever their compression is."""
PositiveSize = Annotated[ByteSize, Field(gt=0)]
_ONLY_FOR_BUCKETS = ("s3", "reread", "after_success", "delete_s3_objects_on_read", "partition_by", "prefix_depth")


class ObjectsConfig(Times):
    """Which objects are read, and how."""

    has_shards: ClassVar[bool] = False
    folder: LocalPath | None = Field(None, description="Folder with the files; folders below it are read, too.")
    buckets: tuple[BucketSettings, ...] = Field((), description="Buckets on S3, instead of a folder.")
    s3: S3Reach | None = Field(None, description="How to reach S3, for buckets.")
    include: Patterns = Field(
        ("**/*",),
        description="Objects to read, as patterns of the path below the folder or of the key: * matches within a name, "
        "** across folders.",
    )
    exclude: Patterns = Field((), description="Objects to skip, as patterns of the path or key.")
    scan: Scan = Field(
        "once",
        description="How often objects are listed: `once`; repeatedly until the node is stopped (`follow`); or on a "
        "schedule with `interval` and optionally `count`.",
    )
    interval: Interval = Field("30s", validate_default=True, description="Time between two scans when scan is follow.")
    order: Literal["name", "oldest", "newest"] = Field(
        "name",
        description="Order in which the objects of a scan are read: by name, as they are listed, or by modification "
        "time. By time, reading begins when the whole listing is complete.",
    )
    reread: bool = Field(
        False, description="Read an object of a bucket again when it is overwritten, that is when its ETag changes."
    )
    after_success: AfterSuccess = Field(
        "keep",
        description="What to do with an object of a bucket when all sinks have all its records: `keep` it, `delete` "
        "it, or `tag` it with tags. An object with dead letters is never deleted.",
    )
    delete_s3_objects_on_read: bool = Field(False, description="The same as `after_success: delete`.")
    partition_by: Literal["object", "prefix"] = Field(
        "object",
        description="What a partition is: one object; or all objects below a prefix. One node at a time reads and "
        "deletes the objects of a prefix, and then closes it until the next scan.",
    )
    prefix_depth: PositiveCount = Field(
        1,
        description="Number of folder levels below include_prefix that make up a prefix, when partition_by is prefix.",
    )
    # --- how they are read
    codec: CodecName = Field(
        "jsonl",
        description="Format of the objects: lines with a JSON object each (jsonl), any lines (newline, or text), a "
        "JSON document with a list of objects (json), csv with a header line, parquet, avro, or sequencefile.",
    )
    schema_: str | None = Field(
        None,
        alias="schema",
        min_length=1,
        description="Columns of the records as in Spark's DDL, such as `id BIGINT, note STRING`, matched by name. "
        "Required for csv, parquet and avro. Without it jsonl and json give the JSON text in the column value, and "
        "sequencefile gives key and value as bytes. newline always has the single column value.",
    )
    compression: Literal["auto", "none", "gzip", "zstd", "snappy", "bzip2"] = Field(
        "auto",
        description="Compression of whole objects; auto detects it from the name's ending or the first bytes. parquet, "
        "avro and sequencefile have compression of their own, which is always detected.",
    )
    on_corrupt: Literal["drop", "keep"] = Field(
        "drop",
        description="What to do with a damaged object. It is retried, then FAILED with the reason. With keep, its good "
        "records are kept from the first retry on, with a dead letter for the damage; with drop, no records of the "
        "batch are. When partition_by is prefix, the damage is a dead letter from the first retry on, with the good "
        "records of the object (keep) or without them (drop), and the other objects are read.",
    )
    max_line_bytes: PositiveSize = Field(
        "64MiB",
        validate_default=True,
        description="A longer line, CSV record or JSON element becomes a dead letter.",
    )
    split_bytes: PositiveSize = Field(
        "64MiB",
        validate_default=True,
        description="Size of the splits of a large object; each is read by a task and written to files of its own.",
    )

    @field_validator("folder", mode="before")
    @classmethod
    def _folder_is_of_this_host(cls, folder: Any) -> Any:
        if isinstance(folder, str) and "://" in folder:
            hint = "for a bucket, write 'buckets: [{bucket: NAME, include_prefix: [PREFIX/]}]' instead"
            raise PydanticCustomError(VALUE_ERROR, f"is not a folder of this host; {hint}")
        return folder

    @model_validator(mode="after")
    def _folder_or_buckets(self) -> Self:
        if (self.folder is None) == (not self.buckets):
            raise PydanticCustomError(PLAIN_ERROR, "give either a folder or buckets")
        only_s3 = [name for name in _ONLY_FOR_BUCKETS if name in self.model_fields_set]
        if self.folder is not None and only_s3:
            raise PydanticCustomError(PLAIN_ERROR, f"{only_s3[0]} is for buckets, not for a folder")
        names = [bucket.bucket for bucket in self.buckets]
        if len(set(names)) < len(names):
            raise PydanticCustomError(PLAIN_ERROR, "a bucket is listed twice; give it one entry with several prefixes")
        return self

    @model_validator(mode="after")
    def _cleanup_fits(self) -> Self:
        if self.delete_s3_objects_on_read and "after_success" in self.model_fields_set:
            raise PydanticCustomError(PLAIN_ERROR, "give after_success or delete_s3_objects_on_read, not both")
        if self.partition_by == "prefix" and not self.deletes:
            raise PydanticCustomError(
                PLAIN_ERROR,
                "partition_by: prefix needs after_success: delete, because objects that still exist count as not read",
            )
        if self.partition_by == "prefix" and (self.order != "name" or self.reread):
            raise PydanticCustomError(PLAIN_ERROR, "partition_by: prefix supports neither order nor reread")
        return self

    @model_validator(mode="after")
    def _codec_fits(self) -> Self:
        if self.schema_ is not None and self.codec in {"newline", "text"}:
            raise PydanticCustomError(PLAIN_ERROR, f"the codec {self.codec} takes no schema; its only column is value")
        if self.schema_ is None and self.codec in {"csv", "parquet", "avro"}:
            raise PydanticCustomError(PLAIN_ERROR, f"the codec {self.codec} needs a schema: columns as in Spark's DDL")
        if self.codec in BLOCK_CODECS and self.compression not in {"auto", "none"}:
            raise PydanticCustomError(
                PLAIN_ERROR, f"the codec {self.codec} has its own compression; leave compression out"
            )
        if self.partition_by == "prefix" and self.codec in {"avro", "sequencefile"}:
            # Their items are made of byte offsets and row numbers: no bits are left for the number of the object.
            raise PydanticCustomError(PLAIN_ERROR, f"partition_by: prefix does not support the codec {self.codec}")
        return self

    def reads_below(self, folder: str) -> bool:
        """Return whether files below this root may be read: an absolute path without links, or an address in S3."""
        if folder.startswith(SCHEME):
            return any(self._reads_key(bucket, folder) for bucket in self.buckets)
        try:
            below = Path(folder).relative_to(Path(self.folder).resolve()) if self.folder else None
        except ValueError:
            below = None
        return below is not None and _may_read(below.parts, self.include, self.exclude)

    def _reads_key(self, bucket: BucketSettings, root: str) -> bool:
        whole = root_identity(f"{SCHEME}{bucket.bucket}", self.s3)
        if not f"{root}/".startswith(f"{whole}/"):
            return False
        prefix = root.removeprefix(whole).strip("/")
        wanted = bucket.include_prefix or ("",)
        # A prefix may be longer than the root, or end within a name.
        if not any(f"{prefix}/".startswith(start) or start.startswith(f"{prefix}/") for start in wanted):
            return False
        include = self.include if bucket.include is None else bucket.include
        exclude = self.exclude if bucket.exclude is None else bucket.exclude
        return _may_read(tuple(part for part in prefix.split("/") if part), include, exclude)

    @property
    def deletes(self) -> bool:
        return self.delete_s3_objects_on_read or self.after_success == "delete"

    @property
    def tags(self) -> dict[str, str]:
        """Tags for objects that have been read; empty if they are not tagged."""
        return self.after_success.tag if isinstance(self.after_success, TagObject) else {}

    @property
    def rescans_after(self) -> float | None:
        """Seconds from one scan to the next; None if there is only one."""
        if isinstance(self.scan, Schedule):
            return None if self.scan.count == 1 else self.scan.interval
        return self.interval if self.scan == "follow" else None

    @property
    def rediscovery_window(self) -> float:
        """Seconds for which a scan may find an object after it was read; infinite if that never ends."""
        interval, scans = self.rescans_after, self.scans
        if interval is None or self.deletes:
            return 0.0
        times = [bucket if bucket.given else self for bucket in self.buckets] or [self]
        spans = [t.range if t.range and not t.start_time and not t.end_time else math.inf for t in times]
        return min(max(spans), math.inf if scans is None else interval * (scans - 1))

    @property
    def scans(self) -> int | None:
        """The number of scans; None if there is no limit."""
        if isinstance(self.scan, Schedule):
            return self.scan.count
        return 1 if self.scan == "once" else None


def _may_read(below: tuple[str, ...], include: tuple[str, ...], exclude: tuple[str, ...]) -> bool:
    """Whether files in this folder, relative to what is listed, may be read."""
    if any(part.startswith((".", "_")) for part in below):
        return False
    if not below:
        return True
    path = "/".join(below)
    kept = Selection(("**",), exclude)
    return any(f"{path}/{file}" in kept for file in ("file", "folder/file")) and any(
        can_match_below(pattern, path) for pattern in include
    )
