"""Messages in the formats that write them: the column `value`, and messages whose value is null."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from holdfast.errors import BatchError, Refused
from holdfast.flow.kafka_columns import VALUE

LARGEST_PORTION = 1 << 30
"""Arrow's offsets in a column have 32 bits; larger batches are split first."""

ANY_COLUMNS = "use a format that takes all columns, such as parquet"
NOT_TAKEN_OUT = "a message that format {} cannot hold was not taken out"
LETTER = {"dead_letter": "become dead letters"}
SKIP = {"skip": "are left out and counted"}
TOMBSTONES = "null messages (tombstones)"
IS_NULL = "the message is null (a tombstone), which this format cannot distinguish from an empty message"

Tombstones = Literal["dead_letter", "empty", "skip"]


def limit(rows: str, setting: str, chosen: str, choices: Mapping[str, str]) -> list[str]:
    """The sentence of `Format.limits` for a setting: what becomes of such rows, and which other values it may have."""
    others = ", ".join(choice for choice in choices if choice != chosen)
    return [f"{rows} {choices[chosen]} ({setting}: {chosen}; may be {others})"] if chosen in choices else []


def portions(rows: Any) -> Iterator[Any]:
    """The same rows, in portions that are small enough."""
    if rows.nbytes > LARGEST_PORTION and rows.num_rows > 1:
        half = rows.num_rows // 2
        yield from portions(rows.slice(0, half))
        yield from portions(rows.slice(half))
    elif rows.num_rows:
        yield rows


def value_of(rows: Any, name: str, *, nulls: bool = True) -> Any:
    """The column `value` as bytes. Raises `BatchError` if there is none; `name` is the name of the format."""
    from holdfast.formats._arrays import binary, is_bytes

    index = rows.schema.get_field_index(VALUE)
    if index < 0 or not is_bytes(rows.schema.field(index).type):
        raise BatchError(_lacks(name, [VALUE], rows.schema.names))
    values = binary(rows.column(index))
    if values.null_count and not nulls:
        raise BatchError(NOT_TAKEN_OUT.format(name))
    return values


def null_faults(rows: Any, name: str) -> Any | None:
    """Like `Format.faults`: messages whose value is null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = value_of(rows, name)
    return pc.if_else(values.is_null(), IS_NULL, pa.scalar(None, pa.string())) if values.null_count else None


def wants_messages(fields: Any, name: str, wanted: Iterable[str]) -> None:
    """Raise `Refused` unless Spark's fields have these columns, and `value` is text or bytes."""
    from pyspark.sql.types import BinaryType, StringType

    missing = sorted(set(wanted) - set(fields.names))
    if missing:
        raise Refused(_lacks(name, missing, fields.names))
    if not isinstance(fields[VALUE].dataType, StringType | BinaryType):
        raise Refused(f"format {name} needs text or bytes in the column {VALUE!r}; {ANY_COLUMNS}")


def _lacks(name: str, missing: Sequence[str], names: Sequence[str]) -> str:
    wanted = " and ".join(missing)
    return f"format {name} needs the column {wanted}, and the rows have {', '.join(names)}; {ANY_COLUMNS}"
