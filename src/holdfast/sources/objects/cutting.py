"""How objects are read by the settings: where the next batch of one ends, and which pieces the tasks of a round get."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from holdfast.errors import BatchError, BeyondRepair, Refused, SourceUnavailable
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
_TOLD_OF_DAMAGE = 300


class Cutting:
    """The settings of codec and compression, applied."""

    def __init__(self, config: ObjectsConfig) -> None:
        self._config = config

    def next(self, place: ObjectPlace, position: Json, limits: Limits) -> Cut | Done | BatchError:
        """Where the next batch of the object ends. Raises `SourceUnavailable`."""
        try:
            place.check()
            start, size, damage = _offset(position), place.size, damage_of(position)
            if start >= size:
                return Done() if damage is None else BeyondRepair(damage)
            # Whether it is packed is asked only where that decides something: on S3 it costs a request.
            if size - start <= limits.max_bytes or self._is_undivided(place):
                return _cut(start, size, size, damage)
        except BatchError as wrong:
            return wrong
        # In equal parts, so that no small rest is left.
        batches = -(-(size - start) // limits.max_bytes)
        end = start + -(-(size - start) // batches)
        return _cut(start, end, size, damage)

    def pieces(self, batch_id: str, place: ObjectPlace, planned: Cut) -> list[Piece]:
        """The parts of a batch of one object that tasks read apart."""
        start, end, most = planned.start["offset"], planned.end["offset"], self._config.split_bytes
        try:
            undivided = end - start > most and self._is_undivided(place)
        except (BatchError, SourceUnavailable):
            undivided = True  # the task that opens it tells what is wrong with it; other objects are read meanwhile
        return cut(Piece(batch_id, place, start, end, undivided), most)

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


def _cut(start: int, end: int, size: int, damage: str | None) -> Cut:
    first, last = {"offset": start}, {"offset": end}
    if damage is not None:
        return Cut(damaged(first, damage), damaged(last, damage), size=end - start)
    return Cut(first, last, last=end == size, size=end - start)


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
