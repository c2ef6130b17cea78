"""How objects are read by the settings: where the next batch of one ends, and which pieces the tasks of a round get."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from holdfast.errors import BatchError, BeyondRepair, Refused, Unavailable
from holdfast.flow.batch import Batch, Cut, Done, Limits
from holdfast.flow.source import SYSTEM_COLUMNS
from holdfast.leases.lease import Json
from holdfast.sources.objects.compressions import HEAD_BYTES, compression_of
from holdfast.sources.objects.config import BLOCK_CODECS, LINE_CODECS, ObjectsConfig
from holdfast.sources.objects.pieces import Piece, cut, pack
from holdfast.sources.objects.places import ObjectPlace

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from holdfast.sources.objects.reading import ObjectsRead

SYSTEM_DDL = "_batch STRING, _item BIGINT, _fault STRING"
_WITHOUT_SCHEMA = {"sequencefile": "key BINARY, value BINARY"}
_DAMAGE = "damaged"
_ITEM = "item"
_COUNTED = "counted"
_TOLD_OF_DAMAGE = 300


class Cutting:
    """The settings of codec and compression, applied."""

    def __init__(self, config: ObjectsConfig) -> None:
        self._config = config

    def next(self, place: ObjectPlace, position: Json, limits: Limits) -> Cut | Done | BatchError:
        """Where the next batch of the object ends. Raises `Unavailable`."""
        try:
            place.check()
            size, damage, item = place.size, damage_of(position), item_of(position)
            start = _offset(position) if item is None else item if self._items_are_bytes(place) else 0
            if start >= size:
                return Done() if damage is None else BeyondRepair(damage)
            # Whether it is packed is asked only where that decides something: on S3 it costs a request.
            if size - start <= limits.max_bytes or self._is_undivided(place) or (item is not None and not start):
                return _cut(position, start, size, size, limits)
        except BatchError as wrong:
            return wrong
        # In equal parts, so that no small rest is left.
        batches = -(-(size - start) // limits.max_bytes)
        end = start + -(-(size - start) // batches)
        return _cut(position, start, end, size, limits)

    def pieces(self, batch_id: str, place: ObjectPlace, planned: Cut) -> list[Piece]:
        """The parts of a batch of one object that tasks read apart."""
        if is_counted(planned.end):
            return [self._counted_piece(batch_id, place, planned)]
        start, end, most = planned.start["offset"], planned.end["offset"], self._config.split_bytes
        try:
            undivided = end - start > most and self._is_undivided(place)
        except (BatchError, Unavailable):
            undivided = True  # the task that opens it tells what is wrong with it; other objects are read meanwhile
        return cut(Piece(batch_id, place, start, end, undivided), most)

    def _counted_piece(self, batch_id: str, place: ObjectPlace, planned: Cut) -> Piece:
        first, until = item_of(planned.start), item_of(planned.end)
        start = 0 if first is not None else planned.start["offset"]
        end = place.size if until is not None else planned.end["offset"]
        whole = Piece(batch_id, place, start, end, first=first or 0, until=until, in_order=True)
        try:
            if self._items_are_bytes(place):
                whole = replace(whole, start=first or start, end=end if until is None else until)
        except (BatchError, Unavailable):
            pass  # read from its beginning, it gives the same records
        return replace(whole, most=planned.max_records)

    def _items_are_bytes(self, place: ObjectPlace) -> bool:
        """Whether an item is where its record begins in the object. Raises what opening and reading it raise."""
        return self._config.codec in LINE_CODECS and not self._is_undivided(place)

    def salvaging(self, batch: Batch, piece: Piece) -> Piece:
        """The piece with what becomes of it if its object is damaged. Once one is known to be, it is always salvaged.

        The first try keeps none: perhaps the object is well, and only what came of it was not.
        """
        keep, by_prefix = self._config.on_corrupt == "keep", self._config.partition_by == "prefix"
        # Below a prefix, the damage of an earlier batch is of other objects.
        seen = [batch.cut.end] if by_prefix else [batch.cut.start, batch.cut.end]
        known = any(damage_of(position) is not None for position in seen)
        salvage = known or (batch.lease.history.attempts > 0 and (keep or by_prefix))
        return replace(piece, salvage=salvage, drops=salvage and by_prefix and not keep)

    def _is_undivided(self, place: ObjectPlace) -> bool:
        """Whether it can only be read from its beginning. Raises what opening and reading it raise."""
        codec = self._config.codec
        if codec in BLOCK_CODECS:
            return False
        return codec not in LINE_CODECS or self._compression(place) != "none"

    def _compression(self, place: ObjectPlace) -> str:
        def head() -> bytes:
            with place.opened() as data:
                return data.read(HEAD_BYTES)

        return compression_of(place.path, self._config.compression, head)

    def read(self, spark: Any, batches: Sequence[Sequence[Piece]]) -> ObjectsRead:
        """The read of all these pieces; each element is one batch's."""
        from pyspark.sql.pandas.types import to_arrow_schema
        from pyspark.sql.types import StructType

        from holdfast.sources.objects.codecs.choice import codec_of
        from holdfast.sources.objects.reading import ObjectsRead

        system, own = _ddl(SYSTEM_DDL), self.columns()
        # Times are kept in UTC, and one without a zone is taken for UTC.
        schema = None if self._config.schema_ is None else to_arrow_schema(own, timezone="UTC")
        codec = codec_of(self._config.codec, schema, self._config.max_line_bytes)
        packed = pack(batches, spark.sparkContext.defaultParallelism)
        return ObjectsRead(packed, codec, self._config.compression, StructType(system.fields + own.fields))

    def columns(self) -> StructType:
        """The data columns. Needs a Spark session."""
        return self._fields() or _ddl(_WITHOUT_SCHEMA.get(self._config.codec, "value STRING"))

    def _fields(self) -> StructType | None:
        if self._config.schema_ is None:
            return None
        fields = _ddl(self._config.schema_)
        reserved = [name for name in fields.names if name in SYSTEM_COLUMNS]
        if reserved:
            raise Refused(f"schema: the name {reserved[0]} is holdfast's own")
        return fields


def damaged(end: Json, reason: str) -> Json:
    """The position after a batch that ended there and met damage; it stays with the object to its end."""
    return end if damage_of(end) is not None else {**end, _DAMAGE: reason[:_TOLD_OF_DAMAGE]}


def damage_of(position: Json) -> str | None:
    """What is known to be wrong with the object."""
    told = position.get(_DAMAGE) if isinstance(position, dict) else None
    return None if told is None else str(told)


def item_of(position: Json) -> int | None:
    """The item of the next record, where the batch before was cut short; None where a position is a byte offset."""
    item = position.get(_ITEM) if isinstance(position, dict) else None
    return item if isinstance(item, int) else None


def is_counted(end: Json) -> bool:
    """Whether the batch that ends there was, or will be, read by one task in order, because its records are counted."""
    return _ITEM in end or _COUNTED in end


def cut_short(start: Json, item: int) -> Json:
    """The position after a batch that began there and was cut short before that item."""
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


def _ddl(text: str) -> StructType:
    from pyspark.sql.types import StructType

    fields = StructType.fromDDL(text)
    if not isinstance(fields, StructType):
        raise Refused(f"schema: {text} is a type and no list of columns")
    return fields


def _offset(position: Json) -> int:
    """Where to go on. Raises `BatchError` if that cannot be told: unreadable progress is no fresh start."""
    if position is None:
        return 0
    offset = position.get("offset") if isinstance(position, dict) else None
    if not isinstance(offset, int) or offset < 0:
        raise BatchError(f"the position {position!r} is no byte offset")
    return offset
