"""ORC, written by Arrow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, Literal

from pydantic import Field

from holdfast.config import ByteSize, Options
from holdfast.flow.format import Format, FormatWriter, RawWriter
from holdfast.flow.kafka_columns import KAFKA_COLUMNS
from holdfast.formats._columnar import GroupedFile
from holdfast.formats._compression import LeftOpen
from holdfast.formats._faults import DAY, Times
from holdfast.registry import Plugin

READ_ROWS = 8192
GREGORIAN = -141_427 * DAY
"""1582-10-15: Spark reads earlier days of ORC in the Julian calendar."""
NANOSECONDS = ((1 << 63) - 1) // 1000
TIMES = Times(
    (-NANOSECONDS, NANOSECONDS),
    (GREGORIAN, (1 << 31) * DAY),
    "readers of ORC disagree on the time in column {}: they agree on the years 1678 to 2261, before 1970 only on whole "
    "seconds, and on days after 1582-10-14",
    whole_before_1970=True,
)
"""Arrow reads times as 64-bit nanoseconds, and Java misreads fractions of a second before 1970 that Arrow wrote."""

Compression = Literal["zstd", "snappy", "zlib", "lz4", "none"]


class OrcConfig(Options):
    """How ORC files are written."""

    compression: Compression = Field("zstd", description="Compression of the columns.")
    stripe_bytes: ByteSize = Field(
        "64MiB",
        validate_default=True,
        description="Size of a stripe before compression.",
    )


class _CalmWriter:
    """Keeps the first error until `check`: an exception inside a write aborts the process in Arrow's ORC writer."""

    def __init__(self, raw: RawWriter) -> None:
        self._raw = raw
        self._failure: Exception | None = None

    def write(self, data: Any) -> int:
        if self._failure is None:
            try:
                return self._raw.write(data)
            except Exception as failure:  # noqa: BLE001 - raised by `check`
                self._failure = failure
        return memoryview(data).nbytes

    def check(self) -> None:
        """Raise the first error, if any."""
        if self._failure is not None:
            raise self._failure


class Orc(Format):
    """Writes every data column unchanged; rows with times that readers disagree on are faults."""

    extension = "orc"
    keeps = frozenset(KAFKA_COLUMNS)

    def __init__(self, compression: Compression = "zstd", stripe_bytes: int = 64 << 20) -> None:
        self._compression = "uncompressed" if compression == "none" else compression
        self._stripe_bytes = stripe_bytes

    def columns(self, fields: Any) -> Mapping[str, Any]:
        return dict.fromkeys(fields.names)

    def faults(self, rows: Any) -> Any | None:
        return TIMES.faults(rows)

    def open(self, raw: RawWriter, schema: Any) -> FormatWriter:
        import pyarrow as pa
        import pyarrow.orc

        calm = _CalmWriter(raw)
        writer = pyarrow.orc.ORCWriter(pa.PythonFile(LeftOpen(calm), mode="w"), compression=self._compression)

        def write(rows: Any) -> None:
            writer.write(rows)
            calm.check()

        def close() -> None:
            writer.close()
            calm.check()

        # A file without rows must have the columns, too.
        write(schema.empty_table())
        return GroupedFile(write, close, self._stripe_bytes)

    def read(self, data: BinaryIO) -> Iterator[Any]:
        import pyarrow as pa
        import pyarrow.orc

        try:
            file = pyarrow.orc.ORCFile(pa.PythonFile(LeftOpen(data), mode="r"))
            for number in range(file.nstripes):
                stripe = pa.Table.from_batches([file.read_stripe(number)])
                yield from _in_microseconds(stripe).to_batches(READ_ROWS)
        except (OSError, pa.ArrowException) as error:
            if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno is not None):
                raise
            raise ValueError(f"it cannot be read as ORC: {error}") from error


def _in_microseconds(table: Any) -> Any:
    """The table with times in microseconds: Arrow reads nanoseconds, whatever was written."""
    import pyarrow as pa

    return table.cast(pa.schema([field.with_type(_without_nanoseconds(field.type)) for field in table.schema]))


def _without_nanoseconds(kind: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_nanoseconds(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_without_nanoseconds(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _without_nanoseconds(kind.item_type))
    return kind


PLUGIN = Plugin("orc", OrcConfig, lambda config: Orc(config.compression, config.stripe_bytes), "ORC files.")
