"""The source `objects` on the node: which objects there are, where the next batch of each ends, how they are read."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import BatchError, Refused, SourceUnavailable
from holdfast.flow.batch import Batch, Cut, Done, Limits, Name, Wait
from holdfast.flow.source import SYSTEM_COLUMNS, Source
from holdfast.leases.lease import Json, Lease, Partition
from holdfast.sources.objects.config import ObjectsConfig
from holdfast.sources.objects.finding import Found, Selection, find
from holdfast.sources.objects.pieces import Piece, cut, pack
from holdfast.sources.objects.streams import check_unchanged, is_gzipped

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from holdfast.sources.objects.reading import ObjectsRead

SYSTEM_DDL = "_batch STRING, _item BIGINT, _fault STRING"


class ObjectsSource(Source):
    """Files of one folder. Each is a partition; nothing is ever written to it.

    An object that changes after it was found is an error: files must be complete when they appear. `max_records` of the
    batch limits is not kept, because records are counted only when they are read; `max_bytes` is.
    """

    def __init__(self, config: ObjectsConfig) -> None:
        self._config = config
        self._folder = config.folder.absolute()
        self._selection = Selection(config.include, config.exclude)
        self.rediscover_after = config.interval if config.scan == "follow" else None

    def open(self) -> None:
        if not self._folder.exists():
            raise SourceUnavailable(f"the folder {self._folder} is not there")
        if not self._folder.is_dir():
            raise Refused(f"{self._folder} is no folder")

    # --- on the node -------------------------------------------------------------------------------------------

    def discover(self, state: dict[str, Any]) -> Iterator[Partition]:
        """All objects in order of their paths. Objects that are known already are yielded again and not read again."""
        folder = str(self._folder)
        if state.setdefault("folder", folder) != folder:
            raise Refused(
                f"this pipeline has read {state['folder']}; in {folder} objects of the same name would count as done. "
                "Give it another name, or another partition_prefix"
            )
        for found in find(self._folder, self._selection):
            yield Partition(f"{self._folder.name}|{_key(found.path)}", spec=self._spec(found))

    def _spec(self, found: Found) -> dict[str, Json]:
        spec = {"folder": str(self._folder), "path": found.path, "size": found.size, "mtime_ns": found.mtime_ns}
        if not _is_text(found.path):
            spec["path"] = {"hex": os.fsencode(found.path).hex()}
        return spec

    def name(self, lease: Lease) -> Name:
        digest = hashlib.sha256(os.fsencode(_path(lease.spec))).hexdigest()
        return Name(Path(lease.spec["folder"]).name or "objects", digest[:32])

    def plan(self, leases: Sequence[Lease], limits: Limits) -> list[Cut | Wait | Done | BatchError]:
        if not self._folder.is_dir():
            raise SourceUnavailable(f"the folder {self._folder} is not there")
        return [self._next(lease, limits) for lease in leases]

    def _next(self, lease: Lease, limits: Limits) -> Cut | Done | BatchError:
        file, size = _file(lease.spec), lease.spec["size"]
        try:
            check_unchanged(file, file.stat(), size, lease.spec["mtime_ns"])
            start = _offset(lease.progress.position)
            if start >= size:
                return Done()
            if is_gzipped(file, self._config.compression):
                return Cut({"offset": 0}, {"offset": size}, last=True, size=size)
        except FileNotFoundError:
            return BatchError(f"{file} has vanished since it was found")
        except OSError as error:
            return BatchError(f"cannot read {file}: {error.strerror}")
        except BatchError as wrong:
            return wrong
        # In equal parts, so that no small rest is left.
        batches = -(-(size - start) // limits.max_bytes)
        end = start + -(-(size - start) // batches)
        return Cut({"offset": start}, {"offset": end}, last=end == size, size=end - start)

    # --- for Spark ---------------------------------------------------------------------------------------------

    def read(self, spark: Any, batches: Sequence[Batch]) -> Any:
        from holdfast.spark.arrow import frame_of

        return frame_of(spark, self.direct(spark, batches))

    def direct(self, spark: Any, batches: Sequence[Batch]) -> ObjectsRead:
        from pyspark.sql.pandas.types import to_arrow_schema
        from pyspark.sql.types import StructType

        from holdfast.sources.objects.codecs import Jsonl, Text
        from holdfast.sources.objects.reading import ObjectsRead

        system = _ddl(SYSTEM_DDL)
        fields = self._fields()
        if self._config.codec == "text":
            codec: Jsonl | Text = Text()
        else:
            # Times are kept in UTC, and one without a zone is taken for UTC.
            codec = Jsonl(None if fields is None else to_arrow_schema(fields, timezone="UTC"))
        own = _ddl("value STRING") if fields is None else fields
        pieces = [cut(self._piece(batch), self._config.split_bytes) for batch in batches]
        packed = pack(pieces, spark.sparkContext.defaultParallelism)
        return ObjectsRead(packed, codec, self._config.max_line_bytes, StructType(system.fields + own.fields))

    def _fields(self) -> StructType | None:
        if self._config.schema_ is None:
            return None
        fields = _ddl(self._config.schema_)
        reserved = [name for name in fields.names if name in SYSTEM_COLUMNS]
        if reserved:
            raise Refused(f"schema: the name {reserved[0]} is holdfast's own")
        return fields

    def _piece(self, batch: Batch) -> Piece:
        spec = batch.lease.spec
        file = _file(spec)
        try:
            gzipped = is_gzipped(file, self._config.compression)
        except FileNotFoundError:
            gzipped = False  # the task that opens it tells that it is gone
        except OSError as error:
            raise SourceUnavailable(f"cannot read {file}: {error.strerror}") from error
        start, end = batch.cut.start["offset"], batch.cut.end["offset"]
        return Piece(batch.id, str(file), spec["size"], spec["mtime_ns"], start, end, gzipped)


def _ddl(text: str) -> StructType:
    from pyspark.sql.types import StructType

    fields = StructType.fromDDL(text)
    if not isinstance(fields, StructType):
        raise Refused(f"schema: {text} is a type and no list of columns")
    return fields


def _key(path: str) -> str:
    """The path as a part of a key. One that is no text has a form that no other path can have."""
    return path if _is_text(path) else f"/{os.fsencode(path).hex()}"


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _path(spec: Any) -> str:
    path = spec["path"]
    return path if isinstance(path, str) else os.fsdecode(bytes.fromhex(path["hex"]))


def _file(spec: Any) -> Path:
    return Path(spec["folder"], _path(spec))


def _offset(position: Json) -> int:
    """Where to go on. Raises `BatchError` if that cannot be told: unreadable progress is no fresh start."""
    if position is None:
        return 0
    offset = position.get("offset") if isinstance(position, dict) else None
    if not isinstance(offset, int) or offset < 0:
        raise BatchError(f"the position {position!r} is no byte offset")
    return offset
