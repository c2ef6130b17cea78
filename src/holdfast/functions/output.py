"""Records that a handler returns: rows for the other sinks of its pipeline.

They belong to the record that made them. A worker stages them when that record and all before it are acknowledged, and
reports them with the position, so that one write commits both. A record that made rows and is acknowledged before an
earlier one is not reported as acknowledged: after a crash it is handled again, and its rows are made again.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from holdfast.flow.batch import Batch, Name
from holdfast.flow.shards import item_of
from holdfast.flow.staging import StagedBatch, Stager, Staging
from holdfast.leases.lease import Json

MAX_WAITING_BYTES = 16 << 20
"""A shard pauses while rows of this size wait to be staged."""
ColumnType: TypeAlias = Literal["string", "binary", "long", "double", "boolean", "timestamp", "date"]
Range: TypeAlias = tuple[int, int]


class Records:
    """What a handler returns to write rows to the other sinks of its pipeline.

    A row is a mapping with columns of `output_columns`, of which any may be missing; or text or bytes for the column
    `value`.
    """

    __slots__ = ("rows",)

    def __init__(self, rows: Iterable[Mapping[str, Any] | str | bytes]) -> None:
        self.rows = list(rows)

    def __repr__(self) -> str:
        return f"Records({self.rows!r})"


class Output(NamedTuple):
    """Rows that one call has made, as an Arrow record batch."""

    first: int
    """Offset of the first record of the call."""
    offset: int
    """Of the record that made them; of a batch, the last one."""
    rows: Any
    item: int
    """The number of that record, by which sinks know the rows."""


class StagedOutput(NamedTuple):
    parts: dict[str, Json]
    """By sink, what it needs for its receipt."""
    refused: int = 0
    """Rows that a sink has kept as dead letters."""


@dataclass(frozen=True)
class OutputSinks:
    """The other sinks of a pipeline, as its workers use them. Picklable."""

    columns: Mapping[str, ColumnType]
    stagers: Mapping[str, tuple[Stager, tuple[str, ...]]]
    """By sink, how it stages, and the columns that it needs."""
    item_of: Callable[[int], int | None] = item_of
    """The item of a record, by its offset; None if it has none."""

    def rows_of(self, records: Records) -> Any:
        """The rows as an Arrow record batch. Raises `ValueError` or `TypeError` if they do not fit the columns."""
        import pyarrow as pa

        rows = [{"value": row} if isinstance(row, str | bytes) else row for row in records.rows]
        for row in rows:
            if unknown := row.keys() - self.columns.keys():
                raise ValueError(f"output_columns has no column {min(map(str, unknown))!r}")
        return pa.RecordBatch.from_pylist(rows, pa.schema(list(_arrow_types(self.columns).items())))

    def stage(self, batch: StagedBatch, made: Sequence[Output]) -> StagedOutput:
        """Stage the rows in every sink. Raises `Unavailable`, or what else a sink raises; nothing stays staged then."""
        stagings: dict[str, Staging] = {}
        try:
            for name, (stager, _) in self.stagers.items():
                stagings[name] = stager.begin()
            refused = self.write(stagings, batch, made)
            parts = {name: staging.finish(batch) for name, staging in stagings.items()}
            late = [staging.late_unfit(batch) for staging in stagings.values()]
            return StagedOutput(parts, max(map(sum, zip(refused, late, strict=True))))
        except BaseException:
            for staging in stagings.values():
                staging.abandon(batch)
            raise
        finally:
            for staging in stagings.values():
                staging.close()

    def write(self, stagings: Mapping[str, Staging], batch: StagedBatch, made: Sequence[Output]) -> list[int]:
        """Write the rows to all stagings, and return how many each has refused. Raises what they raise."""
        items, rows = _joined(made)
        refused = []
        for name, staging in stagings.items():
            staging.expect(batch, {""})
            refused.append(staging.write(batch, items, rows.select(self.stagers[name][1])))
        return refused


@dataclass(slots=True)
class ShardOutput:
    """The rows of one shard that wait to be staged. Used by one thread."""

    sinks: OutputSinks
    waits: bool = False
    """Whether the last report is not published yet; nothing is reported until then."""
    size: int = 0
    _made: deque[Output] = field(default_factory=deque)
    _last: int | None = None
    """The item of the last record that made rows."""

    def add(self, first: int, offset: int, records: Records) -> str | None:
        """Keep what a call for the records from `first` to `offset` has made, in the order of offsets.

        Returns why it cannot be kept; None if it can.
        """
        item = self.sinks.item_of(offset)
        if item is None or (self._last is not None and item <= self._last):
            # Sinks would take the rows of two records for those of one.
            return (
                "rows for other sinks need 64-bit record numbers in increasing order; the record at offset "
                f"{offset} has none, or one that is not higher than the last"
            )
        try:
            rows = self.sinks.rows_of(records)
        except (ValueError, TypeError, AttributeError, OverflowError) as error:
            return f"the handler returned rows that do not fit output_columns: {error}"
        if rows.num_rows:
            self._made.append(Output(first, offset, rows, item))
            self._last = item
            self.size += rows.nbytes
        return None

    @property
    def full(self) -> bool:
        return self.size >= MAX_WAITING_BYTES

    def take(self, head: int | None) -> tuple[Output, ...]:
        """The rows of records before `head`, which are staged now; None: all."""
        taken = []
        while self._made and (head is None or self._made[0].offset < head):
            taken.append(self._made.popleft())
            self.size -= taken[-1].rows.nbytes
        return tuple(taken)

    def put_back(self, taken: Sequence[Output]) -> None:
        """Keep rows for a later report, because they could not be staged."""
        self._made.extendleft(reversed(taken))
        self.size += sum(output.rows.nbytes for output in taken)

    @property
    def waiting(self) -> tuple[Range, ...]:
        """The records whose rows wait: they are acknowledged with their rows."""
        return tuple((output.offset, output.offset + 1) for output in self._made)


def without(ranges: Sequence[Range], records: Sequence[Range]) -> tuple[Range, ...]:
    """The ranges without these records."""
    left = list(ranges)
    for cut, _ in records:
        left = [
            part
            for start, end in left
            for part in ([(start, cut), (cut + 1, end)] if start <= cut < end else [(start, end)])
            if part[0] < part[1]
        ]
    return tuple(left)


def output_spec(batch: Batch) -> Json:
    """What a worker needs of the batch to stage for it."""
    lease, name = batch.lease, batch.name
    commit = lease.commit
    return [lease.pipeline, lease.key, name.stream, name.label, lease.token, commit.generation, commit.incarnation]


def batch_to_stage(batch_id: str, spec: Json) -> StagedBatch:
    """A part of a long-lived batch, under an id that no other attempt has."""
    pipeline, key, stream, label, token, generation, incarnation = spec
    part = f"{batch_id}-{uuid.uuid4().hex[:12]}"
    name = Name(stream, label)
    return StagedBatch(
        part, pipeline, key, name, token, generation, incarnation=incarnation, changed=True, several_rows=True
    )


def _joined(made: Sequence[Output]) -> tuple[Any, Any]:
    """The items and the rows of all outputs, each as one array."""
    import pyarrow as pa

    items = pa.array([output.item for output in made for _ in range(output.rows.num_rows)], pa.int64())
    table = pa.Table.from_batches([output.rows for output in made]).combine_chunks()
    return items, table.to_batches()[0]


def _arrow_types(columns: Mapping[str, ColumnType]) -> dict[str, Any]:
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "binary": pa.binary(),
        "long": pa.int64(),
        "double": pa.float64(),
        "boolean": pa.bool_(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "date": pa.date32(),
    }
    return {name: types[kind] for name, kind in columns.items()}
