"""Plans by the settings where the next batch of an object ends, and which splits the tasks of a round get."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from holdfast.errors import BatchError, BeyondRepair, Refused, Unavailable
from holdfast.flow.batch import Batch, Cut, Done, Limits
from holdfast.flow.source import SYSTEM_COLUMNS
from holdfast.leases.lease import Json
from holdfast.sources.objects.compression import HEAD_BYTES, compression_of
from holdfast.sources.objects.config import BLOCK_CODECS, LINE_CODECS, ObjectsConfig
from holdfast.sources.objects.object_ref import ObjectRef
from holdfast.sources.objects.splits import Split, divide, pack

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from holdfast.sources.objects.codecs.codec import Codec
    from holdfast.sources.objects.task_rows import ObjectRows

SYSTEM_DDL = "_batch STRING, _item BIGINT, _fault STRING"
_COLUMNS_WITHOUT_SCHEMA = {"sequencefile": "key BINARY, value BINARY"}
_DAMAGE = "damaged"
_ITEM = "item"
_COUNTED = "counted"
_MAX_REASON = 300
"""Characters of a reason that a position keeps."""


class ObjectPlanner:
    """Plans batches and splits of objects by the settings of codec, compression and damage."""

    def __init__(self, config: ObjectsConfig) -> None:
        self._config = config

    # --- batches and splits ------------------------------------------------------------------------------------

    def next_batch(self, ref: ObjectRef, position: Json, limits: Limits) -> Cut | Done | BatchError:
        """Where the next batch of the object ends. Raises `Unavailable`."""
        try:
            ref.check()
            size, damage, item = ref.size, damage_of(position), item_of(position)
            start = _offset(position) if item is None else item if self._items_are_bytes(ref) else 0
            if start >= size:
                return Done() if damage is None else BeyondRepair(damage)
            # The compression is looked at only where it decides something: on S3 that costs a request.
            if size - start <= limits.max_bytes or self._is_undivided(ref) or (item is not None and not start):
                return _cut(position, start, size, size, limits)
        except BatchError as error:
            return error
        # In equal parts, so that no small rest is left.
        batches = -(-(size - start) // limits.max_bytes)
        end = start + -(-(size - start) // batches)
        return _cut(position, start, end, size, limits)

    def splits(self, batch_id: str, ref: ObjectRef, cut: Cut) -> list[Split]:
        """The byte ranges of a batch of one object, one for each task."""
        if is_counted(cut.end):
            return [self._counted_split(batch_id, ref, cut)]
        start, end, split_bytes = cut.start["offset"], cut.end["offset"], self._config.split_bytes
        try:
            undivided = end - start > split_bytes and self._is_undivided(ref)
        except (BatchError, Unavailable):
            undivided = True  # the task that opens it reports the error; other objects are read meanwhile
        return divide(Split(batch_id, ref, start, end, undivided), split_bytes)

    def _counted_split(self, batch_id: str, ref: ObjectRef, cut: Cut) -> Split:
        first, until = item_of(cut.start), item_of(cut.end)
        start = 0 if first is not None else cut.start["offset"]
        end = ref.size if until is not None else cut.end["offset"]
        whole = Split(batch_id, ref, start, end, first=first or 0, until=until, in_order=True)
        try:
            if self._items_are_bytes(ref):
                whole = replace(whole, start=first or start, end=end if until is None else until)
        except (BatchError, Unavailable):
            pass  # reading from the beginning gives the same records
        return replace(whole, max_records=cut.max_records)

    def salvaged(self, batch: Batch, split: Split) -> Split:
        """The split, with how damage is handled. An object with known damage is always salvaged.

        The first attempt keeps nothing of a damaged object, because only the transfer may have failed.
        """
        keep, by_prefix = self._config.on_corrupt == "keep", self._config.partition_by == "prefix"
        # Below a prefix, the damage of an earlier batch is of other objects.
        positions = [batch.cut.end] if by_prefix else [batch.cut.start, batch.cut.end]
        seen = any(damage_of(position) is not None for position in positions)
        salvage = seen or (batch.lease.history.attempts > 0 and (keep or by_prefix))
        return replace(split, salvage=salvage, drops=salvage and by_prefix and not keep)

    def _items_are_bytes(self, ref: ObjectRef) -> bool:
        """Whether an item is the byte where its record begins. Raises what opening and reading the object raise."""
        return self._config.codec in LINE_CODECS and not self._is_undivided(ref)

    def _is_undivided(self, ref: ObjectRef) -> bool:
        """Whether the object can only be read from its beginning. Raises what opening and reading the object raise."""
        codec = self._config.codec
        if codec in BLOCK_CODECS:
            return False
        return codec not in LINE_CODECS or self._compression(ref) != "none"

    def _compression(self, ref: ObjectRef) -> str:
        def head() -> bytes:
            with ref.opened() as data:
                return data.read(HEAD_BYTES)

        return compression_of(ref.path, self._config.compression, head)

    # --- rows --------------------------------------------------------------------------------------------------

    def rows(self, spark: Any, batches: Sequence[Sequence[Split]]) -> ObjectRows:
        """The rows of all these splits; each element has the splits of one batch."""
        from holdfast.sources.objects.task_rows import ObjectRows

        codec, fields = self._codec_and_fields
        packed = pack(batches, spark.sparkContext.defaultParallelism)
        return ObjectRows(packed, codec, self._config.compression, fields)

    @cached_property
    def _codec_and_fields(self) -> tuple[Codec, StructType]:
        """How objects are read, and the columns of their rows. Needs a Spark session."""
        from pyspark.sql.pandas.types import to_arrow_schema
        from pyspark.sql.types import StructType

        from holdfast.sources.objects.codecs import codec_of

        system, data = _ddl(SYSTEM_DDL), self.columns()
        # Times are kept in UTC, and a time without a zone is taken as UTC.
        schema = None if self._config.schema_ is None else to_arrow_schema(data, timezone="UTC")
        codec = codec_of(self._config.codec, schema, self._config.max_line_bytes)
        return codec, StructType(system.fields + data.fields)

    def columns(self) -> StructType:
        """The data columns. Needs a Spark session."""
        if self._config.schema_ is None:
            return _ddl(_COLUMNS_WITHOUT_SCHEMA.get(self._config.codec, "value STRING"))
        fields = _ddl(self._config.schema_)
        reserved = [name for name in fields.names if name in SYSTEM_COLUMNS]
        if reserved:
            raise Refused(f"schema: the name {reserved[0]} is reserved")
        return fields


# --- positions -----------------------------------------------------------------------------------------------------


def damaged(end: Json, reason: str) -> Json:
    """The position after a batch that ended at `end` with damage. All later positions keep the damage."""
    return end if damage_of(end) is not None else {**end, _DAMAGE: reason[:_MAX_REASON]}


def damage_of(position: Json) -> str | None:
    """The damage that was found in the object before, if any."""
    damage = position.get(_DAMAGE) if isinstance(position, dict) else None
    return None if damage is None else str(damage)


def item_of(position: Json) -> int | None:
    """The item of the next record if the previous batch was cut short; None if the position is a byte offset."""
    item = position.get(_ITEM) if isinstance(position, dict) else None
    return item if isinstance(item, int) else None


def is_counted(end: Json) -> bool:
    """Whether one task reads the batch that ends at `end`, in order, because its records are counted."""
    return _ITEM in end or _COUNTED in end


def cut_short(start: Json, item: int) -> Json:
    """The position after a batch that was cut short before that item."""
    damage, end = damage_of(start), {_ITEM: item}
    return end if damage is None else damaged(end, damage)


def _cut(position: Json, start: int, end: int, size: int, limits: Limits) -> Cut:
    first, damage = {"offset": 0} if position is None else position, damage_of(position)
    last: Json = {"offset": end}
    if limits.max_records is not None or item_of(position) is not None:
        last[_COUNTED] = True
    if damage is not None:
        last = damaged(last, damage)
    return Cut(first, last, last=end == size and damage is None, size=end - start, max_records=limits.max_records)


def _offset(position: Json) -> int:
    """The byte to continue at. Raises `BatchError` for anything else: unreadable progress is not a fresh start."""
    if position is None:
        return 0
    offset = position.get("offset") if isinstance(position, dict) else None
    if not isinstance(offset, int) or offset < 0:
        raise BatchError(f"the position {position!r} is not a byte offset")
    return offset


def _ddl(text: str) -> StructType:
    from pyspark.sql.types import StructType

    fields = StructType.fromDDL(text)
    if not isinstance(fields, StructType):
        raise Refused(f"schema: {text} is a type, not a list of columns")
    return fields
